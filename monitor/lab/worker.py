"""A process of the lab: `python3 -S -E worker.py MODULE:FUNCTION key=value ...` (from `monitor.lab.child`).

Every worker dies with its parent (the key `parent`), leaves Ctrl-C to it, does what its keys say in the cgroup that
they name, prints `ready`, takes orders as lines on stdin and ends when stdin is closed.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import select
import signal
import sys
from collections.abc import Mapping

MIB = 1 << 20
_PR_SET_PDEATHSIG, _PR_SET_THP_DISABLE = 1, 41
#: Calls keep the interpreter's lock: 40 us for a fork less than through os.fork.
libc = ctypes.PyDLL(None)
Options = Mapping[str, str]


def die_with_parent(parent: int) -> None:
    """Be killed when this process's parent ends, and end at once if it is not ``parent`` any more."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def disable_huge_pages() -> None:
    """The interpreter's as well: khugepaged would add up to 2 MiB at a time to the pod."""
    libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


def join(cgroup: str) -> None:
    """Move this process. Done last: what the interpreter needed stays charged where it was."""
    with open(f"{cgroup}/cgroup.procs", "w") as procs:
        procs.write("0")


def write_line(*words: object) -> None:
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


def stdin_is_ready(timeout: float = 0.0) -> bool:
    """Whether there is an order, or stdin is closed, within ``timeout`` seconds."""
    return bool(select.select([0], [], [], timeout)[0])


def read_order() -> str:
    """The next line on stdin, "" at its end. Read by the byte: a forked child shall find nothing buffered."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            return ""
        line += byte
    return line.decode().strip()


def main(arguments: list[str]) -> int:
    worker, *words = arguments
    options = dict(word.split("=", 1) for word in words)
    die_with_parent(int(options.pop("parent")))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # some take memory by sockets and pipes
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    module, _, function = worker.partition(":")
    getattr(importlib.import_module(module), function)(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
