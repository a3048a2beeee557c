"""oom_score_adj as a daemon with every capability really writes it: read back from the processes."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.lab.node import MIB, LabNode, LabPod
from tests import live

_SYS_RESOURCE = 24  # capability(7)


def capable() -> bool:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> _SYS_RESOURCE & 1)


pytestmark = [
    pytest.mark.oldest,
    pytest.mark.kernel,
    pytest.mark.skipif(not capable(), reason="no CAP_SYS_RESOURCE: no oom_score_adj can be lowered (a guest has it)"),
]


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@contextmanager
def pause(pod: LabPod) -> Iterator[int]:
    """A process that calls itself pause, in a cgroup of the pod's that is no container's: no sandbox for all that."""
    sandbox = cgroupfs.make(pod.cgroup / "sandbox")
    script = f"printf pause >/proc/self/comm; echo $$ >{sandbox}/cgroup.procs; echo ready; read line"
    process = subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


def test_every_class_gets_its_own_and_the_monitor_is_the_last_to_go() -> None:
    with LabNode("test-scores", 256 * MIB) as node:
        pods = [
            node.add_pod("guaranteed", "Guaranteed", request=64 * MIB),
            node.add_pod("burstable", "Burstable", request=64 * MIB),
            node.add_pod("besteffort"),
        ]
        # A quarter of the node is requested: 1000 - 250.
        wanted = [-997, 750, 1000]
        hogs = [node.start_hog(pod, mib=1) for pod in pods]
        with live.daemon(node, "--enforce", "--eviction-hard", "memory.available<8Mi") as daemon, pause(pods[0]) as pid:
            for hog, value in zip(hogs, wanted, strict=True):
                live.until(lambda pid=hog.pid, value=value: score(pid) == value, f"oom_score_adj to be {value}")
            live.until(lambda: score(pid) == -997, "oom_score_adj of who calls itself pause to be that of the pod")
            assert score(daemon.pid) == -999
            late = node.start_hog(pods[0], mib=1)
            live.until(lambda: score(late.pid) == -997, "oom_score_adj of a process that came later to be -997")
            live.ended(daemon)
            assert live.messages(daemon, "oom_score_adj cannot be lowered (EACCES)") == []
