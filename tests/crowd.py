"""Thousands of memory cgroups with page cache of their own, also dead ones, for a small price."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

from monitor.kernel import cgroupfs
from monitor.lab import janitor
from monitor.lab.child import Child


class Crowd:
    """Context manager: ``number`` cgroups below ``parent``, which the caller removes; their files are removed here."""

    def __init__(self, parent: Path, number: int) -> None:
        self.parent = parent
        self.number = number
        self._files = Path(tempfile.mkdtemp(prefix="outrace-crowd-"))
        for i in range(number):
            os.mkdir(parent / f"c{i}")
        home = cgroupfs.make(parent / "home")
        self._filler = Child("filler", crowd=parent, files=self._files, cgroup=home)
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
