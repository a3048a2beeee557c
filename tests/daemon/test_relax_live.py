"""A pod at a standstill at its own memory.high: it gets on when outrace raises that, and the old value is there again
when the pod needs less, and after a SIGKILL of both processes.
"""

from pathlib import Path

import pytest

from monitor.kernel import cgroupfs, pressure
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import LabNode
from tests import live

MIB = live.MIB
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(cgroupfs.detect().version == 1, reason="cgroup v1 has no memory.high"),
    pytest.mark.skipif(pressure.waited(pressure.PROC) is None, reason="this kernel has no PSI"),
]
OWN = 48 * MIB


def high(cgroup: Path) -> str:
    return (cgroup / "memory.high").read_text().strip()


def test_a_pod_gets_on_above_its_memory_high_which_is_put_back(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text('stall: "pod>50%,grace=3s,relax"\n')
    options = "--config", str(own), "--hooks", "poll", "--eviction-hard", "memory.available<16Mi", "--enforce"
    with LabNode("relax", 256 * MIB) as node:
        pod = node.add_pod("slow")
        container = pod.containers["c0"]
        with live.Puppet(container) as slow:
            with LabDaemon(node, *options) as daemon:
                (pod.cgroup / "memory.high").write_text(str(OWN))
                slow.tell("[anon(1) for _ in range(72)]")
                raised = live.message(daemon, "relaxed", pod="lab/slow", cgroup=str(pod.cgroup))
                assert (raised["high_before"], raised["high"]) == (OWN, OWN * 9 // 8)
                slow.expect("done")
                assert int(high(pod.cgroup)) > OWN * 9 // 8, "by steps"
                slow.do("kept.clear()")
                incident = live.message(daemon, "incident", verdict="stalled", final=True)
                assert "it is at its memory.high; it ended when outrace had raised that" in incident["summary"]
                back = live.message(daemon, "memory.high of a pod is put back", pod="lab/slow")
                assert (back["outcome"], high(pod.cgroup)) == ("restored", str(OWN))
                assert live.metric(daemon, "stalls_relaxed_total") >= 2
                (pod.cgroup / "memory.high").write_text("max")
                (container / "memory.high").write_text(str(OWN))
                slow.tell("[anon(1) for _ in range(72)]")
                assert live.message(daemon, "relaxed", cgroup=str(container))["high_before"] == OWN
                live.kill_both(daemon)
            assert int(high(container)) > OWN, "as the SIGKILL left it"
            with LabDaemon(node, *options) as daemon:
                undone = live.message(daemon, "a change of an earlier daemon is undone", cgroup=str(container))
                assert (undone["file"], undone["value"], undone["outcome"]) == ("memory.high", str(OWN), "restored")
                slow.expect("done")
                assert live.message(daemon, "relaxed", cgroup=str(container))["high_before"] == OWN
                live.ended(daemon)
            assert (high(container), high(pod.cgroup)) == (str(OWN), "max"), "the daemon has ended"
        assert node.oom_kills() == 0
