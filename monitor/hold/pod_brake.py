"""Stops the growth of a pod instead of killing its processes: prepared ahead, in force in well under a millisecond.

| kernel | brake | what it does |
|---|---|---|
| v2 | memory.max, memory.oom.group, memory.high, then cgroup.freeze | a system call that allocates much sleeps |
| v1 | memory.limit_in_bytes with memory.oom_control 1, then freezer.state | the same; the cap kills no process |
| v1, no freezer | memory.limit_in_bytes with memory.oom_control 1 | page faults wait, system calls fail |
| v1 | freezer.state | where a container has disabled its OOM killer |

At v1's cap only a page fault of the program itself waits. In a system call the kernel gets no memory: ENOMEM, ENFILE,
EFAULT, and SIGSEGV after a fork. A frozen process makes no system call.

On v2 the kernel kills a pod at its cap, and a freeze waits for the end of a system call. Above memory.high each 128
pages that the call allocates cost a sleep of up to 2 s in it (try_charge_memcg, since Linux 5.17): it got 1.5 MiB in
6 s (measured).

The cap is written before the freeze, which takes the lock of all cgroups. It is above the pod's usage, so the write
reclaims nothing. All files are in the pod's own cgroup; the limits of its containers stay. The ledger has each change
first (`monitor.actions.ledger`), so it is undone after a SIGKILL too.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from monitor.actions.changes import BrakeFile, any_disabled
from monitor.actions.ledger import LEFT, WRONG, BrakeLedger, Ledger, Planned
from monitor.actions.victim import has_spared
from monitor.kernel import cgroupfs, limits
from monitor.kernel.cgroup_procs import CGROUPS, walk
from monitor.kernel.procfs import kill_pends, stat_fields
from monitor.kernel.troubles import TROUBLES
from monitor.kernel.wire import PAGE

LIMIT_FILES = ("memory.max", _V1 := "memory.limit_in_bytes")
COMPANIONS = ("memory.oom.group", "memory.oom_control")
#: A cap is no nearer to the pod's usage: between read and write, 10 us, memory at 10 GB/s grows by 0.1 MB.
ROOM = 1 << 20
#: v1 refuses a limit that the pod has passed meanwhile (EBUSY). Tries, each with twice the distance.
_TRIES = 5
#: 2: the kernel panics instead of an OOM kill at a cgroup's limit; 1: only where memory of the machine runs out
#: (check_panic_on_oom, mm/oom_kill.c).
PANIC_ON_OOM = "/proc/sys/vm/panic_on_oom"
PANICS = "the kernel would panic at its cap (vm.panic_on_oom=2); set vm.panic_on_oom to 0"
#: From this Linux on a limit that was opened with O_NONBLOCK is set without reclaim in the writer.
_NO_RECLAIM = (6, 16)

T = TypeVar("T")


class Braked(NamedTuple):
    """What is in force. ``cap``: bytes, the pod's own limit where that is lower, 0: none."""

    brake: str
    cap: int


def slow_at(usage: int, room: int) -> int:
    """The memory.high, bytes, that throttles allocations at once, and makes the writer reclaim nothing.

    From 1.2 times memory.high on the sleep is the longest, and half of the usage allows for page cache that is freed
    meanwhile. Where a value below the usage would reclaim, it is ``room`` above the usage: the sleep is as long when
    the pod has grown by a fifth, and a quarter of that after a tenth.
    """
    return (usage // 2 if _linux() >= _NO_RECLAIM else usage + room) // PAGE * PAGE


def joined(*parts: tuple[str, object]) -> str:
    """The names of what is there, with a + between."""
    return "+".join(name for name, there in parts if there)


@cache
def _linux() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])


def panics_at_cap(version: int) -> bool:
    """Whether the kernel panics, instead of a kill, at a cap on this version of cgroups; also where that is not known.
    Then no pod is held. v1's cap kills no process. It may change at any time, and a read takes 10 us.
    """
    return version == 2 and limits.number(PANIC_ON_OOM) not in (0, 1)


