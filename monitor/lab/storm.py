"""A storm of OOM kills. Run as a file: `python3 -S -E storm.py mib=N parent=PID CGROUP...`.

Prints `ready`, waits for a line on stdin, and then in every cgroup at once has one process after the other take ``mib``
MiB, more than the limit there, until it is killed. Ends with its parent, and when its stdin is closed; then it prints
`killed N`, how many died.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import signal
import sys

MIB = 1 << 20
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def victim(cgroup: str, mib: int) -> None:
    """Join, take, die."""
    with open(f"{cgroup}/cgroup.procs", "w") as procs:
        procs.write("0")
    with open("/proc/self/comm", "w") as comm:
        comm.write("storm")
    block = mmap.mmap(-1, mib * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, mib * MIB, 4096):
        block[at] = 1


def kill_in(cgroup: str, mib: int, out: int) -> None:
    """One victim after the other; a byte for each that was killed."""
    owner = os.getpid()
    while True:
        pid = os.fork()
        if not pid:
            try:
                die_with_parent(owner)
                victim(cgroup, mib)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            os._exit(1)
        os.write(out, b"x")


def main() -> int:
    options = dict(word.split("=", 1) for word in sys.argv[1:3])
    cgroups = sys.argv[3:]
    die_with_parent(int(options["parent"]))
    print("ready", flush=True)
    if not sys.stdin.readline():
        return 0
    count, out = os.pipe()
    owner, killers = os.getpid(), []
    for cgroup in cgroups:
        pid = os.fork()
        if not pid:
            die_with_parent(owner)
            kill_in(cgroup, int(options["mib"]), out)
        killers.append(pid)
    killed = 0
    while True:
        ready = select.select([count, 0], [], [])[0]
        if count in ready:
            killed += len(os.read(count, 4096))
        if 0 in ready:
            break
    for pid in killers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(f"killed {killed}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
