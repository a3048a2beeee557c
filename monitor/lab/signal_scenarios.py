"""Scenarios of thresholds by outrace's own formula (docs/signals.md): page cache that is, or is not, to be had."""

from __future__ import annotations

from monitor.lab.scenario import CRITICAL, HOG, own, scenario, unified
from monitor.lab.stage import STEADY, Stage
from monitor.race import incident as i


@scenario(own("memory.reclaimable", 32), i.EVICTION_WON, evicted=HOG, enforce=True)
def evicted_beside_cache(stage: Stage) -> None:
    """By memory.reclaimable a pod that grows beside active page cache is evicted."""
    stage.filled(stage.pod("reader"), 60, kind="file", reread=3, sync=1)
    stage.grow(stage.pod("hog"))


@scenario(own("memory.reclaimable", 32), i.OOM_UNSEEN, killed=HOG, enforce=True, needs=unified)
def protected_and_unseen(stage: Stage) -> None:
    """By memory.reclaimable, page cache that memory.min keeps is available."""
    server = stage.pod("server", priority=CRITICAL)
    stage.node.protect(server, 100)
    stage.filled(server, 90, kind="file", reread=0, sync=1)
    stage.grow(stage.pod("hog"))


@scenario(own("memory.reclaimable", 32), i.OOM_UNSEEN, killed=HOG, enforce=True)
def active_and_pinned(stage: Stage) -> None:
    """Active page cache that cannot be given back: here the kubelet's formula is right."""
    stage.filled(stage.pod("server"), 100, kind="file", reread=3, sync=1, pin=1)
    stage.grow(stage.pod("hog"))


@scenario(own("memory.reclaimable", 32), i.RELIEVED, i.KUBELET_ONLY, enforce=True)
def only_the_kubelet(stage: Stage) -> None:
    """Page cache read twice by memory.reclaimable: nobody is evicted, and the kernel gets it back."""
    reader = stage.filled(stage.pod("reader"), 140, kind="file", rate=STEADY, reread=3, sync=1)
    server = stage.filled(stage.pod("server"), 80, rate=STEADY)  # anonymous: the page cache has to go for it
    server.free()
    reader.free()
