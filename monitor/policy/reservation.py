"""What a node keeps back from its pods: the limit of the kubepods cgroup and the reservation taken off Allocatable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from monitor.policy.pods import Quantities
from monitor.policy.quantity import ZERO, Quantity
from monitor.policy.signals import MEMORY, NODEFS
from monitor.policy.thresholds import LESS_THAN, Threshold

#: The hard thresholds that count as reserved, and the resource each keeps back.
_RESERVING = {MEMORY: "memory", NODEFS: "ephemeral-storage"}


class Reservation(NamedTuple):
    """Amounts by resource. `pods_limit`: of the kubepods cgroup. `reserved`: taken off Allocatable, without zeros.
    `exceeded`: the resources of which more is reserved than there is; a kubelet does not start then.
    """

    pods_limit: Mapping[str, Quantity]
    reserved: Mapping[str, Quantity]
    exceeded: tuple[str, ...]


def reserve(
    capacity: Quantities, system: Quantities, kube: Quantities, hard_thresholds: Iterable[Threshold]
) -> Reservation:
    """Capacity less what is reserved for the system, for Kubernetes itself and by hard thresholds.

    The thresholds are not taken off the limit of the cgroup: pods may use that memory, they are evicted for it.
    """
    evicted_for: dict[str, Quantity] = {}
    for threshold in hard_thresholds:
        resource = _RESERVING.get(threshold.signal)
        if resource is not None and threshold.operator == LESS_THAN:
            evicted_for[resource] = threshold.value.shown(capacity.get(resource, ZERO).value)
    limits, reserved = {}, {}
    for name, amount in capacity.items():
        kept = system.get(name, ZERO) + kube.get(name, ZERO)
        left = amount - kept
        limits[name] = left if left > ZERO else ZERO
        kept = kept + evicted_for.get(name, ZERO)
        if not kept.is_zero:
            reserved[name] = kept
    return Reservation(limits, reserved, tuple(name for name, kept in reserved.items() if kept > capacity[name]))
