"""Thousands of memory cgroups with page cache of their own, also dead ones, for a small price."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from monitor.kernel import cgroupfs
from monitor.lab import janitor

#: One process moves from cgroup to cgroup and writes or reads a file in each. (A process for each takes 2 ms.)
_FILLER = """
import os, sys
parent, files, home = sys.argv[1:4]
print("ready", flush=True)
for line in sys.stdin:
    what, first, last, pages = line.split()
    for i in range(int(first), int(last)):
        try:
            with open(f"{parent}/c{i}/cgroup.procs", "w") as procs:
                procs.write("0")
        except FileNotFoundError:
            continue
        fd = os.open(f"{files}/{i}", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.write(fd, bytes(4096 * int(pages)))
        os.fdatasync(fd) if what == "sync" else None
        os.close(fd)
    with open(f"{home}/cgroup.procs", "w") as procs:
        procs.write("0")
    print("done", flush=True)
"""


class Crowd:
    """Context manager: ``number`` cgroups below ``parent``, which the caller removes; their files are removed here."""

    def __init__(self, parent: Path, number: int) -> None:
        self.parent = parent
        self.number = number
        self._files = Path(tempfile.mkdtemp(prefix="outrace-crowd-"))
        for i in range(number):
            os.mkdir(parent / f"c{i}")
        home = cgroupfs.make(parent / "home")
        self._filler = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _FILLER, str(parent), str(self._files), str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _answer(self) -> None:
        assert self._filler.stdout is not None
        if not self._filler.stdout.readline():
            raise RuntimeError("the process that fills the cgroups ended")

    def _do(self, what: str, first: int, last: int, pages: int) -> None:
        assert self._filler.stdin is not None
        self._filler.stdin.write(f"{what} {first} {last} {pages}\n")
        self._filler.stdin.flush()
        self._answer()

    def fill(self, pages: int = 1) -> None:
        """Give each ``pages`` pages of page cache."""
        self._do("write", 0, self.number, pages)

    def touch(self) -> None:
        """Charge one page more in each that lives."""
        self._do("write", 0, self.number, 1)

    def grow(self, which: int) -> None:
        """Charge 64 pages more in one."""
        self._do("write", which, which + 1, 64)

    def kill(self, number: int) -> None:
        """Remove the directories of the last ``number``: dead, and still charged for their page cache."""
        for i in range(self.number - number, self.number):
            os.rmdir(self.parent / f"c{i}")

    def end(self) -> None:
        """Remove all of them, and their page cache."""
        shutil.rmtree(self._files, ignore_errors=True)
        for i in range(self.number):
            try:
                os.rmdir(self.parent / f"c{i}")
            except FileNotFoundError:
                continue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._filler.stdin is not None
        assert self._filler.stdout is not None
        self._filler.stdin.close()
        self._filler.wait()
        self._filler.stdout.close()
        self.end()
        janitor.remove_tree(str(self.parent / "home"))
