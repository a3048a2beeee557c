"""A pod that its runtime stops: nothing without pressure, under pressure an eviction by the kubelet."""

import subprocess
import sys
from pathlib import Path

import pytest

from monitor.lab.node import MIB, LabNode
from tests import live

pytestmark = [pytest.mark.kernel, pytest.mark.once]
HARD = ("--eviction-hard", "memory.available<32Mi")
_KILLER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)  # PR_SET_NAME
for pid in sys.argv[2:]:
    os.kill(int(pid), 9)
"""

node = live.fixture(LabNode, "test-kubelet", 128 * MIB)


def kill_as(comm: str, *pids: int) -> None:
    """SIGKILL from a process of this name."""
    subprocess.run([sys.executable, "-S", "-E", "-c", _KILLER, comm, *map(str, pids)], check=True)


def test_a_pod_stopped_by_its_runtime_is_no_incident_and_one_killed_by_a_user_is(node: LabNode, tmp_path: Path) -> None:
    stopped, killed = node.add_pod("stopped"), node.add_pod("killed")
    with live.daemon(node, *HARD) as daemon:
        hog = live.filled(node, stopped, 8)
        kill_as("containerd-shim", hog.pid)
        hog.process.wait()
        live.message(daemon, "SIGKILL by a process: no OOM kill", pod="lab/stopped", invoker_comm="containerd-shim")
        hog = live.filled(node, killed, 8)
        kill_as("bash", hog.pid)
        hog.process.wait()
        found = live.message(daemon, "incident", final=True)
        assert (found["verdict"], found["flags"]) == ("relieved", ["user_kill"])
        assert "lab/killed" in found["summary"]
        live.ended(daemon)
        assert {r["id"] for r in live.messages(daemon, "incident")} == {found["id"]}


def test_above_a_threshold_it_is_an_eviction_by_the_kubelet(node: LabNode, tmp_path: Path) -> None:
    pod = node.add_pod("hog")
    with live.daemon(node, *HARD) as daemon:
        hog = live.filled(node, pod, 100)
        live.message(daemon, "would evict")
        kill_as("containerd-shim", hog.pid)
        hog.process.wait()
        found = live.message(daemon, "incident", final=True)
        assert (found["verdict"], found["observed"], found["flags"]) == ("eviction_won", False, [])
        assert found["summary"].startswith("Eviction won: the kubelet evicted lab/hog")
