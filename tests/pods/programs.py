"""Programs in a place that is root's, and processes of them in a cgroup: for tests of what protects by its program."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@pytest.fixture
def programs() -> Iterator[Path]:
    """A directory that is root's with all above it, unlike /tmp."""
    path = Path(f"/run/outrace-test-claims-{os.getpid()}")
    path.mkdir(mode=0o755)
    yield path
    shutil.rmtree(path)


@contextmanager
def running(program: Path, cgroup: Path, user: int = 0, comm: str = "") -> Iterator[int]:
    """The shell as this program: a copy of it, if the program is not there."""
    if not program.exists():
        shutil.copy("/bin/dash", program)
    rename = f"printf '{comm}' > /proc/$$/comm; " if comm else ""
    process = subprocess.Popen(
        [program, "-c", f"{rename}echo; read line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=user,
        group=user,
        extra_groups=[],
    )
    with process:
        try:
            process.stdout.readline()
            (cgroup / "cgroup.procs").write_text(str(process.pid))
            yield process.pid
        finally:
            process.kill()
