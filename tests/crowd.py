"""Thousands of memory cgroups with page cache of their own, also dead ones, for a small price."""

import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

from monitor.kernel import cgroupfs
from monitor.lab import janitor
from monitor.lab.child import Child
from monitor.lab.worker import join, ready, write_line


class Crowd:
    """Context manager: ``number`` cgroups below ``parent``, which the caller removes; their files are removed here."""

    def __init__(self, parent: Path, number: int) -> None:
        self.parent = parent
        self.number = number
        self._files = Path(tempfile.mkdtemp(prefix="outrace-crowd-"))
        for i in range(number):
            os.mkdir(parent / f"c{i}")
        home = cgroupfs.make(parent / "home")
        self._filler = Child("tests.crowd:filler", crowd=parent, files=self._files, cgroup=home)
        self._filler.expect("ready")

    def _write(self, first: int, last: int, pages: int) -> None:
        self._filler.send(f"{first} {last} {pages}")
        self._filler.expect("done")

    def fill(self, pages: int = 1) -> None:
        """Charge ``pages`` pages of page cache more in each that lives."""
        self._write(0, self.number, pages)

    def grow(self, which: int) -> None:
        """Charge 64 pages more in one."""
        self._write(which, which + 1, 64)

    def kill(self, number: int) -> None:
        """Remove the directories of the last ``number``: dead, and still charged for their page cache."""
        for i in range(self.number - number, self.number):
            os.rmdir(self.parent / f"c{i}")

    def end(self) -> None:
        """Remove all of them, and their page cache."""
        shutil.rmtree(self._files, ignore_errors=True)
        for i in range(self.number):
            with suppress(FileNotFoundError):
                os.rmdir(self.parent / f"c{i}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._filler.close_stdin()
        self._filler.wait()
        self._filler.close()
        self.end()
        janitor.remove_tree(str(self.parent / "home"))


def filler(crowd: str, files: str, cgroup: str) -> None:
    """For each line `FIRST LAST PAGES` moves through these of the cgroups ``crowd``/c0, c1, ... and appends pages to
    a file of ``files`` in each; answers `done`. (A process for each takes 2 ms.)
    """
    ready()
    for line in sys.stdin:
        first, last, pages = map(int, line.split())
        for i in range(first, last):
            try:
                join(f"{crowd}/c{i}")
            except FileNotFoundError:
                continue
            with open(f"{files}/{i}", "ab", buffering=0) as file:
                file.write(bytes(4096 * pages))
        join(cgroup)
        write_line("done")
