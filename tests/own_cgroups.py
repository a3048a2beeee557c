"""Cgroups of tests go although the session is killed: a `finally` does not survive SIGKILL, the lab's janitor does."""

from __future__ import annotations

import atexit
import subprocess
from pathlib import Path

from monitor.lab import janitor
from monitor.lab.child import PYTHON

_janitor: subprocess.Popen[bytes] | None = None


def removed_with_session(path: Path) -> None:
    """If `path` is still there when this process has ended, its processes are killed and it is removed. Before it is
    made. One janitor for the session: starting one takes 20 ms.
    """
    global _janitor
    if _janitor is None:
        command = [*PYTHON, janitor.__file__, str(path)]
        _janitor = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    assert _janitor.stdin is not None
    _janitor.stdin.write(f"cgroup {path}\n".encode())
    _janitor.stdin.flush()


def end_session() -> None:
    """Have it remove what is left, and end."""
    global _janitor
    if _janitor is not None:
        found, _janitor = _janitor, None
        assert found.stdin is not None
        found.stdin.close()
        assert found.wait() == 0, "a cgroup of a test could not be removed"


atexit.register(end_session)
