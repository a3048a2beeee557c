"""What a pod's memory cgroups are limited to beside memory.max, and what that has to do with eviction, in words.

Looked at are the pod's cgroup and those of its containers: the kubelet sets memory.min on both and memory.high on
containers (MemoryQoS, KEP-2570). Sources: Documentation/admin-guide/cgroup-v2.rst for what the kernel does with them;
the kubelet's working set is usage without inactive file, and memory.current holds nothing that is swapped out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from monitor.cli.output import format_bytes
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.limits import EVERYTHING, Limits, read
from monitor.pods.model import FoundPod

_PROTECTION = {"memory.min": "under no circumstances", "memory.low": "unless nothing else is left"}


def limits_of(hierarchy: Hierarchy, found: FoundPod) -> list[dict[str, Any]]:
    """The facts as data: the file, whose it is, its bytes, and why it matters. [] where none is set."""
    cgroups = {"the pod": found.cgroup, **{f"container {name}": path for name, path in found.containers.items()}}
    facts: list[dict[str, Any]] = []
    for whose, path in cgroups.items():
        limits = read(hierarchy, path)
        if limits is None:
            continue  # it has ended
        # The pod's swap holds that of its containers.
        for name, value, why in _facts(limits, swap=whose == "the pod"):
            if name in _PROTECTION:
                why += _granted(hierarchy, path, name, value)
            facts.append({"name": name, "of": whose, "value": value, "why": why})
    return facts


def _facts(limits: Limits, swap: bool) -> Iterator[tuple[str, int, str]]:
    for name, value in (("memory.min", limits.min), ("memory.low", limits.low)):
        if value is not None:
            why = f"the kernel reclaims nothing up to there, {_PROTECTION[name]}; it is no protection from eviction"
            yield name, value, f"{why} or from the OOM killer"
    if limits.high is not None:
        why = "reclaim and throttling begin there"
        if limits.max is not None and limits.max > limits.high:
            why += f", {format_bytes(limits.max - limits.high)} below the limit"
        yield "memory.high", limits.high, f"{why}; neither counts as eviction, and nobody is killed for it"
    if limits.soft is not None:
        why = "when the machine is short, what is above it is reclaimed first; it protects nothing below it"
        yield "memory.soft_limit_in_bytes", limits.soft, why
    if swap and limits.swap:
        why = "no part of the working set: neither the kubelet nor outrace counts it; the OOM killer's badness does"
        yield "swap in use", limits.swap, why


def _granted(hierarchy: Hierarchy, path: Path, name: str, value: int) -> str:
    """Who above it grants less, so that less is protected (cgroup-v2.rst: the effective boundary); "" if nobody does.

    What reclaims at the limit of such a cgroup itself goes by what is set below it.
    """
    lowest, where = value, None
    for above in path.parents:
        if above == hierarchy.root or not above.is_relative_to(hierarchy.root):
            break
        limits = read(hierarchy, above, swap=False) or Limits()
        granted = (limits.min if name == "memory.min" else limits.low) or 0
        if granted < lowest:
            lowest, where = granted, above
    if where is None:
        return ""
    return f"; when what is short lies above {where.name}, only the {format_bytes(lowest)} that has count"


def limit_text(fact: dict[str, Any]) -> str:
    """One fact in one line, without its name."""
    size = "everything" if fact["value"] >= EVERYTHING else format_bytes(fact["value"])
    return f"{size} ({fact['of']}): {fact['why']}"
