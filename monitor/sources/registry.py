"""The pods the hot process knows, always in eviction order."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import compress
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor.errors import MonitorError
from monitor.kernel.domains import POD
from monitor.link.messages import PodSeen
from monitor.policy.ranking import Candidate, EvictionOrder

if TYPE_CHECKING:
    from monitor.kernel.domains import Table

#: How many pods of the order an incident lists (some 100 bytes each).
_LEADERS = 64
#: What the helper reports of a pod, as `PodEntry` has it.
_SPEC = ("uid", "namespace", "name", "priority", "request", "request_nanos", "qos", "critical", "grace_s")
_spec = attrgetter(*_SPEC)
#: The fields of a candidate, as `PodEntry` has them.
_ranked = attrgetter(
    *("uid", "namespace", "name", "priority", "request", "usage", "critical", "grace_s", "request_nanos", "qos")
)
#: What decides whether a pod is counted in the node's growth, and as whose.
_part = attrgetter("counted", "critical", "evicted")
#: A candidate as a tuple. (dataclasses.astuple copies deeply: 5 us each, 0.3 ms for all of these.)
row: Callable[[Candidate], tuple[Any, ...]] = attrgetter(*(one.name for one in fields(Candidate)))


@dataclass(slots=True)
class PodEntry:
    """One pod: what is known about it and where its counters are."""

    uid: str
    namespace: str
    name: str
    priority: int | None  # None: its spec is not known
    request: int
    request_nanos: int  # the part of a byte above it
    qos: str
    critical: bool
    grace_s: int | None
    cgroup: Path
    cgroup_id: int
    index: int
    containers: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> (cgroup id, index)
    usage: int | None = None
    evicted: bool = False
    floor: int = 0  # the least it had since it was evicted, or was last found to be empty
    ask_ns: int = 0  # whether a process runs in it is not read again before this
    asked: int = 0  # bytes it had when that was read
    counted: bool = False  # a sweep has gone over it: before that it is no candidate, because it would rank first
    began: int = 0  # what it had then: its growth to that was not observed
    summed: int = 0  # what of it is in `Registry.sum`
    part: tuple[bool, bool, bool] | None = None  # `_part`, when it was ranked last

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def candidate(self) -> Candidate:
        return Candidate(*_ranked(self))


class Registry:
    """Pods by uid and by domain index, and the candidates in eviction order."""

    def __init__(self, table: Table, step: int, eviction_order: EvictionOrder | None = None) -> None:
        self._table = table
        self._step = step
        self._eviction_order = eviction_order or EvictionOrder()
        self.by_uid: dict[str, PodEntry] = {}
        self.by_index: dict[int, PodEntry] = {}
        self.protected: set[int] = set()  # cgroups that no pod may claim
        self._owners: dict[int, PodEntry] = {}  # by cgroup id of the pod and of its containers
        self._users: dict[int, int] = {}  # cgroup id -> how many pods and containers watch it
        self.grown: set[str] = set()  # uids of evicted pods that have more than they were left with
        self.members = 0  # counts pods that came or went
        self.sum = 0  # bytes that candidates have together, by what each had when it was ranked
        self._measured: tuple[list[str], list[int], list[bool]] | None = None  # see `usages`; None: not made yet
        self.joined = 0  # bytes that candidates had when they were counted for the first time, all that ever were

    def __len__(self) -> int:
        return len(self.by_uid)

    def __iter__(self) -> Iterator[PodEntry]:
        return iter(self.by_uid.values())

    def put(self, message: PodSeen) -> PodEntry:
        """Take in a pod.

        Raises OSError when a cgroup of it is gone, MonitorError when the table of watched cgroups is full; the pod is
        then not watched.
        """
        old = entry = self.by_uid.get(message.uid)
        cgroup = Path(message.cgroup)
        cgroup_id = cgroup.stat().st_ino
        if entry is not None and entry.cgroup_id != cgroup_id:  # made anew, perhaps without its containers yet
            self.drop(message.uid)
            old = entry = None
        if cgroup_id in self.protected:
            raise MonitorError(f"{cgroup} is the node or kubepods itself", "name a cgroup of the pod's own")
        wanted = {name: (Path(path).stat().st_ino, Path(path)) for name, path in message.containers.items()}
        ids = cgroup_id, {name: ident for name, (ident, _) in wanted.items()}
        if entry is None or (entry.cgroup_id, {name: at[0] for name, at in entry.containers.items()}) != ids:
            self.drop(message.uid)
            entry = self._new(message, cgroup, cgroup_id, wanted)
            if old is not None:  # with other containers
                entry.evicted, entry.usage, entry.floor = old.evicted, old.usage, old.floor
                self._note_growth(entry)
        for name, value in zip(_SPEC, _spec(message), strict=True):
            setattr(entry, name, value)
        self._rank(entry)
        return entry

    def _new(self, message: PodSeen, cgroup: Path, cgroup_id: int, wanted: dict[str, tuple[int, Path]]) -> PodEntry:
        self._table.check_room(1 + len(wanted))
        watched: list[int] = []
        try:
            index = self._watch(cgroup_id, cgroup, POD, self._step)
            watched.append(cgroup_id)
            containers = {}
            for name, (ident, path) in wanted.items():
                containers[name] = (ident, self._watch(ident, path, 0, 0))
                watched.append(ident)
        except (OSError, MonitorError):  # a container that has just gone, no descriptor left: all of it or nothing
            for ident in watched:
                self._unwatch(ident)
            raise
        entry = PodEntry(
            **dict(zip(_SPEC, _spec(message), strict=True)),
            cgroup=cgroup,
            cgroup_id=cgroup_id,
            index=index,
            containers=containers,
        )
        self.by_uid[entry.uid] = entry
        self.by_index[index] = entry
        self.members += 1
        self._owners |= dict.fromkeys((cgroup_id, *(ident for ident, _ in wanted.values())), entry)
        return entry

    def _watch(self, cgroup_id: int, path: Path, flags: int, step: int) -> int:
        index = self._table.add(cgroup_id, flags=flags, step=step, path=path)
        self._users[cgroup_id] = self._users.get(cgroup_id, 0) + 1
        return index

    def _unwatch(self, cgroup_id: int) -> None:
        self._users[cgroup_id] -= 1
        if not self._users[cgroup_id]:
            del self._users[cgroup_id]
            self._table.remove(cgroup_id)

    def drop(self, uid: str) -> PodEntry | None:
        """Forget a pod; its counters are no longer kept."""
        entry = self.by_uid.pop(uid, None)
        if entry is None:
            return None
        self._eviction_order.remove(uid)
        self._measured = None
        self._sum(entry, 0)
        self.members += 1
        self.grown.discard(uid)
        self.by_index.pop(entry.index, None)
        for cgroup_id in (entry.cgroup_id, *(ident for ident, _ in entry.containers.values())):
            if self._owners.get(cgroup_id) is entry:
                del self._owners[cgroup_id]
            self._unwatch(cgroup_id)
        return entry

    def owner_of_cgroup(self, cgroup_id: int) -> PodEntry | None:
        """The pod that a pod's or container's cgroup belongs to."""
        return self._owners.get(cgroup_id)

    def move(self, entry: PodEntry, usage: int | None) -> None:
        """The pod's working set changed: find its new place."""
        if usage != entry.usage:
            entry.usage = usage
            self._note_growth(entry)
            self._rank(entry)

    def _note_growth(self, entry: PodEntry) -> None:
        if entry.evicted and entry.usage is not None:
            entry.floor = min(entry.floor, entry.usage)
            if entry.usage >= entry.floor + self._step:
                self.grown.add(entry.uid)

    def refresh(self) -> None:
        """Take every pod's working set from the table (after a sweep)."""
        for entry in self.by_uid.values():
            if not self._table.synced(entry.index):
                continue
            working_set = self._table.working_set(entry.index)
            if entry.counted:
                self.move(entry, working_set)
            else:
                entry.counted, entry.usage, entry.began = True, working_set, working_set
                self._note_growth(entry)
                self._rank(entry)
                self.joined += entry.summed

    def set_evicted(self, entry: PodEntry, evicted: bool) -> None:
        """An evicted pod is no candidate any more, until it has grown and a process runs in it again."""
        entry.evicted = evicted
        self.settle(entry)
        self._rank(entry)

    def settle(self, entry: PodEntry) -> None:
        """What it has now is no growth."""
        entry.floor = entry.usage or 0
        self.grown.discard(entry.uid)

    def order(self) -> Sequence[Candidate]:
        """Candidates, first victim first. Do not change it."""
        return self._eviction_order.order()

    def candidates(self, uids: Sequence[str]) -> Sequence[Candidate]:
        """The candidates among these, in this order: pods that are known here and were not evicted."""
        found = (self.by_uid.get(uid) for uid in uids)
        return [entry.candidate() for entry in found if entry is not None and not entry.evicted]

    def leaders(self) -> list[tuple[Any, ...]]:
        """The first of the order as they are sent to the helper: the fields of their candidates."""
        return [row(candidate) for candidate in self.order()[:_LEADERS]]

    def first(self) -> PodEntry | None:
        """The pod that would be evicted now."""
        candidate = self._eviction_order.first()
        return None if candidate is None else self.by_uid[candidate.uid]

    @property
    def candidate_uids(self) -> Container[str]:
        """Uids in the eviction order, critical pods included."""
        return self._eviction_order

    def usages(self) -> tuple[dict[str, int], int]:
        """Uid -> working set by the table's figures of this moment, of all pods that may be or were evicted; and what
        candidates among them have together. 25 us for 110 pods.
        """
        if self._measured is None:
            entries = [e for e in self.by_uid.values() if e.counted and not e.critical]
            may_go = [not e.evicted for e in entries]
            self._measured = [e.uid for e in entries], [e.index for e in entries], may_go
        uids, indexes, may_go = self._measured
        has = self._table.working_sets(indexes)
        return dict(zip(uids, has, strict=True)), sum(compress(has, may_go))

    def _sum(self, entry: PodEntry, now: int) -> None:
        self.sum += now - entry.summed
        entry.summed = now

    def _rank(self, entry: PodEntry) -> None:
        if entry.part != _part(entry):
            entry.part, self._measured = _part(entry), None
        is_summed = entry.counted and not entry.critical and not entry.evicted
        self._sum(entry, entry.usage or 0 if is_summed else 0)
        if entry.evicted or not entry.counted:
            self._eviction_order.remove(entry.uid)
        else:
            self._eviction_order.put(entry.candidate())
