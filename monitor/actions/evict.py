"""Killing a whole pod, fast: everything is prepared before it is needed, and finished until its cgroups are empty.

cgroup v2: one write of ``1`` to ``cgroup.kill`` (Linux 5.14), which also catches processes forked meanwhile. cgroup
v1: a pidfd for every process, opened ahead; ``pidfd_send_signal`` to each (45 us a call under load, measured), then
the cgroups are read again until nobody is left. A pidfd never signals a stranger: if its process is gone the call
fails with ESRCH, also when the pid was used again.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

#: After this long a killed process that still holds memory is helped by process_mrelease (it may be throttled or
#: frozen).
REAP_AFTER_NS = 20_000_000


class Victim:
    """A pod ready to be killed: descriptors open, nothing left to look up."""

    def __init__(self, uid: str, cgroup: Path, version: int) -> None:
        self.uid = uid
        self.cgroup = cgroup
        self.prepared_ns = 0
        self.pidfds: dict[int, int] = {}
        self._told: dict[int, signal.Signals] = {}  # pid -> the last signal it was sent: nobody is signalled twice
        self._kill_fd = -1
        self._version = version
        if version == 2:
            try:
                self._kill_fd = os.open(cgroup / "cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
            except OSError:
                pass  # before Linux 5.14, or the cgroup is gone: pidfds do it

    def refresh(self) -> None:
        """Open a pidfd for every process now in the pod's cgroups; close those of processes that left."""
        pids = pids_below(self.cgroup)
        for pid in self.pidfds.keys() - pids:
            os.close(self.pidfds.pop(pid))
        fresh = pids - self.pidfds.keys()
        for pid in fresh:
            try:
                self.pidfds[pid] = os.pidfd_open(pid)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    break  # a fork bomb: these die first, the rest is met when the cgroups are read again
                if error.errno not in (errno.ESRCH, errno.EINVAL):  # gone, or a thread of a process that is leaving
                    raise
        if fresh:
            # The pid may have been used again between reading and opening: only who is still listed is who was meant.
            for pid in fresh - pids_below(self.cgroup):
                if pid in self.pidfds:
                    os.close(self.pidfds.pop(pid))
        self.prepared_ns = time.monotonic_ns()

    def kill(self) -> int:
        """SIGKILL everything; how many signals (or 1 for cgroup.kill) went out. Reads no file."""
        if self._kill_fd >= 0:
            try:
                os.write(self._kill_fd, b"1")
                return 1
            except OSError:
                pass  # the cgroup was removed (ENODEV): whatever was in it is gone or was moved; pidfds know
        return self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> int:
        """Signal every prepared process that was not sent this already; how many got it."""
        sent = 0
        for pid, fd in self.pidfds.items():
            if self._told.get(pid) == number:
                continue
            self._told[pid] = number
            try:
                signal.pidfd_send_signal(fd, number)
                sent += 1
            except ProcessLookupError:
                pass
        return sent

    def close(self) -> None:
        for fd in self.pidfds.values():
            os.close(fd)
        self.pidfds.clear()
        if self._kill_fd >= 0:
            os.close(self._kill_fd)
            self._kill_fd = -1


def pids_below(cgroup: Path) -> set[int]:
    """Processes of a cgroup and of every cgroup below it; a cgroup that vanishes meanwhile has none."""
    pids: set[int] = set()
    stack = [os.fspath(cgroup)]
    while stack:
        directory = stack.pop()
        try:
            with open(f"{directory}/cgroup.procs", "rb", buffering=0) as file:
                pids.update(int(line) for line in _read_all(file.fileno()).split())
            with os.scandir(directory) as entries:
                stack.extend(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.EOPNOTSUPP):  # removed while open; threaded v2 cgroup
                raise
    pids.discard(0)  # a process of another pid namespace
    return pids


def _read_all(fd: int) -> bytes:
    chunks = []
    while chunk := os.read(fd, 65536):
        chunks.append(chunk)
    return b"".join(chunks)


class Eviction:
    """One pod being evicted, from the first signal until nobody is left in its cgroups."""

    def __init__(self, victim: Victim, grace_s: int, usage_before: int) -> None:
        self.victim = victim
        self.decision: dict[str, object] = {}  # what is reported of it, filled in after the signals went out
        self.grace_ns = grace_s * 1_000_000_000
        self.usage_before = usage_before
        if grace_s > 0:
            # Nobody hurries here, and who came since the pod was prepared is to be asked too. Later ones are not: they
            # may be what cleans up.
            victim.refresh()
        self.pids: set[int] = set(victim.pidfds)
        self.started_ns = time.monotonic_ns()
        self.kill_at_ns: int | None = self.started_ns + self.grace_ns if grace_s > 0 else None
        self.killed_ns: int | None = None
        self.reap_sent = False
        if self.kill_at_ns is None:
            self._kill()
        else:
            victim.send(signal.SIGTERM)
        self.signalled_ns = time.monotonic_ns()

    def _kill(self) -> None:
        self.victim.kill()
        self.killed_ns = time.monotonic_ns()
        self.kill_at_ns = None

    def hurry(self) -> None:
        """End the grace now."""
        if self.kill_at_ns is not None:
            self._kill()

    def step(self, now_ns: int) -> bool:
        """Go on with it; True when the pod's cgroups are empty."""
        if self.kill_at_ns is not None and now_ns >= self.kill_at_ns:
            self._kill()
        if not pids_below(self.victim.cgroup):
            return True
        self.victim.refresh()
        self.pids.update(self.victim.pidfds)
        if self.killed_ns is not None:
            self.victim.kill()  # who was forked since
        return False

    def deadline_ns(self, now_ns: int) -> int:
        """When to look again even if no process reports its end."""
        soon = now_ns + (2_000_000 if self.killed_ns is not None else 50_000_000)
        return min(soon, self.kill_at_ns) if self.kill_at_ns is not None else soon

    def to_reap(self, now_ns: int) -> list[int]:
        """Pids to hand to process_mrelease: once, when a killed pod is still there after a while."""
        if self.killed_ns is None or self.reap_sent or now_ns - self.killed_ns < REAP_AFTER_NS:
            return []
        self.reap_sent = True
        return sorted(self.pids)

    def pidfds(self) -> Iterable[int]:
        return self.victim.pidfds.values()
