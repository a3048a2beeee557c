"""Cleaning up the node before a pod must go for a full disk, as an operator configured it.

The kubelet removes dead containers and unused images itself. Here `outrace cleanup` does it, a process of its own that
speaks to the container runtime (gRPC is 25 MiB), or any other command that frees space. A clean-up that fails is logged
and the pass goes on, as in the kubelet: the disk is measured again afterwards, and that decides.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from monitor.actions.oomadj import Logger
from monitor.kernel import python
from monitor.kernel.procfs import Process
from monitor.kernel.sched import take_time
from monitor.owner import ChangeableError, program
from monitor.pods.stores import store_of
from monitor.policy.layout import DELETE_CONTAINERS, DELETE_IMAGES

#: The kubelet gives one call to the container runtime 2 minutes (runtimeRequestTimeout).
TIMEOUT_S = 120.0
#: Bytes of what a command wrote last, in which its last line is looked for; a report of `outrace cleanup` is one line.
_TAIL, _REPORT = 4096, 1 << 20
#: What is taken from a report.
_KEYS = {"runtime", "removing", "count", "removed", "bytes", "unknown_size", "freed", "problems"}
DONE, FAILED, KILLED = RESULTS = ("done", "failed", "killed")
#: What `outrace cleanup` calls them.
_WHAT = {DELETE_CONTAINERS: "containers", DELETE_IMAGES: "images"}


class Cleaned(NamedTuple):
    """What came of one action, or of a look at what it would remove. `report` is that of `outrace cleanup -o json`."""

    action: str
    removing: bool
    result: str
    report: Mapping[str, Any] | None


class _Request(NamedTuple):
    actions: tuple[str, ...]
    removing: bool = True


class Reclaimer:
    """Runs the commands of actions, one after the other, on a thread of its own that lives as long as they do.

    ``commands``: action -> argv, or the name of a runtime's store; empty for an action nobody configured.
    ``done(actions)`` is called from the thread when all the actions of a request have been gone through, whatever
    became of them; without ``enforce`` it is called too, but nothing is run. ``cleaned`` hears of each action that was
    run. ``seen`` is where `outrace cleanup` remembers images.
    """

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        enforce: bool,
        done: Callable[[tuple[str, ...]], None],
        log: Logger,
        timeout_s: float = TIMEOUT_S,
        seen: Path | None = None,
        cleaned: Callable[[Cleaned], None] = lambda _: None,
    ) -> None:
        self._commands, self._enforce, self._timeout_s, self._seen = commands, enforce, timeout_s, seen
        self._done, self._log, self._cleaned = done, log, cleaned
        self._lock = threading.Lock()
        self._queue: list[_Request] = []  # the first is under way
        self._thread: threading.Thread | None = None
        self._closing = os.eventfd(0, os.EFD_CLOEXEC)
        self._closed = False

    def request(self, actions: Sequence[str]) -> None:
        """Go through ``actions`` in order. The same actions asked for again before they are done are done once."""
        self._enqueue(_Request(tuple(actions)))

    def look(self, actions: Sequence[str]) -> None:
        """Find out what those of ``actions`` would remove that are a runtime's; nothing is changed."""
        self._enqueue(_Request(tuple(actions), removing=False))

    def _enqueue(self, wanted: _Request) -> None:
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
            actions, removing = self._queue[0]
            for action in actions:
                command = self._commands.get(action, ())
                wanted = self._enforce if removing else store_of(command) is not None
                if command and wanted and not self._closed:
                    try:
                        self._cleaned(self._clean(action, command, removing))
                    except Exception as error:  # noqa: BLE001 - somebody waits for the end of the request
                        problem = f"{type(error).__name__}: {error}"
                        self._log("error", "clean-up failed", action=action, problem=problem)
            with self._lock:
                self._queue.pop(0)
                more = bool(self._queue) and not self._closed
            if removing and not self._closed:
                self._done(actions)
            if not more:
                return

    def _clean(self, action: str, command: Sequence[str], removing: bool) -> Cleaned:
        fields: dict[str, object] = {"action": action, "command": shlex.join(command)}
        store = store_of(command)
        argv = command if store is None else self._own(action, str(store), removing)
        began = time.monotonic()
        try:
            status, output = run(argv, self._timeout_s, self._closing, _TAIL if store is None else _REPORT)
        except (OSError, ValueError, ChangeableError) as error:  # ValueError: a NUL in it
            self._log("error", "clean-up could not be started", **fields, problem=str(error))
            return Cleaned(action, removing, FAILED, None)
        fields["took_s"] = round(time.monotonic() - began, 3)
        report = None if store is None else _report_in(output)
        if report is not None:
            output = "; ".join(report["problems"][:3])
            fields |= _figures(report)
        result = DONE if status == 0 else KILLED if status is None else FAILED
        if not removing:
            if result != DONE and not self._closed:
                self._log("error", "it is not known what a clean-up would remove", **fields, output=output)
        elif result == DONE:
            self._log("info", "clean-up done", **fields)
        elif result == KILLED:
            self._log("error", "clean-up killed: it did not end in time", **fields, output=output)
        else:
            self._log("error", "clean-up failed", **fields, status=status, output=output)
        return Cleaned(action, removing, result, report)

    def _own(self, action: str, store: str, removing: bool) -> list[str]:
        """The command of ours that does it."""
        argv = python.command("monitor.cli.main", "cleanup", _WHAT[action], "--runtime", store)
        argv += ["--seen", str(self._seen)] if self._seen is not None else []
        return [*argv, *(["--remove"] if removing else []), "-o", "json"]


