"""A page-fault loop for `outrace bench overhead`. Run as a file, `python3 -S -E faults.py mib=8 cpu=1 cgroup= parent=`.

It maps `mib` MiB of 4K pages, prints `ready`, and for each line `N` on stdin touches all of them N times, giving them
back in between; answers `took NS`, the CPU time in nanoseconds. The touching is one extended slice assignment, a loop
in C: a byte per page, so nearly all of the time is the kernel's page-fault path. Ends when stdin is closed or its
parent dies.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    options = dict(argument.split("=", 1) for argument in arguments)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if options["parent"] != str(os.getppid()):
        return 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.sched_setaffinity(0, {int(options["cpu"])})
    size = int(options["mib"]) << 20
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    first_bytes = memoryview(memory)[:: mmap.PAGESIZE]
    ones = b"\1" * len(first_bytes)
    with open(os.path.join(options["cgroup"], "cgroup.procs"), "w") as procs:
        procs.write("0")

    def touch(passes: int) -> None:
        for _ in range(passes):
            first_bytes[:] = ones
            memory.madvise(mmap.MADV_DONTNEED)

    print("ready", flush=True)
    for line in sys.stdin:
        # One pass before the clock starts: what attaching itself disturbs (patched kernel text, caches) is not counted.
        touch(1)
        began = time.process_time_ns()
        touch(int(line))
        print("took", time.process_time_ns() - began, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