def plan_limit(
    ledger: BrakeLedger, cap: int, usage: int, attempt: int = 0, *, again: bool = False
) -> tuple[int, Planned]:
    """The cap that is to be in force (bytes; 0: none), and what is to be changed for it. ``again``: the pod is
    stopped, perhaps once more, which does not raise its cap. Raises OSError.
    """
    limit, companion = ledger.file(LIMIT_FILES), ledger.file(COMPANIONS)
    if limit is None or companion is None:
        return 0, {}
    near, asked = usage + (ROOM << attempt), cap // PAGE * PAGE
    if again and limit == _V1 and (now := _in_force(ledger, limit)) and now >= asked:
        near = min(near, now)  # v1 kills no process at its cap
    wanted = max(asked, near // PAGE * PAGE)
    change = ledger.change(limit, str(wanted))
    own = wanted if change is None else cgroupfs.limit_of(change.old.encode())
    if own is not None and own <= wanted:
        ledger.put_back(limit, companion)
        return own, {}
    return wanted, {companion: ledger.change(companion, "1"), limit: change}


def _in_force(ledger: BrakeLedger, limit: str) -> int:
    """The cap of ours that is there; 0 for none. Raises OSError."""
    change = ledger.changes.get(limit)
    return int(change.written[-1]) if change is not None and ledger.files[limit].read() == change.written[-1] else 0


def put_limit(
    ledger: BrakeLedger, cap: int, usage: Callable[[], int | None], others: Planned, *, again: bool = False
) -> int:
    """Cap the pod; the cap that is in force then (bytes; 0: none, or v1 refuses every one). ``usage``: of the pod now;
    ``others``: changes that follow, which are noted with it. ``again`` as above. Raises OSError.
    """
    for attempt in range(_TRIES):
        wanted, planned = plan_limit(ledger, cap, usage() or 0, attempt, again=again)
        ledger.expect({**planned, **others})
        try:
            ledger.write(planned)
            return wanted
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
    ledger.put_back(*LIMIT_FILES, *COMPANIONS)
    return 0


#: What is in force. `HIGH`: on v2.
LIMIT, HIGH, FREEZE = "limit", "high", "freeze"
_HIGH_FILE = "memory.high"
_FROZEN = {"cgroup.freeze": "1", "freezer.state": "FROZEN"}
_FREEZE_FILES = tuple(_FROZEN)
#: Processes in one check for SIGKILL, by the hot thread, 30 us each. A pod may have thousands.
PROCESSES = 64
#: ... and the time after which a check ends, however long one of them took.
_MOST_NS = 1_000_000


class PodBrake:
    """The brake of one pod, with everything open. One thread uses it; no method raises."""

    def __init__(self, uid: str, cgroup: Path, hierarchy: cgroupfs.Hierarchy, journal: Ledger) -> None:
        self.uid, self.cgroup = uid, cgroup
        #: Why it cannot be braked; "" if it can.
        self.problem = ""
        self.is_held = self.is_capped = False  # the second: with a cap of ours, or a lower limit of its own
        self._hierarchy = hierarchy
        #: Whether a held pod runs at this moment; when it was checked, and when the open files were (CLOCK_MONOTONIC).
        #: Set by `monitor.hold.brakes`.
        self.runs, self.looked_ns, self.opened_ns = False, 0, 0
        self._usage = -1
        self._ledger = BrakeLedger(uid, journal)
        self._kills = PendingKills(cgroup)
        #: From now on the helper sets memory.high, until the release (a soft brake).
        self.high_is_left = False
        self.refresh()

    def refresh(self) -> None:
        """Open what is not open yet, unless it is held. Not in the moment of a crossing: 0.3 ms."""
        if self.is_held or not self.is_clear:
            return
        try:
            if self._ledger.directory >= 0 and not self.problem:
                is_same = os.fstat(self._ledger.directory).st_ino == os.stat(self.cgroup).st_ino
                if is_same and not has_spared(self.cgroup, self._hierarchy):
                    return
            self._close()
            self.problem = self._open()
        except OSError as error:
            self._close()
            where = f"{error.filename}: " if error.filename else ""
            self.problem = f"{where}{error.strerror}"

    def adopt(self) -> bool:
        """Continue what an earlier daemon put in force, if it is there still and this one has the same brakes. The pod
        does not grow meanwhile; `apply` and `release` treat the brake as ours.
        """
        if self.is_held:
            return False
        try:
            self._close()
            self.problem = self._open(adopting=True)
            if not self.problem:
                self._ledger.adopt()
        except (OSError, *WRONG) as error:
            self.problem = str(error)
        self.is_held = bool(self._ledger.changes)
        if not self.is_held:
            self._close()
            self.problem = self.problem or LEFT
        return self.is_held

    @property
    def is_clear(self) -> bool:
        """Whether all files have their old values: after `release` not where the kernel refuses."""
        return not self._ledger.changes

    @property
    def since_ns(self) -> int:
        """When it was held first (CLOCK_MONOTONIC), perhaps by an earlier daemon; 0: it is not."""
        return self._ledger.since_ns

    @property
    def kind(self) -> str:
        """What `apply` puts in force, of `LIMIT`, `HIGH` and `FREEZE`, with a + between; "" for nothing."""
        if self.problem:
            return ""
        parts = ((LIMIT, LIMIT_FILES), (HIGH, (_HIGH_FILE,)), (FREEZE, _FREEZE_FILES))
        return joined(*((name, self._ledger.file(files)) for name, files in parts))

    def apply(self, cap: int) -> Braked | None:
        """Stop the growth at ``cap`` bytes, or `ROOM` above its usage if that is more; None where nothing is in force.
        While it is held: another cap, and again what another program removed.
        """
        return self._brake(cap, freeze=True)

    def loosen(self, cap: int) -> Braked | None:
        """Let it grow up to ``cap`` bytes; None where it has no cap then. v2 kills at the cap: `apply` before."""
        return self._brake(cap, freeze=False)

    def _brake(self, cap: int, freeze: bool) -> Braked | None:
        if panics_at_cap(self._hierarchy.version):
            self.problem = PANICS
        usage = None if self.problem else self.usage()
        if usage is None:
            self.problem = self.problem or "its cgroup is gone"
            return None
        self._ledger.since_ns = self.since_ns or time.monotonic_ns()
        capped, slowed, frozen = 0, False, False
        try:
            high = self._tried(lambda: self._plan_high(usage)) if freeze else {}
            freezer = (self._tried(self._plan_freeze) if freeze else None) or {}
            capped = put_limit(self._ledger, cap, self.usage, {**(high or {}), **freezer}, again=bool(freezer))
            if freeze:
                slowed = high is not None and self._write(high)
                # The last, because it may wait for the lock of all cgroups.
                frozen = bool(freezer) and self._write(freezer)
            else:
                self._ledger.put_back(*(() if self.high_is_left else (_HIGH_FILE,)), *_FREEZE_FILES)
        except OSError as error:
            TROUBLES.note("cgroup", error, self.uid)
        self.is_held, self.is_capped = bool(capped or frozen), bool(capped)
        if not self.is_held:
            self.release()
            return None
        return Braked(joined((LIMIT, capped), (HIGH, slowed), (FREEZE, frozen)), capped)

    def _plan_freeze(self) -> Planned:
        """Nothing where there is no freezer. Raises OSError, also where it is gone."""
        name = self._ledger.file(_FREEZE_FILES)
        return {} if name is None else {name: self._ledger.change(name, _FROZEN[name])}

    def _plan_high(self, usage: int) -> Planned | None:
        """Throttle allocations in system calls with memory.high; None where that is not possible. Raises OSError."""
        ledger = self._ledger
        file = ledger.files.get(_HIGH_FILE)
        if file is None or self.high_is_left:
            return None
        now, change = file.read(), ledger.changes.get(_HIGH_FILE)
        if change is not None and now == change.written[-1]:  # a second write might reclaim
            return {}
        wanted, own = slow_at(usage, ROOM), cgroupfs.limit_of(now.encode())
        if own is not None and own <= wanted:
            ledger.put_back(_HIGH_FILE)  # another program's by now, if it was ours
            return {}
        return {_HIGH_FILE: ledger.change(_HIGH_FILE, str(wanted))}

    def _write(self, planned: Planned) -> bool:
        def write() -> bool:
            self._ledger.write(planned)
            return True

        return bool(self._tried(write))

    def _tried(self, step: Callable[[], T]) -> T | None:
        """What ``step`` gives; None where the kernel refuses something in it."""
        try:
            return step()
        except OSError as error:
            TROUBLES.note("cgroup", error, self.uid)
            return None

    def in_force(self) -> bool:
        """Whether all that was written is there still: a runtime that thaws, or a limit that was changed, ends it."""
        try:
            return self.is_held and all(
                self._ledger.files[name].read() == change.written[-1]
                for name, change in self._ledger.changes.items()
                if not (name == _HIGH_FILE and self.high_is_left)
            )
        except OSError:
            return False

    def usage(self) -> int | None:
        """Bytes charged to the pod; None where its cgroup is gone, or was never opened."""
        try:
            return int(os.pread(self._usage, 32, 0))
        except (OSError, ValueError):
            return None

    def waits_for_thaw(self) -> bool:
        """Whether a SIGKILL waits in v1's freezer. Checks a part of the processes (`PendingKills`)."""
        return "freezer.state" in self._ledger.changes and bool(self._tried(self._kills.look))

    def thaw(self) -> None:
        """Let it run, below its cap if it has one."""
        self._ledger.put_back(*_FREEZE_FILES)

    def release(self) -> list[tuple[str, str]]:
        """Restore everything: (file, what became of it). What the kernel refuses to undo stays in the ledger."""
        self.is_held, self.high_is_left, self._ledger.since_ns = False, False, 0
        return self._ledger.put_back()

    def close(self) -> None:
        self.release()
        self._close()

    def _open(self, adopting: bool = False) -> str:
        """Why it cannot be braked; "" if it can. Raises OSError."""
        if has_spared(self.cgroup, self._hierarchy):
            return "outrace or what started it runs in it"
        if panics_at_cap(self._hierarchy.version):
            return PANICS
        v2 = self._hierarchy.version == 2
        ledger = self._ledger
        obstacle = ledger.open(self.cgroup)
        usage = self.cgroup / ("memory.current" if v2 else "memory.usage_in_bytes")
        self._usage = os.open(usage, os.O_RDONLY | os.O_CLOEXEC)
        if obstacle and not adopting:
            return obstacle
        if v2 or not any_disabled(self.cgroup):
            at = 0 if v2 else 1
            for name in (LIMIT_FILES[at], COMPANIONS[at], *([_HIGH_FILE] if v2 else [])):
                ledger.files[name] = BrakeFile(self.cgroup, name)
        try:
            self._open_freezer(v2)
        except OSError:
            if not ledger.files:
                raise
        return "" if ledger.files else "v1's freezer is not mounted"

    def _open_freezer(self, v2: bool) -> None:
        """v1 has it in a hierarchy of its own, in which runtimes give a pod the same path. Raises OSError."""
        root = self._hierarchy.root if v2 else cgroupfs.freezer()
        if root is not None:
            name = _FREEZE_FILES[0 if v2 else 1]
            self._ledger.files[name] = BrakeFile(root / self.cgroup.relative_to(self._hierarchy.root), name)

    def _close(self) -> None:
        self._ledger.close()
        with suppress(OSError):
            os.close(self._usage)
        self._usage = -1


class PendingKills:
    """Looks in rounds for a SIGKILL that waits in a process of one pod, a part in each call."""

    def __init__(self, cgroup: Path) -> None:
        self._cgroup = cgroup
        self._round: Iterator[int] | None = None

    def _processes(self) -> Iterator[int]:
        """Of one round, after a 0 for each cgroup."""
        for _, pids in walk(self._cgroup):
            yield 0
            yield from pids

    def look(self) -> bool:
        """Whether one is pending in one of the next processes. Raises OSError."""
        self._round = self._round or self._processes()
        processes, cgroups, end_ns = PROCESSES, CGROUPS, time.monotonic_ns() + _MOST_NS
        for pid in self._round:  # each check makes progress, however slow the CPU
            if pid and _is_killed(pid):
                break
            processes, cgroups = (processes - 1, cgroups) if pid else (processes, cgroups - 1)
            if not (processes and cgroups) or time.monotonic_ns() >= end_ns:
                return False
        else:
            pid = 0
        self._round = None
        return pid > 0


def _is_killed(pid: int) -> bool:
    try:
        return kill_pends(stat_fields(f"/proc/{pid}"))
    except (OSError, IndexError, ValueError):
        return False  # it has ended
