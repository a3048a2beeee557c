"""Pods ranked, for tests of explanations."""

from typing import Any

from monitor.policy.layout import SINGLE_DISK, DiskLayout
from monitor.policy.pods import Pod
from monitor.policy.releases import era
from monitor.policy.stats import PodStats
from monitor.policy.victims import Ranked, rank_pods

IMAGEFS, SPLIT = DiskLayout(True), DiskLayout(True, True)


MEMORY = "memory.available"


# ---- two pods
def ranked(
    pods: list[Pod],
    figures: list[dict[str, Any]],
    signal: str = MEMORY,
    layout: DiskLayout = SINGLE_DISK,
    name: str = "kubelet-1.36",
) -> list[Ranked]:
    known = {one.uid: one for one in map(PodStats, figures)}
    return rank_pods(signal, pods, known, layout, ranker=era(name).ranker)
