"""What tests made goes although the session is killed: a `finally` does not survive SIGKILL, the lab's janitor does."""

import atexit
from functools import cache
from pathlib import Path

from monitor.lab.child import Janitor


@cache
def _janitor() -> Janitor:
    """One for the session: starting one takes 20 ms."""
    return Janitor()


def removed_with_session(path: Path) -> None:
    """If this cgroup or directory is still there when this process has ended, it is removed, with a cgroup's processes.
    Before a cgroup is made.
    """
    _janitor().send(path)


@atexit.register
def end_session() -> None:
    """Have it remove what is left, and end."""
    if _janitor.cache_info().currsize:
        assert _janitor().finish(), "a cgroup of a test could not be removed"
        _janitor.cache_clear()
