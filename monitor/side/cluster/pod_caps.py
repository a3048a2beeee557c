"""Limits the memory of evicted pods whose status the API server has not taken, until it answers.

Without the status the kubelet runs the containers again, in the same pod cgroup, and a pod that grows is killed again,
every 7 to 10 s (measured). With a limit on that cgroup the kernel OOM-kills a container that grows inside its own pod,
and CrashLoopBackOff makes that rarer. The kubelet writes a pod's limit only when it makes the cgroup, and at a resize
in place.

A thread of its own: writing a limit may reclaim in the writer. What it changes is in the journal before.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from monitor.actions.changes import FOREIGN, RESTORED, Change, ChangeJournal
from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.procfs import Process
from monitor.pods.model import FoundPod
from monitor.policy.qos import is_critical
from monitor.policy.resources import pod_request
from monitor.side.cluster.record import Record
from monitor.side.cluster.status_writer import GONE, TAKEN
from monitor.side.export.log import Log

#: The least limit of a pod, so that a container of it can start and say what is wrong: runc alone takes some MiB.
FLOOR = 32 << 20
#: Pods limited at a time. One is evicted in a pass of the policy; of more the rest is evicted again as it grows.
MOST = 32
#: A server that answers for so long is back: one that comes and goes would lift a limit just to have it set again.
BACK_S = 5.0
#: How often it is looked at what is limited, and whether a limit can come down to what it should be.
TURN_S = 1.0
#: Pods that are to be limited and have no cgroup (yet).
_MOST_WANTED = 256
#: A pod that grows while it is limited: v1 refuses a limit below usage (EBUSY).
_TRIES = 3


@dataclass(slots=True)
class _Wanted:
    """A pod that is to be limited. ``settled``: nobody tries to write its status any more; ``over``: why the limit goes
    at once; ``left``: nothing is tried any more, and the log has the reason.
    """

    record: Record
    settled: bool = False
    over: str = ""
    left: bool = False
    change: Change | None = None
    limit: int = 0
    since: float = 0.0
    problem: str = ""


class PodCaps:
    """``find(uid)`` is the pod as it is known now; ``on_capped(record, bytes)`` is called when it has its limit.

    `late`, `outcome` and `answers` may be called from any thread and never wait; `run` is the thread.
    """

    def __init__(
        self,
        journal: ChangeJournal,
        hierarchy: Hierarchy,
        find: Callable[[str], FoundPod | None],
        log: Log,
        on_capped: Callable[[Record, int], object] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = self.failures = 0
        self.on_capped = on_capped
        self._journal = journal
        self._hierarchy = hierarchy
        self._find = find
        self._log = log
        self._clock = clock
        self._file = "memory.max" if hierarchy.version == 2 else "memory.limit_in_bytes"
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._wanted: dict[str, _Wanted] = {}
        self._busy: _Wanted | None = None  # may be getting its limit now: it is not to be forgotten
        self._back_since: float | None = None

    @property
    def capped(self) -> int:
        """Pods that have a limit now."""
        return sum(one.change is not None for one in list(self._wanted.values()))

    def has(self, uid: str) -> bool:
        """Whether this pod has a limit of outrace's now."""
        one = self._wanted.get(uid)
        return one is not None and one.change is not None

    @property
    def waiting(self) -> bool:
        """Whether it matters when the server answers again."""
        return bool(self._wanted)

    def late(self, record: Record) -> None:
        """The API server has not taken the status of an evicted pod in time."""
        with self._lock:
            self._back_since = None
            one = self._wanted.setdefault(record.uid, _Wanted(record))
            one.record, one.settled, one.over, one.left = record, False, "", False
            bare = [uid for uid, other in self._wanted.items() if other.change is None and other is not self._busy]
            for uid in bare[:-_MOST_WANTED]:
                del self._wanted[uid]
        self._wake.set()

    def outcome(self, record: Record, fate: str) -> None:
        """What became of a status in the end."""
        with self._lock:
            one = self._wanted.get(record.uid)
            if one is None or one.record.id != record.id:
                return  # in time, or a newer eviction of this pod is under way
            one.settled = True
            if fate == TAKEN:
                one.over = "its status is taken"
            elif fate == GONE:
                one.over = "it was deleted"
        self._wake.set()

    def answers(self, does: bool) -> None:
        """Whether the API server answered when it was asked."""
        with self._lock:
            if not does:
                self._back_since = None
            elif self._back_since is None:
                self._back_since = self._clock()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="pod caps", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Set every limit back. What cannot be in that time is in the journal, for the next start."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(TURN_S if self._wanted else None)
            self._wake.clear()
            if not self._closing:
                self.turn()
        self.lift_all("outrace ends")

    def turn(self) -> None:
        with self._lock:
            wanted = dict(self._wanted)
            is_back = self._back_since is not None and self._clock() - self._back_since >= BACK_S
        for uid, one in wanted.items():
            with self._lock:
                self._busy = one
                if self._wanted.get(uid) is not one:
                    continue
            try:
                self._step(uid, one, is_back)
            except (OSError, MonitorError) as error:
                self._failed(one, str(error))
            except Exception as error:  # noqa: BLE001 - a thread that ended would leave every limit where it is
                self._failed(one, f"{type(error).__name__}: {error}")

    def lift_all(self, why: str) -> None:
        with self._lock:
            wanted = dict(self._wanted)
        for uid, one in wanted.items():
            try:
                self._lift(uid, one, why)
            except Exception as error:  # noqa: BLE001 - one limit that cannot be lifted must not keep the others
                self._failed(one, f"{type(error).__name__}: {error}")

    def _step(self, uid: str, one: _Wanted, is_back: bool) -> None:
        if one.over or (one.settled and is_back):
            self._lift(uid, one, one.over or "the API server answers")
        elif one.change is not None and not self._journal.is_in_force(one.change):
            self._lift(uid, one, "the pod's cgroup is gone, or somebody else wrote its limit")
        elif not one.left:
            self._limit(uid, one)

    def _limit(self, uid: str, one: _Wanted) -> None:
        """Give the pod its limit; or, if that had to be more than it should be, lower it."""
        found = self._find(uid)
        if found is None or not cgroupfs.exists(found.cgroup):
            return  # not known yet after a restart, or over; nothing to be limited
        if is_critical(found.pod) or self._is_ours(found.cgroup):
            one.left = True
            return
        wanted = max(FLOOR, _pages(min(pod_request(found.pod, "memory").value, cgroupfs.MAX_LIMIT)))
        if one.change is not None:
            if one.limit > wanted and _usage(self._hierarchy, found.cgroup) <= wanted:
                one.change, one.limit = self._written(found.cgroup, wanted, one), wanted
            return
        own = cgroupfs.limit(found.cgroup)
        if own is not None and own <= wanted:
            one.left = True
            self._log.info(
                "an evicted pod keeps its own limit until the API server answers", pod=one.record.title, bytes=own
            )
            return
        if self.capped >= MOST:
            raise MonitorError(f"{MOST} pods have such a limit, which is the most")
        made = self._first(found.cgroup, wanted, own, one)
        one.change, one.limit, one.since, one.problem = made, int(made.written[-1]), self._clock(), ""
        self.total += 1
        self._log.warning(
            "the memory of an evicted pod is limited until the API server answers: a container that grows is "
            "OOM-killed in its pod",
            pod=one.record.title,
            uid=uid,
            bytes=one.limit,
            before=made.old,
            cgroup=made.path,
        )
        self.on_capped(one.record, one.limit)

    def _first(self, cgroup: Path, wanted: int, own: int | None, one: _Wanted) -> Change:
        for attempt in range(1, _TRIES + 1):
            # Never below what it has now: the kernel would kill for that on v2, and refuse it on v1.
            usage = _usage(self._hierarchy, cgroup)
            limit = max(wanted, _pages(usage + attempt * usage // 8))
            if own is not None:
                limit = min(limit, own)
            try:
                return self._written(cgroup, limit, one)
            except OSError as error:
                if attempt == _TRIES or error.errno != errno.EBUSY:
                    raise
        raise AssertionError

    def _written(self, cgroup: Path, limit: int, one: _Wanted) -> Change:
        return self._journal.change(
            cgroup, self._file, str(limit), one.record.uid, f"no status of {one.record.title} in the API server"
        )

    def _lift(self, uid: str, one: _Wanted, why: str) -> None:
        if one.change is not None:
            fate = self._journal.undo(one.change)
            self._log.info(
                "the memory of an evicted pod is no longer limited",
                pod=one.record.title,
                uid=uid,
                why=why,
                limit=one.change.old if fate == RESTORED else fate,
                seconds=round(self._clock() - one.since, 1),
            )
            # Who wrote it since (a resize, systemd) knows what it is to be.
            one.change, one.left = None, fate == FOREIGN
        with self._lock:
            if self._wanted.get(uid) is one and (one.settled or one.over or self._closing):
                del self._wanted[uid]

    def _failed(self, one: _Wanted, problem: str) -> None:
        """Tried again in the next turn, and logged once."""
        self.failures += 1
        if problem != one.problem:
            self._log.error("the memory of an evicted pod cannot be limited", pod=one.record.title, problem=problem)
        one.problem = problem

    def _is_ours(self, cgroup: Path) -> bool:
        """The pods' source leaves out who holds outrace; asked again, because this would limit its memory."""
        with Process(os.getpid()) as process:
            own = process.memory_cgroup(self._hierarchy)
        return own is None or own.is_relative_to(cgroup)


def _usage(hierarchy: Hierarchy, cgroup: Path) -> int:
    return cgroupfs.read_cgroup(hierarchy, cgroup).usage


def _pages(number: int) -> int:
    """Rounded up: the kernel rounds limits down to whole pages, and the value is compared with what it says."""
    page = os.sysconf("SC_PAGE_SIZE")
    return -(-number // page) * page
