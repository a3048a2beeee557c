"""Neighbours that take the CPU from the monitor. Run as a file: `python3 -S -E neighbours.py kind=KIND cgroup=DIR`.

`compile`: compiles Python source at nice 19, one process for each file, as a build does in the background. `churn`:
processes are forked in the cgroup and end, as fast as one parent can, which also takes the lock that reading the
cgroup.procs of cgroup v1 waits for. It joins the cgroup, prints `ready`, and ends when stdin is closed.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def compile_one(source: str) -> None:
    """What a compiler does: parse, build a tree, write code."""
    compile(source, "source.py", "exec", dont_inherit=True)


def nothing(_: str) -> None:
    """The process ends at once."""


KINDS: dict[str, tuple[int, Callable[[str], None]]] = {"compile": (19, compile_one), "churn": (0, nothing)}


def main(arguments: list[str]) -> int:
    options = dict(argument.partition("=")[::2] for argument in arguments)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    niceness, work = KINDS[options["kind"]]
    os.nice(niceness)
    with open(os.path.join(options["cgroup"], "cgroup.procs"), "w") as procs:
        procs.write("0")
    source = Path(os.__file__).read_text() if options["kind"] == "compile" else ""
    os.write(1, b"ready\n")
    while not select.select([0], [], [], 0)[0]:
        pid = os.fork()
        if not pid:
            try:
                work(source)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
