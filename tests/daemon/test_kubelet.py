"""A pod that its runtime stops: nothing without pressure, under pressure an eviction by the kubelet."""

import subprocess
import sys

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


def test_a_pod_stopped_by_its_runtime_is_no_incident_and_above_a_threshold_an_eviction(node: LabNode) -> None:
    stopped, killed, evicted = (node.add_pod(name) for name in ("stopped", "killed", "evicted"))
    with live.daemon(node, *HARD) as daemon:
        hog = live.filled(node, stopped, 8)
        kill_as("containerd-shim", hog.pid)
        hog.process.wait()
        live.message(daemon, "SIGKILL by a process: no OOM kill", pod="lab/stopped", invoker_comm="containerd-shim")

        hog = live.filled(node, killed, 8)
        kill_as("bash", hog.pid)
        hog.process.wait()
        by_user = live.message(daemon, "incident", final=True)
        assert (by_user["verdict"], by_user["flags"]) == ("relieved", ["user_kill"])
        assert "lab/killed" in by_user["summary"]

        hog = live.filled(node, evicted, 100)
        live.message(daemon, "would evict")
        kill_as("containerd-shim", hog.pid)
        hog.process.wait()
        by_kubelet = live.message(daemon, "incident", final=True, verdict="eviction_won")
        assert (by_kubelet["observed"], by_kubelet["flags"]) == (False, [])
        assert by_kubelet["summary"].startswith("Eviction won: the kubelet evicted lab/evicted")
        live.ended(daemon)
        assert {r["id"] for r in live.messages(daemon, "incident")} == {by_user["id"], by_kubelet["id"]}