def _report_in(output: str) -> dict[str, Any] | None:
    """The report in the last line of a process's output; None if it is something else, such as an error, or the report
    of the version that the files were upgraded to.
    """
    try:
        found = json.loads(output)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.keys() >= _KEYS else None


def _figures(report: Mapping[str, Any]) -> dict[str, object]:
    """What the log says of a report."""
    figures: dict[str, object] = {"found": report["count"], "bytes": report["bytes"]}
    if report["unknown_size"]:
        figures["of_unknown_size"] = report["unknown_size"]
    if report["removing"]:
        figures["removed"] = report["removed"]
    if report["freed"] is not None:
        figures["freed_bytes"], figures["freed_inodes"] = freed(report)
    return figures


def freed(report: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes and inodes that came back, on all file systems together."""
    rows = report["freed"] or ()
    return sum(one["bytes"] for one in rows), sum(one["inodes"] for one in rows)


def run(argv: Sequence[str], timeout_s: float, stop_fd: int, keep: int = _TAIL) -> tuple[int | None, str]:
    """Run a command to its end: (status, negative for a signal; the last line it wrote).

    The status is None if it was killed, with everything it had started in its process group, after ``timeout_s``
    seconds or because ``stop_fd`` became readable. Of its output the last ``keep`` bytes are looked at. Raises OSError,
    ValueError or ChangeableError if it cannot be started.
    """
    reader, writer = os.pipe()
    try:
        try:
            # A session of its own, so that its children can be killed with it, and no terminal can be asked.
            process = subprocess.Popen(
                [_program(argv[0]), *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
            )
        finally:
            os.close(writer)
        _make_ordinary(process.pid)
        os.set_blocking(reader, False)
        pidfd = os.pidfd_open(process.pid)
        try:
            in_time, tail = _follow(pidfd, reader, stop_fd, time.monotonic() + timeout_s, keep)
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


def _program(name: str) -> str:
    """What is run; this Python runs as root already."""
    return name if name == sys.executable else program(name)


def _make_ordinary(pid: int) -> None:
    """A clean-up is no part of the monitor: where that is spared by the OOM killer, this is not."""
    with Process(pid) as process:
        if (process.oom_score_adj() or 0) < 0:
            process.set_oom_score_adj(0)


def _follow(pidfd: int, reader: int, stop_fd: int, deadline: float, keep: int) -> tuple[bool, bytes]:
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
            tail = (tail + (read or b""))[-keep:]
        if pidfd in ready:
            # What it wrote last may have come after the read; a pipe holds no more than one read takes.
            return True, (tail + (_read(reader) or b""))[-keep:]
        if stop_fd in ready or time.monotonic() >= deadline:
            return False, tail


def _read(fd: int) -> bytes | None:
    """What is there; b"" at the end, None for nothing now."""
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None
