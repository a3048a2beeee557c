"""Commands that building an image runs, and how they are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


class VmError(Exception):
    """Something that stops `make test-vm`; the text is one line with its remedy."""


def say(text: str) -> None:
    print(f"test-vm: {text}", file=sys.stderr, flush=True)


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """The output of a command; VmError with its last words when it fails."""
    words = [str(word) for word in command]
    process = subprocess.Popen(
        words, env={**os.environ, **(env or {})}, cwd=cwd, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    _running.add(process)
    try:
        if _ended.is_set():
            _signal(process, signal.SIGTERM)
        out, err = process.communicate()
    except BaseException:  # Ctrl-C and SIGTERM in the main thread
        _end([process])
        process.wait()
        raise
    finally:
        _running.discard(process)
    if process.returncode:
        tail = " | ".join((err or out).strip().splitlines()[-4:])
        raise VmError(f"`{' '.join(words)[:160]}` failed with exit code {process.returncode}: {tail}")
    return out


_running: set[subprocess.Popen[str]] = set()
_ended = threading.Event()


def stop_building() -> None:
    """End every command of `run`, and every one that is begun from now on: the threads that wait for them end."""
    _ended.set()
    _end(list(_running))


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """SIGTERM to each and its children (mmdebstrap takes its mounts away), after ten seconds SIGKILL."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + 10
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in processes:
        if process.poll() is None:
            _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[str], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
