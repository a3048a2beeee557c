"""The eviction order for memory: all of it that the hot process loads (`victims` has the other signals).

1. pods without stats, then those using more than requested, then the rest; 2. lower priority, an unknown one behind all
known ones that may be evicted; 3. more above (or less below) the request. Ties: namespace, name, uid.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monitor.policy.pods import Pod, per_pod
from monitor.policy.qos import CRITICAL_PRIORITY, is_critical
from monitor.policy.quantity import Quantity

_NANO = 10**9
#: Where a pod of unknown priority stands: behind all that may be evicted. Taken for 0 it would go before them.
UNKNOWN_PRIORITY = CRITICAL_PRIORITY - 1

#: (group, priority, bytes below the request, the request's part of a byte, namespace, name, uid); smallest goes first.
Key = tuple[int, int, int, int, str, str, str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod that could be evicted. Sizes are bytes; ``usage``: the working set, None without stats; ``priority``: None
    is unknown; ``request_nanos``: the part of a byte above ``request`` (`1500m`); ``qos``: kubelet-1.8 ranks by it.
    """

    uid: str
    namespace: str
    name: str
    priority: int | None
    request: int
    usage: int | None
    critical: bool
    grace_period_s: int | None = None
    request_nanos: int = 0
    qos: str = ""


def memory_key(c: Candidate) -> Key:
    """Sort key, of critical pods too: the smallest is evicted first. After the kubelet's four parts come ties."""
    return usage_key(c, c.usage, c.request)


def usage_key(c: Candidate, usage: int | None, allowed: int) -> Key:
    """`memory_key` at another usage. ``allowed``: whole units it may use; the request, except for inodes."""
    priority = UNKNOWN_PRIORITY if c.priority is None else c.priority
    if usage is None:
        return (0, priority, 0, 0, c.namespace, c.name, c.uid)
    # Usage is whole bytes, so it exceeds a request with a fraction exactly when it exceeds its whole part.
    group = 1 if usage > allowed else 2
    return (group, priority, c.request - usage, c.request_nanos, c.namespace, c.name, c.uid)


_is_critical = per_pod(is_critical)


def candidate(pod: Pod, request: Quantity, usage: int | None) -> Candidate:
    """The candidate for a pod that asked for ``request`` and uses ``usage`` of something."""
    critical = _is_critical(pod)
    whole, nanos = divmod(request.nanos, _NANO)
    priority = pod.known_priority
    return Candidate(pod.uid, pod.namespace, pod.name, priority, whole, usage, critical, pod.grace_period_s, nanos)


class EvictionOrder:
    """Candidates always sorted by ``key``: one insertion, some microseconds, and no sort at a crossing."""

    def __init__(self, key: Callable[[Candidate], Key] = memory_key) -> None:
        self._key = key
        self._at: dict[str, Key] = {}
        self._keys: list[Key] = []
        self._order: list[Candidate] = []

    def __contains__(self, uid: object) -> bool:
        return uid in self._at

    def put(self, candidate: Candidate) -> None:
        """Give a candidate its place, a new one if it has one already."""
        self.remove(candidate.uid)
        key = self._at[candidate.uid] = self._key(candidate)
        at = bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self._order.insert(at, candidate)

    def remove(self, uid: str) -> None:
        key = self._at.pop(uid, None)
        if key is not None:
            at = bisect_left(self._keys, key)  # a key ends with the uid: no two are equal
            del self._keys[at]
            del self._order[at]

    def order(self) -> Sequence[Candidate]:
        """Candidates, first victim first. Do not change it."""
        return self._order

    def first(self) -> Candidate | None:
        """The one that would be evicted now: the first that is not critical."""
        return next((candidate for candidate in self._order if not candidate.critical), None)
