"""What another user does to the machine in a test: uid 65534, no group of root's, in a process of its own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Its user and group id; no user of any machine logs in with it.
UID = 65534


def does(code: str) -> str:
    """Run Python statements (with `os` and `fcntl`) as that user, to their end; what they print."""
    done = subprocess.run(_command(code), **_as_user(), capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@contextmanager
def shared() -> Iterator[Path]:
    """A directory where that user may make files and root's are safe, as /tmp is."""
    with tempfile.TemporaryDirectory(prefix="outrace-test-") as directory:
        os.chmod(directory, 0o1777)
        yield Path(directory)


@contextmanager
def doing(code: str) -> Iterator[subprocess.Popen[str]]:
    """The same, up to a line that the code prints; the process is killed afterwards."""
    process = subprocess.Popen(_command(code), **_as_user(), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline(), "it ended before its first line"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _command(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", f"import fcntl, os, socket, sys, time\n{code}"]


def _as_user() -> dict[str, object]:
    return {"user": UID, "group": UID, "extra_groups": [], "cwd": "/", "env": {"PATH": os.defpath}}
