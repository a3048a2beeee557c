"""What the tests of mode hold read from the kernel: which pod is held, by the files of its own cgroup; and a process
whose memory has a pattern.
"""

import os

from monitor.actions.ledger import OF_PROCESSES
from monitor.kernel import cgroupfs
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import LabNode, LabPod
from tests import live
from tests.daemon.hot_node import hard

HOLD = ("--mode", "hold")
HIERARCHY = cgroupfs.detect()
V2 = HIERARCHY.version == 2
#: Grows by so many MiB at full speed, each page with a number of its own; then says whether all of them are there.
_PATTERN = """
block = mmap.mmap(-1, {mib} * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, len(block), 4096): block[at : at + 8] = at.to_bytes(8, "little")
good = all(int.from_bytes(block[at : at + 8], "little") == at for at in range(0, len(block), 4096))
print("whole" if good else "damaged", flush=True)
"""


def pattern(mib: int) -> str:
    """The line for a puppet that takes so much; its answers are `whole` or `damaged`, and `done`."""
    return f"exec({_PATTERN.format(mib=mib)!r})"


def is_held(pod: LabPod) -> bool:
    """Whether a brake is written down at its cgroup and in force."""
    if not _is_noted(pod):
        return False
    if V2:
        return (pod.cgroup / "cgroup.freeze").read_text().strip() == "1"
    return (pod.cgroup / "memory.oom_control").read_text().startswith("oom_kill_disable 1")


def _is_noted(pod: LabPod) -> bool:
    """Whether a brake is: what processes were given is noted too, while the daemon runs."""
    return any("outrace" in name and not name.endswith(OF_PROCESSES) for name in os.listxattr(pod.cgroup))


def is_as_before(pod: LabPod) -> bool:
    """Whether nothing of a brake is left on a pod without limits: no value, nothing written down."""
    if _is_noted(pod):
        return False
    if not V2:
        oom_killer = (pod.cgroup / "memory.oom_control").read_text().startswith("oom_kill_disable 0")
        return oom_killer and cgroupfs.limit(pod.cgroup) is None
    values = {"memory.max": "max", "memory.oom.group": "0", "cgroup.freeze": "0", "memory.high": "max"}
    return all((pod.cgroup / name).read_text().strip() == value for name, value in values.items())


def holding(daemon: LabDaemon, *pods: LabPod) -> None:
    """Wait until these are held."""
    live.until(lambda: all(map(is_held, pods)), lambda: f"a hold of {[pod.name for pod in pods]}: {daemon.log}")


def released(*pods: LabPod) -> None:
    """Wait until nothing of a brake is left on these."""
    live.until(lambda: all(map(is_as_before, pods)), f"{[pod.name for pod in pods]} to be as before")


def daemon(node: LabNode, mib: int, *options: str, mode: tuple[str, ...] = HOLD) -> LabDaemon:
    return live.daemon(node, *mode, *hard(mib), *options)
