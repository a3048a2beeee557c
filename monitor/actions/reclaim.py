"""Cleaning up the node before a pod must go for a full disk: the commands an operator configured for it.

The kubelet removes dead containers and unused images itself. outrace leaves that to the container runtime's own tools
(``crictl rmi --prune``), or to whatever frees space on a plain VM. A clean-up that fails is logged and the pass goes
on, as in the kubelet: the disk is measured again afterwards, and that decides.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from monitor.actions.oomadj import Logger
from monitor.kernel.procfs import Process
from monitor.kernel.sched import take_time

#: The kubelet gives one call to the container runtime 2 minutes (runtimeRequestTimeout).
TIMEOUT_S = 120.0
#: Bytes of what a command wrote last, in which its last line is looked for.
_TAIL = 4096


class Reclaimer:
    """Runs the commands of actions, one after the other, on a thread of its own that lives as long as they do.

    ``commands``: action -> argv, empty for an action nobody configured. ``done(actions)`` is called from the thread
    when all the actions of a request have been gone through, whatever became of them; without ``enforce`` it is called
    too, but nothing is run.
    """

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        enforce: bool,
        done: Callable[[tuple[str, ...]], None],
        log: Logger,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._commands, self._enforce, self._timeout_s = commands, enforce, timeout_s
        self._done, self._log = done, log
        self._lock = threading.Lock()
        self._queue: list[tuple[str, ...]] = []  # the first is under way
        self._thread: threading.Thread | None = None
        self._closing = os.eventfd(0, os.EFD_CLOEXEC)
        self._closed = False

    def request(self, actions: Sequence[str]) -> None:
        """Go through ``actions`` in order. The same actions asked for again before they are done are done once."""
        wanted = tuple(actions)
        with self._lock:
            if self._closed or wanted in self._queue:
                return
            self._queue.append(wanted)
            if len(self._queue) > 1:
                return
            self._thread = threading.Thread(target=self._run, name="reclaim", daemon=True)
            self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a clean-up is under way."""
        return bool(self._queue)

    def close(self, timeout_s: float = 2.0) -> None:
        """Kill the command that runs, and run no more."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
        os.eventfd_write(self._closing, 1)
        if thread is not None:
            thread.join(timeout_s)
        if thread is None or not thread.is_alive():
            os.close(self._closing)

    def _run(self) -> None:
        take_time()
        while True:
            actions = self._queue[0]
            for action in actions:
                argv = self._commands.get(action, ())
                if argv and self._enforce and not self._closed:
                    self._clean(action, argv)
            with self._lock:
                self._queue.pop(0)
                more = bool(self._queue) and not self._closed
            if not self._closed:
                self._done(actions)
            if not more:
                return

    def _clean(self, action: str, argv: Sequence[str]) -> None:
        fields: dict[str, object] = {"action": action, "command": shlex.join(argv)}
        began = time.monotonic()
        try:
            status, output = run(argv, self._timeout_s, self._closing)
        except (OSError, ValueError) as error:  # ValueError: a NUL in it
            self._log("error", "clean-up could not be started", **fields, problem=str(error))
            return
        fields["took_s"] = round(time.monotonic() - began, 3)
        if status == 0:
            self._log("info", "clean-up done", **fields)
        elif status is None:
            self._log("error", "clean-up killed: it did not end in time", **fields, output=output)
        else:
            self._log("error", "clean-up failed", **fields, status=status, output=output)


def run(argv: Sequence[str], timeout_s: float, stop_fd: int) -> tuple[int | None, str]:
    """Run a command to its end: (status, negative for a signal; the last line it wrote).

    The status is None if it was killed, with everything it had started in its process group, after ``timeout_s``
    seconds or because ``stop_fd`` became readable. Raises OSError or ValueError if it cannot be started.
    """
    reader, writer = os.pipe()
    try:
        try:
            # A session of its own, so that its children can be killed with it, and no terminal can be asked.
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer, start_new_session=True
            )
        finally:
            os.close(writer)
        _make_ordinary(process.pid)
        os.set_blocking(reader, False)
        pidfd = os.pidfd_open(process.pid)
        try:
            in_time, tail = _follow(pidfd, reader, stop_fd, time.monotonic() + timeout_s)
        finally:
            os.close(pidfd)
        if not in_time:
            # Not reaped yet, so the pid, and the group with its number, are still this command's.
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
    finally:
        os.close(reader)
    last = tail.decode(errors="replace").rstrip().rpartition("\n")[2].strip()
    return status if in_time else None, last


def _make_ordinary(pid: int) -> None:
    """A clean-up is no part of the monitor: where that is spared by the OOM killer, this is not."""
    with Process(pid) as process:
        if (process.oom_score_adj() or 0) < 0:
            process.set_oom_score_adj(0)


def _follow(pidfd: int, reader: int, stop_fd: int, deadline: float) -> tuple[bool, bytes]:
    """Read until the command ends: (whether it did so by itself in time, the end of what it wrote). Its end counts, not
    that of the pipe: something it left running in the background may keep that open for ever.
    """
    poll = select.poll()
    for fd in (pidfd, reader, stop_fd):
        poll.register(fd, select.POLLIN)
    tail = b""
    while True:
        ready = {fd for fd, _ in poll.poll(max(0.0, (deadline - time.monotonic()) * 1000))}
        if reader in ready:
            read = _read(reader)
            if read == b"":
                poll.unregister(reader)
            tail = (tail + (read or b""))[-_TAIL:]
        if pidfd in ready:
            # What it wrote last may have come after the read; a pipe holds no more than one read takes.
            return True, (tail + (_read(reader) or b""))[-_TAIL:]
        if stop_fd in ready or time.monotonic() >= deadline:
            return False, tail


def _read(fd: int) -> bytes | None:
    """What is there; b"" at the end, None for nothing now."""
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None
