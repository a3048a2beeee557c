"""From what a pass decided to what is done about it: the same lines for the daemon and for `outrace replay`.

Pure: times are given, nothing is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monitor.policy import acting, patience
from monitor.policy.patience import Coming
from monitor.policy.signals import ALLOCATABLE_MEMORY, MEMORY, RESOURCE
from monitor.policy.synchronize import HARD_GRACE_S, Observation, Outcome

#: The kubelet's loop: an observed decision for a threshold that stays met is repeated as rarely as the kubelet would.
REPEAT_NS = 10_000_000_000
#: Two observed decisions are at least this far apart, so that a working set trembling at the line does not flood the
#: log.
QUIET_NS = 20_000_000
#: What a recording keeps of a `decision` message: all that follows from the inputs.
_KEYS = (
    "id",
    "signal",
    "kind",
    "domain",
    "quantity",
    "available",
    "capacity",
    "grace_s",
    "given_s",
    "braked",
    "message",
    "pod",
    "name",
    "observed",
    "trigger",
    "crossed_ns",
    "decided_ns",
)
_DOMAINS = {MEMORY: "node", ALLOCATABLE_MEMORY: "kubepods"}


def facts(outcome: Outcome, observations: Mapping[str, Observation], braked: str = "") -> dict[str, Any]:
    """What a `decision` message says of the threshold that is acted on and its numbers.

    ``braked``: why evictions are held, where growth demands this one (`monitor.policy.eviction_brake`).
    """
    threshold = outcome.starved
    assert threshold is not None
    seen = observations[threshold.signal]
    return {
        "signal": threshold.signal,
        "kind": "hard" if threshold.hard else "soft",
        "domain": _DOMAINS.get(threshold.signal) or threshold.signal.partition(".")[0],
        "quantity": threshold.quantity(seen.capacity),
        "available": seen.available,
        "capacity": seen.capacity,
        "grace_s": outcome.grace_s,
        **({"braked": braked} if braked else {}),
    }


def waits(outcome: Outcome, observations: Mapping[str, Observation], coming: Mapping[str, Coming]) -> bool:
    """Whether the pod that a pass chose is not evicted yet, because memory of the dead is coming back.

    ``coming``: by signal; empty where nothing is.
    """
    threshold = outcome.starved
    if threshold is None or not acting.of_memory(outcome):
        return False
    seen = observations[threshold.signal]
    quantity = threshold.quantity(seen.capacity)
    return patience.waits(coming.get(threshold.signal, patience.NOTHING), seen.available, quantity)


def limit_facts(message: str) -> dict[str, Any]:
    """The same for a pod over a limit of its own; ``message`` says which."""
    return {"signal": None, "kind": "limit", "message": message, "grace_s": HARD_GRACE_S}


def subject(outcome: Outcome) -> str:
    """What an observed decision is about: one and the same is not told too often."""
    assert outcome.starved is not None
    return RESOURCE[outcome.starved.signal]


def recorded(message: Mapping[str, Any]) -> dict[str, Any]:
    """A `decision` message as a recording keeps it and a replay makes it again."""
    return {key: message[key] for key in _KEYS if key in message}


class Repeats:
    """When an observed decision was last told, by its subject."""

    def __init__(self, told: Mapping[str, int] | None = None) -> None:
        self.told: dict[str, int] = dict(told or {})

    def allow(self, about: str, crossed: bool, now_ns: int) -> bool:
        """Whether it is to be told now, and note that it is. ``crossed``: a crossing led to it, which is news."""
        if now_ns - self.told.get(about, 0) < (QUIET_NS if crossed else REPEAT_NS):
            return False
        self.told[about] = now_ns
        return True

    def forget(self, now_ns: int) -> None:
        """Drop what is too old to matter, so that pods of the past take no room."""
        self.told = {about: ns for about, ns in self.told.items() if now_ns - ns < REPEAT_NS}
