"""Which of the evicted pods are to go. Pure: time comes in as a number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monitor.evicted.pods import EvictedPod


@dataclass(frozen=True)
class Criteria:
    """``older_than_s`` seconds; None: of any age. What a server can look for comes first: ``namespaces`` (none: all),
    ``label_selector``, ``node``.
    """

    namespaces: tuple[str, ...] = ()
    label_selector: str = ""
    node: str = ""
    owner_kinds: frozenset[str] = frozenset()
    older_than_s: float | None = None

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
    """Of all pods of the owner kinds, oldest first: that is the order in which they go."""
    kinds = {kind.lower() for kind in criteria.owner_kinds}
    found = [pod for pod in pods if not kinds or pod.owner_kind.lower() in kinds]
    found.sort(key=lambda pod: (pod.since is None, -(pod.since or 0.0), pod.key), reverse=True)
    return tuple(Choice(pod, pod.held or _too_young(pod, criteria, now)) for pod in found)


def _too_young(pod: EvictedPod, criteria: Criteria, now: float) -> str:
    """Why its age keeps it."""
    if criteria.older_than_s is None:
        return ""
    if pod.since is None:
        return "its age is not known"
    return "not old enough" if now - pod.since < criteria.older_than_s else ""
