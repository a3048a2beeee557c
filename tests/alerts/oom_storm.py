"""OOM kills in many pods at once, as fast as the machine can: a worker of the lab (`monitor.lab.worker`)."""

import mmap
import os
import select
import signal
import sys
from pathlib import Path

from monitor.lab.worker import Options, die_with_parent, join, write_line

MIB = 1 << 20


def oom_kills(options: Options) -> None:
    """A storm of OOM kills: from the first line on, in each of `cgroups` (joined by `:`) one process after the other
    takes `mib` MiB, more than the limit there, until it is killed. When stdin is closed it prints `killed N`.
    """
    write_line("ready")
    if not sys.stdin.readline():
        return
    count, out = os.pipe()
    owner, killers = os.getpid(), []
    for cgroup in options["cgroups"].split(":"):
        pid = os.fork()
        if not pid:
            die_with_parent(owner)
            _kill_in(cgroup, int(options["mib"]), out)
        killers.append(pid)
    killed = 0
    while 0 not in (ready := select.select([count, 0], [], [])[0]):
        killed += len(os.read(count, 4096))
    killed += len(os.read(count, 4096)) if count in ready else 0
    for pid in killers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    write_line("killed", killed)


def _kill_in(cgroup: str, mib: int, out: int) -> None:
    """One victim after the other; a byte for each that was killed."""
    owner = os.getpid()
    while True:
        pid = os.fork()
        if not pid:
            try:
                die_with_parent(owner)
                join(cgroup)
                Path("/proc/self/comm").write_text("storm")
                block = mmap.mmap(-1, mib * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                block.madvise(mmap.MADV_NOHUGEPAGE)
                for at in range(0, mib * MIB, 4096):
                    block[at] = 1
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            os._exit(1)
        os.write(out, b"x")
