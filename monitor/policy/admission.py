"""Which pods a node under pressure takes in."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from monitor.policy.messages import REASON
from monitor.policy.pods import Pod, Toleration
from monitor.policy.qos import BEST_EFFORT, is_critical, qos_class
from monitor.policy.signals import MEMORY_PRESSURE

#: The taint (with effect NoSchedule) the control plane puts on a node under memory pressure.
MEMORY_TAINT = "node.kubernetes.io/memory-pressure"


class Admission(NamedTuple):
    """Whether a pod may start here; reason and message of its status if not."""

    admitted: bool
    reason: str = ""
    message: str = ""


_YES = Admission(True)


def admit(pod: Pod, conditions: Collection[str], qos_of: Callable[[Pod], str] = qos_class) -> Admission:
    """Whether a node with these conditions takes the pod.

    Under memory pressure alone only BestEffort pods that do not tolerate its taint are refused; under anything else
    every pod but a critical one is, tolerations or not.
    """
    if not conditions or is_critical(pod):
        return _YES
    if set(conditions) == {MEMORY_PRESSURE}:
        if qos_of(pod) != BEST_EFFORT:
            return _YES
        if any(tolerates(t, MEMORY_TAINT) for t in pod.tolerations):
            return _YES
    # A refused pod ends as Failed with this reason: from outside it looks like an eviction.
    return Admission(False, REASON, f"The node had condition: [{' '.join(sorted(conditions))}]. ")


def tolerates(toleration: Toleration, taint: str) -> bool:
    """Whether ``toleration`` covers a taint without value. An operator other than Exists or Equal covers nothing."""
    if toleration.effect not in ("", "NoSchedule") or toleration.key not in ("", taint):
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == ""
    return toleration.operator == "Exists"
