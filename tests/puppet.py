"""A process that runs what a test sends it, and a memory cgroup to put it in: for tests of the live kernel."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from monitor.kernel import cgroupfs
from monitor.lab.child import PATIENCE_S, Child
from monitor.lab.janitor import remove_tree
from tests.own_cgroups import removed_with_session

TIMEOUT_S = PATIENCE_S


class Puppet(Child):
    """A process in a cgroup that runs the lines of Python it is given (`tests.puppets`)."""

    def __init__(self, cgroup: Path) -> None:
        super().__init__("tests.puppets:puppet", cgroup=cgroup)
        self.expect("ready")

    tell = Child.send  # `answer` waits for the end

    def do(self, line: str) -> None:
        self.tell(line)
        self.expect("done")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def cgroup(name: str, limit: int | None = None) -> Iterator[Path]:
    """A memory cgroup of the test's own; afterwards its processes are killed and it is removed with what is below."""
    path = cgroupfs.detect().root / f"outrace-test-{name}-{os.getpid()}"
    removed_with_session(path)
    cgroupfs.make(path)
    try:
        if limit is not None:
            cgroupfs.set_limit(path, limit)
            for file in ("memory.swap.max", "memory.swappiness"):
                if (path / file).exists():
                    (path / file).write_text("0")
        yield path
    finally:
        assert remove_tree(str(path))
