"""The next victim, ready before it is needed.

Its processes' descriptors, and the trigger in the kernel where that is configured.
"""

from __future__ import annotations

import time

from monitor.actions.victim import Victim
from monitor.sources.registry import PodEntry, Registry

#: Processes come and go; what was prepared is looked at again after this long.
_REFRESH_NS = 1_000_000_000
#: A victim that was empty and is still the first has new processes: it is looked at again after this. (Not more often:
#: each look takes a lock.)
_EMPTY_NS = 100_000_000
_ARMED, _POD, _FIRED = 0, 1, 3  # words of struct victim


class Trigger:
    """The prepared victim, and whether the kernel or the hot process signals it."""

    def __init__(self, victim: memoryview, registry: Registry, cgroup_version: int, in_kernel: bool) -> None:
        self._registry = registry
        self._version = cgroup_version
        self._in_kernel = in_kernel
        self._prepared: dict[str, Victim] = {}
        self._word = victim
        #: The pod's cgroup for which the kernel pulled it, unheard of by the daemon before; 0: none.
        self.inherited = int(victim[_POD]) if victim[_FIRED] else 0
        self._word[_ARMED] = self._word[_FIRED] = 0
        self._pulled_ns = 0  # when it was first noticed that the kernel had pulled it
        self._uid = ""  # of the pod the kernel's trigger is or was last armed for

    def prepare(self, may_arm: bool = True) -> None:
        """Keep the first victim ready. Called when the order may have changed, never at a crossing.

        ``may_arm`` False: the kernel is to signal no pod at a crossing.
        """
        if not may_arm:
            self.stand_down()
        entry = self._registry.first()
        if entry is None:
            self._word[_ARMED] = 0
            return
        now = time.monotonic_ns()
        victim = self._prepared.get(entry.uid)
        if victim is None:
            self._prepared[entry.uid] = self._make(entry)
        elif now - victim.prepared_ns > (
            min(victim.rest_ns, _REFRESH_NS) if victim.is_partial else _REFRESH_NS if victim.pidfds else _EMPTY_NS
        ):
            victim.refresh()
        # Two pods that overtake each other are not prepared anew each time; but no kill uses an old list.
        for uid, other in list(self._prepared.items()):
            if uid != entry.uid and now - other.prepared_ns > _REFRESH_NS:
                self._prepared.pop(uid).close()
        if self._word[_FIRED] and not self._record_is_lost(now):
            return  # pulled a moment ago; the record of that is still to be read
        if self._prepared[entry.uid].spared:
            self._word[_ARMED] = 0  # the kernel would signal any process of the pod that charges
        elif self._in_kernel and may_arm and (self._uid != entry.uid or not self._word[_ARMED]):
            self._word[_ARMED] = 0
            self._word[_POD] = entry.cgroup_id
            self._uid = entry.uid
            self._word[_ARMED] = now  # the generation: the time was never used before, also not by an earlier daemon

    def stand_down(self) -> None:
        """The kernel signals no pod until the next `prepare`. A trigger that was pulled before is still reported."""
        self._word[_ARMED] = 0

    def _record_is_lost(self, now_ns: int) -> bool:
        """Whether a trigger was pulled long ago without a record: the ring was full."""
        if not self._pulled_ns:
            self._pulled_ns = now_ns
        if now_ns - self._pulled_ns < _REFRESH_NS:
            return False
        self._word[_FIRED] = self._pulled_ns = 0
        return True

    def take(self, entry: PodEntry) -> Victim:
        """The prepared victim of a pod, for good; made now if it was not prepared."""
        victim = self._prepared.pop(entry.uid, None)
        # The signal cannot leave without this look, though it takes a lock (`MovedPods.take_back`).
        if victim is not None and (victim.is_blind or time.monotonic_ns() - victim.prepared_ns > 2 * _REFRESH_NS):
            victim.refresh()
        return victim or self._make(entry)

    def ready(self, uid: str) -> Victim | None:
        """The prepared victim of a pod, for good, where a signal can leave with nothing looked up; None otherwise.

        Where the kernel signals at the crossing, it is the pod that the kernel has begun to kill, or None: its other
        processes follow before the pass (crossing to decision 207 us with the pass first, 93 us without).
        """
        victim = self._prepared.get(uid)
        if victim is None or victim.is_blind or (self._in_kernel and not self._was_pulled_for(uid)):
            return None
        if time.monotonic_ns() - victim.prepared_ns > 2 * _REFRESH_NS:
            return None
        del self._prepared[uid]
        return victim

    def _was_pulled_for(self, uid: str) -> bool:
        return bool(self._word[_FIRED]) and not self._word[_ARMED] and self._uid == uid

    @property
    def is_pulled(self) -> bool:
        """Whether the kernel pulled it and that was not heard of yet."""
        return bool(self._word[_FIRED])

    def disarm(self) -> PodEntry | None:
        """Take the kernel's trigger away; the pod it was armed for if it had been pulled already."""
        armed = self._word[_ARMED]
        self._word[_ARMED] = 0
        fired = self._word[_FIRED]
        self._word[_FIRED] = self._pulled_ns = 0
        return self._registry.by_uid.get(self._uid) if fired and not armed else None

    def forget(self, uid: str) -> None:
        """A pod is gone: nothing of it may be signalled any more."""
        if uid == self._uid:
            self._word[_ARMED] = 0
        victim = self._prepared.pop(uid, None)
        if victim is not None:
            victim.close()

    def _make(self, entry: PodEntry) -> Victim:
        victim = Victim(entry.uid, entry.cgroup, self._version)
        victim.refresh()
        return victim
