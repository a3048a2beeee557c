"""Cleaning up the node before a pod must go for a full disk, as an operator configured it.

The kubelet removes dead containers and unused images itself. Here a command does it, the runtime's own or any other
that frees space. A clean-up that fails is logged and the pass goes on, as in the kubelet: the disk is measured again
afterwards, and that decides.
"""

from __future__ import annotations

import os
import pwd
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from monitor.actions.oomadj import Logger
from monitor.kernel.procfs import Process
from monitor.owner import ChangeableError, check_alone, program, search_path
from monitor.policy.layout import DELETE_IMAGES

#: The kubelet gives one call to the container runtime 2 minutes (runtimeRequestTimeout).
TIMEOUT_S = 120.0
#: Where podman and its kin have their configuration, if root says so.
_FILES = ("CONTAINERS_CONF", "CONTAINERS_CONF_OVERRIDE", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF")
#: Bytes of what a command wrote last, in which its last line is looked for; and that a pipe holds.
_TAIL, _PIPE = 4096, 1 << 16
DONE, FAILED, KILLED = RESULTS = ("done", "failed", "killed")


def clean(command: Sequence[str], log: Logger, stop_fd: int, timeout_s: float = TIMEOUT_S) -> str:
    """Run ``command`` to its end, as `run` does; one of `RESULTS`."""
    fields: dict[str, object] = {"action": DELETE_IMAGES, "command": shlex.join(command)}
    began = time.monotonic()
    try:
        status, output = run(command, timeout_s, stop_fd)
    except (OSError, ValueError, ChangeableError) as error:  # ValueError: a NUL in it
        log("error", "clean-up could not be started", **fields, problem=str(error))
        return FAILED
    except Exception as error:  # noqa: BLE001 - its end is waited for
        log("error", "clean-up failed", **fields, problem=f"{type(error).__name__}: {error}")
        return FAILED
    fields["took_s"] = round(time.monotonic() - began, 3)
    result = DONE if status == 0 else KILLED if status is None else FAILED
    if result == DONE:
        log("info", "clean-up done", **fields)
    elif result == KILLED:
        log("error", "clean-up killed: it did not end in time", **fields, output=output)
    else:
        log("error", "clean-up failed", **fields, status=status, output=output)
    return result


def run(argv: Sequence[str], timeout_s: float, stop_fd: int) -> tuple[int | None, str]:
    """Run a command to its end: (status, negative for a signal; the last line it wrote).

    The status is None if it was killed, with everything it had started in its process group, after ``timeout_s``
    seconds or because ``stop_fd`` became readable. Of its output the last `_TAIL` bytes are looked at. It runs in /:
    the directory in which the daemon was started may be a user's. Raises OSError, ValueError or ChangeableError if it
    cannot be started.
    """
    # A session of its own, so that its children can be killed with it, and no terminal can be asked.
    process = subprocess.Popen(
        [program(argv[0]), *argv[1:]],
        bufsize=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        env=environment(),
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout as output:
        _make_ordinary(process.pid)
        os.set_blocking(output.fileno(), False)
        in_time, tail = _follow(process.pid, output, stop_fd, time.monotonic() + timeout_s)
        if not in_time:
            # Not reaped yet, so the pid, and the group with its number, are still this command's.
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
    last = tail.decode(errors="replace").rstrip().rpartition("\n")[2].strip()
    return status if in_time else None, last


def environment() -> dict[str, str]:
    """What a clean-up gets of ours: root's store is meant, no service elsewhere (CONTAINER_HOST), and no file that is
    another user's. Raises ChangeableError.
    """
    files = {name: os.environ[name] for name in _FILES if name in os.environ}
    for path in files.values():
        check_alone(Path(path))
    return {"PATH": search_path(), "HOME": pwd.getpwuid(os.geteuid()).pw_dir, **files}


def _make_ordinary(pid: int) -> None:
    """A clean-up is no part of the monitor: where that is spared by the OOM killer, this is not."""
    with Process(pid) as process:
        if (process.oom_score_adj() or 0) < 0:
            process.set_oom_score_adj(0)


def _follow(pid: int, output: IO[bytes], stop_fd: int, deadline: float) -> tuple[bool, bytes]:
    """Read until the command ends: (whether it did so by itself in time, the end of what it wrote). Its end counts, not
    that of the pipe: something it left running in the background may keep that open for ever.
    """
    poll, tail, reader, pidfd = select.poll(), b"", output.fileno(), os.pidfd_open(pid)
    try:
        for fd in (pidfd, reader, stop_fd):
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(max(0.0, (deadline - time.monotonic()) * 1000))}
            if reader in ready:
                read = output.read(_PIPE)
                if read == b"":
                    poll.unregister(reader)
                tail = (tail + (read or b""))[-_TAIL:]
            if pidfd in ready:
                # What it wrote last may have come after the read; a pipe holds no more than one read takes.
                return True, (tail + (output.read(_PIPE) or b""))[-_TAIL:]
            if stop_fd in ready or time.monotonic() >= deadline:
                return False, tail
    finally:
        os.close(pidfd)
