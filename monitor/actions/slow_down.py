"""memory.high of a held pod far below its usage, set by a thread: before Linux 6.16 that reclaims in the writer.

The kernel puts the value in force before it reclaims (memory_high_write), so a system call of the pod sleeps from then
on, and only this thread waits, up to 2.2 s. Asked by a message, the side came to it after 8 to 40 ms in a busy guest,
and a call that had 4 MiB to go was at its cap by then.

What is written is in the hold's note already (`monitor.actions.ledger`), and so comes back after a SIGKILL. Where
the hold is over by the time it is written it is taken back here: the note says so before anybody puts back the old
value, and goes when the thread has come to it (`SlowDowns.is_done`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple

from monitor.actions.brake_file import BrakeFile
from monitor.actions.changes import Change, value_of
from monitor.actions.ledger import HELD, Ledger
from monitor.kernel.sched import hurry
from monitor.kernel.troubles import TROUBLES

HIGH = "memory.high"
_FIFO = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
_LIBC = ctypes.PyDLL(None)
#: The hot thread waits so long for the write, seconds: 0.3 ms in an emulated guest. While it went on instead the thread
#: got the interpreter 8 to 40 ms later.
_WAIT_S = 0.003
_LOOK_S = 0.00005
#: Asked for and not done: more are not taken. Two descriptors each.
MOST = 64


class SlowDown(NamedTuple):
    """One value to write. ``file``, ``directory``: descriptors of its own, of the pod's memory.high and cgroup;
    ``change``: as it is written down, with the value that is there now last; ``low``: bytes.
    """

    uid: str
    file: int
    directory: int
    change: Change
    low: int


class SlowDowns:
    """Writes them, one after the other, by a thread that ends with the process. One thread uses this."""

    def __init__(self, journal: Ledger) -> None:
        self._journal = journal
        self._queue: SimpleQueue[SlowDown] = SimpleQueue()
        self._begun: SimpleQueue[None] = SimpleQueue()
        self._asked = self._done = 0
        self._thread = Thread(target=self._run, name="slow downs", daemon=True)
        self._thread.start()

    def begin(self, uid: str, file: BrakeFile, late: int, directory: int, change: Change, low: int) -> int:
        """Have ``low`` written, unless something else than the last of ``change`` is there by then. A number for
        `is_done`; 0 where it is not taken.
        ``late``: descriptor of ``file`` that nobody else uses: the kernel lets who reads by one wait for who writes by
        it. Returns when it is in force or not needed, or after `_WAIT_S`; at once while another pod's is written.
        Raises OSError.
        """
        waiting = self._asked - self._done
        if waiting >= MOST or not self._thread.is_alive():
            return 0
        mine = os.dup(late)
        try:
            wanted = SlowDown(uid, mine, os.dup(directory), change, low)
        except OSError:
            os.close(mine)
            raise
        self._asked += 1
        if waiting:
            self._queue.put(wanted)
            return self._asked
        while not self._begun.empty():
            self._begun.get()
        with _one_step_behind(self._thread):
            self._queue.put(wanted)
            deadline = time.monotonic() + _WAIT_S
            with suppress(Empty):
                self._begun.get(timeout=_WAIT_S)
            # On one CPU this thread goes on before the other is in the kernel.
            while self._asked != self._done and file.read() != str(low) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
        return self._asked

    def is_done(self, number: int) -> bool:
        """Whether the thread writes it no more."""
        return self._done >= number or not self._thread.is_alive()

    def finish(self, until_ns: int) -> None:
        """Wait until then for what is about to be written: the process ends, and only the next start would take it
        back.
        """
        while not self.is_done(self._asked) and time.monotonic_ns() < until_ns:
            time.sleep(_LOOK_S)

    def _run(self) -> None:
        while True:
            hurry()  # for where this process is no real-time one
            wanted = self._queue.get()
            try:
                slow_down(wanted, self._journal, lambda: self._begun.put(None))
            except OSError as error:
                TROUBLES.note("cgroup", error, wanted.uid)
            except MemoryError:  # there may be none when a pod is held: the thread is to last
                TROUBLES.note("cgroup", OSError(errno.ENOMEM, "no memory"), wanted.uid)
            finally:
                os.close(wanted.file)
                os.close(wanted.directory)
                self._done += 1
                self._begun.put(None)  # also where nothing was to be written


@contextmanager
def _one_step_behind(thread: Thread) -> Iterator[None]:
    """Where the calling thread is a real-time one another is too, on the same CPU: it runs as soon as this one waits.
    As an ordinary one it waited 4 ms and more in a guest, for the pod's processes or for others. (Linux 5.3 to 6.4 may
    wait here for a container that starts, cpuset_read_lock; the pod is frozen by then.)
    """
    policy, other = os.sched_getscheduler(0), thread.native_id
    if policy != _FIFO or other is None:
        yield
        return
    mine, cpus = os.sched_getparam(0).sched_priority, os.sched_getaffinity(0)
    try:
        _set(os.sched_setscheduler, 0, _FIFO, os.sched_param(mine + 1))
        _set(os.sched_setscheduler, other, _FIFO, os.sched_param(mine))
        _set(os.sched_setaffinity, other, {_LIBC.sched_getcpu()})
        yield
    finally:
        # Without the flag that would take CAP_SYS_NICE.
        _set(os.sched_setscheduler, other, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        _set(os.sched_setaffinity, other, cpus)
        _set(os.sched_setscheduler, 0, _FIFO, os.sched_param(mine))


def _set(call: Callable[..., None], *arguments: object) -> None:
    with suppress(OSError, ValueError):  # what is refused costs time, no more
        call(*arguments)


def slow_down(wanted: SlowDown, journal: Ledger, begun: Callable[[], object] = lambda: None) -> bool:
    """Write it; whether it is in force. May block for seconds. ``begun`` is called right before. Raises OSError."""
    if _read(wanted.file) != wanted.change.written[-1]:
        return False  # the pod is released, or somebody has set another value
    text = str(wanted.low)
    begun()  # the caller goes on when the interpreter is free
    _write(wanted.file, text)
    if _is_noted(wanted, journal):
        return True
    if _read(wanted.file) == str(wanted.low):  # else the release has put it back already
        _write(wanted.file, wanted.change.old)
    return False


def _read(file: int) -> str:
    return value_of(HIGH, os.pread(file, 4096, 0).decode(errors="replace"))


def _write(file: int, value: str) -> None:
    os.pwrite(file, value.encode(), 0)


def _is_noted(wanted: SlowDown, journal: Ledger) -> bool:
    """Whether this very cgroup is held, and what was written will come back."""
    try:
        changes = journal.changes(wanted.directory)
    except ValueError:
        return False
    made = wanted.change
    return any(
        (c.file, c.identity, c.why) == (HIGH, made.identity, HELD) and str(wanted.low) in c.written for c in changes
    )
