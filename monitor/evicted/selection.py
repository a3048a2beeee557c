"""Which of the evicted pods are to go. Pure: time comes in as a number.

Every criterion can only keep a pod: it goes if it is old enough *and* beyond every count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from monitor.evicted.pods import EvictedPod


@dataclass(frozen=True)
class Criteria:
    """``older_than_s`` seconds; the ``keep`` newest of all, of each namespace, of each owner stay; None: no limit.

    What a server can look for comes first: ``namespaces`` (none: all), ``label_selector``, ``node``.
    """

    namespaces: tuple[str, ...] = ()
    label_selector: str = ""
    node: str = ""
    owner_kinds: frozenset[str] = frozenset()
    older_than_s: float | None = None
    keep: int | None = None
    keep_per_namespace: int | None = None
    keep_per_owner: int | None = None

    @property
    def field_selector(self) -> str:
        """Reason is no field that pods can be looked for by."""
        return "status.phase=Failed" + (f",spec.nodeName={self.node}" if self.node else "")


@dataclass(frozen=True, slots=True)
class Choice:
    """A pod, and why it stays; "" if it is to go."""

    pod: EvictedPod
    stays: str

    @property
    def goes(self) -> bool:
        return not self.stays


def choose(pods: Iterable[EvictedPod], criteria: Criteria, now: float) -> tuple[Choice, ...]:
    """Of all pods of the owner kinds, oldest first: that is the order in which they go.

    Counts are of what was evicted, as terminated-pod-gc-threshold's are of what has terminated; a pod that is being
    deleted does not count, for it is as good as gone.
    """
    kinds = {kind.lower() for kind in criteria.owner_kinds}
    found = [pod for pod in pods if not kinds or pod.owner_kind.lower() in kinds]
    found.sort(key=lambda pod: (pod.since is None, -(pod.since or 0.0), pod.key))
    newer: Counter[tuple[str, ...]] = Counter()
    made = []
    for pod in found:
        made.append(Choice(pod, _stays(pod, criteria, now, newer)))
    return tuple(reversed(made))


def _stays(pod: EvictedPod, criteria: Criteria, now: float, newer: Counter[tuple[str, ...]]) -> str:
    """Why it stays, where ``newer`` has how many newer ones there are; it is counted then."""
    if pod.held == "is being deleted":
        return pod.held
    limits = (
        ("", criteria.keep, ()),
        (" of its namespace", criteria.keep_per_namespace, ("namespace", pod.namespace)),
        (" of its owner", criteria.keep_per_owner, ("owner", pod.namespace, pod.owner_kind, pod.owner_name)),
    )
    kept = ""
    for what, limit, key in limits:
        if limit is not None and newer[key] < limit:
            kept = kept or f"among the {limit} newest{what}"
        newer[key] += 1
    return pod.held or too_young(pod, criteria, now) or kept


def too_young(pod: EvictedPod, criteria: Criteria, now: float) -> str:
    """Why its age keeps it."""
    if criteria.older_than_s is None:
        return ""
    if pod.since is None:
        return "its age is not known"
    return "not old enough" if now - pod.since < criteria.older_than_s else ""
