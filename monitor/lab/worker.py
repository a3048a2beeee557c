"""A process of the lab: `python3 -S -E worker.py MODULE:FUNCTION PARENT OPTIONS` (from `monitor.lab.child`).

Every worker dies with its parent (0: it survives that), leaves Ctrl-C to it, and calls the function with the options
(JSON), which moves it into a cgroup, prints `ready`, takes orders as lines on stdin and ends when stdin is closed.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import select
import signal
import sys

MIB = 1 << 20
_PR_SET_PDEATHSIG, _PR_SET_THP_DISABLE = 1, 41
#: Calls keep the interpreter's lock: 40 us for a fork less than through os.fork.
libc = ctypes.PyDLL(None)


def die_with_parent(parent: int) -> None:
    """Be killed when this process's parent ends, and end at once if it is not ``parent`` any more."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def disable_huge_pages() -> None:
    """The interpreter's as well: khugepaged would add up to 2 MiB at a time to the pod."""
    libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


def join(cgroup: str) -> None:
    """Move this process. What the interpreter needed until then stays charged where it was."""
    with open(f"{cgroup}/cgroup.procs", "w") as procs:
        procs.write("0")


def ready(*cgroups: str) -> None:
    """Prepared: move this process, and wait for orders."""
    for cgroup in cgroups:
        join(cgroup)
    write_line("ready")


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


def main(worker: str, parent: str, options: str) -> None:
    if parent != "0":
        die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # some keep page cache in pipes
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    module, _, function = worker.partition(":")
    getattr(importlib.import_module(module), function)(**json.loads(options))


if __name__ == "__main__":
    main(*sys.argv[1:])
