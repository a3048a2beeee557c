"""Candidates kept in the order of eviction while they move: one insertion into a sorted list (a few microseconds).

At a crossing nothing is sorted: the first pod that may be evicted is simply there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from monitor.policy.ranking import Candidate, Key, memory_key


class EvictionOrder:
    """Candidates by uid, always sorted by ``key``: that of an era (`monitor.policy.releases`)."""

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
