"""A pod that can be killed at once: its processes' pidfds are open, and its cgroup.kill.

cgroup v2: one write of ``1`` to ``cgroup.kill`` (Linux 5.14), which also catches processes forked meanwhile. cgroup
v1: ``pidfd_send_signal`` to every process (45 us a call under load, measured), then the cgroups are read again until
no process is left. A pidfd never signals a stranger, also when the pid was used again: the call fails with ESRCH.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

from monitor.kernel.cgroup_procs import KeptProcesses
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.procfs import Process, is_kernel_thread, with_ancestors
from monitor.kernel.troubles import TROUBLES

#: Processes of one pod that descriptors are kept for; the limit of descriptors is raised at the start as far as it
#: goes. A pod may have more: descriptors of processes that got their SIGKILL are closed for those that did not.
MAX_PIDFDS = 4096
#: A look at a pod of thousands of cgroups is made in parts of so long, but of no fewer cgroups: a look at a pod of
#: ordinary size is whole. (One cgroup takes 15 us, and 5 ms where the CPU is emulated or busy.)
_PART_NS, _PART_CGROUPS = 5_000_000, 8
#: Descriptors opened in one look (6 ms, and as much for their signals); the next goes on where more are needed.
_OPEN = 512
#: Descriptors given back when the process has no more (EMFILE): as many as reading cgroups and serving the rest takes.
_SPARE_FDS = 32
#: Signals are sent for this long, then the rings are read, then it goes on: 4,096 SIGKILLs take 20 ms, under load 180.
_SEND_NS = 5_000_000
_AT_ONCE = 64  # signals between two looks at the clock
#: Never signalled, whatever a manifest says. The hot process adds the side.
SPARED = with_ancestors()
#: A look takes at most a fifth of the time, because the hot process runs ahead of all others.
REST = 4


def has_spared(cgroup: Path, hierarchy: Hierarchy) -> bool:
    """Whether one of `SPARED` runs in a memory cgroup, or below it."""
    for pid in SPARED.pids():
        with Process(pid) as process:
            path = process.memory_cgroup(hierarchy)
        if path is not None and path.is_relative_to(cgroup):
            return True
    return False


class Victim:
    """A pod ready to be killed: descriptors open, nothing left to look up."""

    def __init__(self, uid: str, cgroup: Path, version: int) -> None:
        self.uid, self.cgroup = uid, cgroup
        self.prepared_ns = 0
        self.pidfds: dict[int, int] = {}
        self.refused = 0  # signals that CAP_KILL would have been needed for
        self.unfinished = False  # more to do at once: processes without a descriptor, or without their signal
        self.found = 0  # processes that the last look had not known
        self.is_empty = False  # whether the last look, when it was complete, found no process at all
        self.rest_ns = 0  # the pause before the next part of a look that is not urgent
        self._cgroups = KeptProcesses(cgroup, version)
        self._walk: Generator[tuple[str, set[int]]] | None = None  # a look that is not complete
        self._seen: set[int] = set()  # by it
        self._left = False  # it found some that there was no descriptor for
        self.spared: set[int] = set()  # in the pod, but never signalled
        self._signalled: dict[int, signal.Signals] = {}  # pid -> the last signal it was sent, so that it is sent once
        self._let_go: set[int] = set()  # had their SIGKILL, and their descriptor was needed for another
        self._limit = MAX_PIDFDS  # lower where the process may not have so many
        self._kill_fd = -1
        if version == 2:
            with suppress(OSError):  # before Linux 5.14, or the cgroup is gone: pidfds do it
                self._kill_fd = os.open(cgroup / "cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)

    def refresh(self, forget: bool = True) -> None:
        """Open a pidfd for every process now in the pod's cgroups, as far as they go; ``forget`` those that left.

        For `_PART_NS` at a time, or `_PART_CGROUPS`: what is left is gone on with by the next call, and `is_partial`
        until then. Never raises OSError: what cannot be looked at now is as it was, and noted.
        """
        began = time.monotonic_ns()
        if self._walk is None:
            self._walk, self._seen, self._left = self._cgroups.walk(), set(), False
        self.found = opened = 0
        try:
            for number, (directory, pids) in enumerate(self._walk, 1):
                self._seen |= pids
                opened += self._open(pids, directory)
                if opened >= _OPEN or (number >= _PART_CGROUPS and time.monotonic_ns() - began > _PART_NS):
                    self.unfinished, self.is_empty = True, False
                    break
            else:
                self._walked(forget)
        except OSError as error:
            TROUBLES.note("cgroup", error, self.uid)
            self._walk, self.unfinished, self.is_empty = None, False, False  # begun anew by the next call
        self.prepared_ns = time.monotonic_ns()
        self.rest_ns = REST * (self.prepared_ns - began)

    def _walked(self, forget: bool) -> None:
        """All cgroups of the pod were looked at."""
        self._walk = None
        self.is_empty = not self._seen
        self.spared = self._seen & SPARED.pids()
        if forget:
            for pid in self.pidfds.keys() - self._seen:
                self._forget(pid)
        self._let_go &= self._seen
        self.unfinished = self._left

    def _open(self, pids: set[int], directory: str) -> int:
        """Open a pidfd for those of ``pids``, in cgroup ``directory``, that have none; how many were opened."""
        unknown = self._without_spared(pids) - self.pidfds.keys()
        unsignalled = unknown - self._let_go
        self._make_room(min(len(unsignalled), _OPEN))
        fresh: set[int] = set()
        for pid in (*unsignalled, *(unknown & self._let_go)):
            if len(self.pidfds) >= self._limit or len(fresh) >= _OPEN or not self._open_one(pid, fresh):
                self._left |= pid in unsignalled  # signalled first are those before it; then their places are free
                break
        if fresh:
            # The pid may have been used again between reading and opening: only one that is still listed is right.
            # Where that cannot be read, none counts as listed.
            for pid in fresh - self._still_in(directory):
                self._forget(pid)
        self.found += len(fresh & unsignalled)
        self._let_go -= fresh
        return len(fresh)

    def _without_spared(self, pids: set[int]) -> set[int]:
        """Those of ``pids`` that may be signalled; the others are noted, and have no descriptor any more."""
        spared = pids & SPARED.pids()
        if spared:
            self.spared |= spared
            for pid in self.pidfds.keys() & spared:
                self._forget(pid)
            self._close_kill()  # cgroup.kill would take them too
        return pids - spared

    def _open_one(self, pid: int, fresh: set[int]) -> bool:
        """Open a pidfd and note it in ``fresh``; False where no more descriptors are to be had."""
        if is_kernel_thread(pid):
            return True
        try:
            self.pidfds[pid] = os.pidfd_open(pid)
            fresh.add(pid)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                TROUBLES.note("pidfd", error, self.uid)
                self._give_back(fresh)
                return False
            # Gone, or a thread of a process that is leaving (EINVAL; since Linux 6.15 ENOENT).
            if error.errno not in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
                TROUBLES.note("pidfd", error, self.uid)
        return True

    def _still_in(self, directory: str) -> set[int]:
        try:
            return self._cgroups.pids_in(directory)
        except OSError as error:
            TROUBLES.note("cgroup", error, self.uid)
            return set()

    def _make_room(self, wanted: int) -> None:
        """Close descriptors for ``wanted`` others: of ended processes, then of those that got a SIGKILL."""
        if len(self.pidfds) + wanted <= self._limit:
            return
        alive = set(self.alive())
        for pid in self.pidfds.keys() - alive:
            self._forget(pid)
        excess = len(self.pidfds) + wanted - self._limit
        killed = [pid for pid in self.pidfds if self._signalled.get(pid) == signal.SIGKILL]
        for pid in killed[: max(0, excess)]:
            self._forget(pid)
            self._let_go.add(pid)

    def _give_back(self, fresh: set[int]) -> None:
        """The process has no more descriptors: never hold as many again."""
        last = list(self.pidfds)[-_SPARE_FDS:]
        for pid in last:
            self._forget(pid)
            fresh.discard(pid)
        self._limit = max(1, len(self.pidfds))

    def _forget(self, pid: int) -> None:
        os.close(self.pidfds.pop(pid))
        self._signalled.pop(pid, None)

    @property
    def is_partial(self) -> bool:
        """Whether it has processes without a descriptor that the next look would open one for."""
        return self._walk is not None or (self.unfinished and len(self.pidfds) < self._limit)

    @property
    def is_blind(self) -> bool:
        """Whether there is nothing to kill by: no process was there when it was prepared, and no cgroup.kill."""
        return not self.pidfds and self._kill_fd < 0

    def populated(self) -> bool | None:
        """Whether anybody runs in the pod's cgroup or below it; None where the kernel does not say (cgroup v1)."""
        return self._cgroups.populated()

    def kill(self) -> None:
        """SIGKILL everything. Reads no file, but for a pod that is not looked through yet."""
        self.send(signal.SIGKILL)
        if self._walk is not None and self._kill_fd >= 0 and SPARED.within(self.cgroup):
            self._close_kill()  # the look had not come to them
        # After the pidfds, because it takes the lock of all cgroups, and that may be held for a while when containers
        # come and go.
        if self._kill_fd >= 0:
            try:
                os.write(self._kill_fd, b"1")
            except OSError:
                pass  # the cgroup was removed (ENODEV): its processes got the signal by pidfd

    def send(self, number: signal.Signals) -> None:
        """Signal every prepared process that was not sent this already; `unfinished` where that takes too long.
        `refused` counts those that may not be signalled.
        """
        until_ns = time.monotonic_ns() + _SEND_NS
        sent = 0
        for pid, fd in self.pidfds.items():
            if self._signalled.get(pid) == number:
                continue
            if sent and not sent % _AT_ONCE and time.monotonic_ns() > until_ns:
                self.unfinished = True
                return
            sent += 1
            self._signalled[pid] = number
            try:
                signal.pidfd_send_signal(fd, number)
            except ProcessLookupError:
                pass
            except PermissionError:
                self.refused += 1
            except OSError as error:
                del self._signalled[pid]  # not sent: the next look does
                TROUBLES.note("signal", error, self.uid)

    def alive(self) -> list[int]:
        """Prepared processes that have not ended, wherever they are now. (A zombie has ended.)"""
        poller = select.poll()
        for fd in self.pidfds.values():
            poller.register(fd, select.POLLIN)
        try:
            ended = {fd for fd, _ in poller.poll(0)}
        except OSError as error:
            TROUBLES.note("poll", error, self.uid)
            ended = set()  # not known to have
        return [pid for pid, fd in self.pidfds.items() if fd not in ended]

    def close(self) -> None:
        if self._walk is not None:
            self._walk.close()
            self._walk = None
        for pid in list(self.pidfds):
            self._forget(pid)
        self._close_kill()
        self._cgroups.close()

    def _close_kill(self) -> None:
        if self._kill_fd >= 0:
            os.close(self._kill_fd)
            self._kill_fd = -1
