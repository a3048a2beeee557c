"""The kernel notification a kubelet arms on cgroup v1 with `kernelMemcgNotification`. On v2 it arms none."""

from __future__ import annotations

from typing import NamedTuple

from monitor.policy.compat import int64
from monitor.policy.quantity import Quantity
from monitor.policy.signals import ALLOCATABLE_MEMORY
from monitor.policy.stats import Memory
from monitor.policy.thresholds import Threshold


class Notification(NamedTuple):
    """`usage`: bytes of `attribute` at whose crossing, either way, the kubelet makes a pass at once; None if it cannot
    tell, because figures are missing.
    """

    description: str
    attribute: str
    usage: int | None


def notification(threshold: Threshold, memory: Memory | None) -> Notification:
    """Where ``threshold`` is armed, given the figures of its cgroup: where usage less today's inactive cache leaves the
    threshold's value of the capacity. Min reclaim plays no part, and it drifts as the cache does.
    """
    kind = "hard" if threshold.hard else "soft"
    which = "allocatable memory" if threshold.signal == ALLOCATABLE_MEMORY else "memory"
    description, attribute = f"{kind} {which} eviction threshold", "memory.usage_in_bytes"
    if memory is None or memory.available is None or memory.working_set is None or memory.usage is None:
        return Notification(description, attribute, None)
    capacity = int64(memory.available + memory.working_set)
    inactive = int64(memory.usage - memory.working_set)
    level = Quantity.of_bytes(capacity) - threshold.value.shown(capacity) + Quantity.of_bytes(inactive)
    return Notification(description, attribute, level.value)
