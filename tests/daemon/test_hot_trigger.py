"""The trigger in the kernel on a lab node: whom it signals in its own charge, and whom it never does."""

import signal

import pytest

from monitor.kernel import cgroupfs
from monitor.lab.node import MIB, LabNode
from tests import live
from tests.daemon.hot_node import IN_KERNEL, armed_for, decided, evicted, hard, hot_node

pytestmark = pytest.mark.kernel

node = live.fixture(hot_node)


@pytest.mark.parametrize("pages", ["4k", "thp"])
def test_the_victim_is_signalled_in_its_own_charge(node: LabNode, pages: str) -> None:
    pod = node.add_pod("hog")
    bystander = live.filled(node, node.add_pod("calm", "Guaranteed", request=16 * MIB), 8)
    with live.daemon(node, *IN_KERNEL, *hard(32)) as daemon:
        second = live.filled(node, pod, 2)
        armed_for(pod)
        hog = node.start_hog(pod, mib=100, pages=pages)
        hog.go()
        assert hog.wait() == -signal.SIGKILL
        decision, _ = evicted(daemon, pod)
        assert second.wait() == -signal.SIGKILL, "user space finishes the pod"
        assert decision["trigger"] == "kernel"
        assert bystander.process.poll() is None
        counted = daemon.metrics()
        assert counted['outrace_records_total{kind="signal",side="reader"}'] >= 1
        live.ended(daemon)
        assert decided(daemon) == ["hog"]


def test_the_kernel_signals_nobody_outside_the_armed_pod(node: LabNode) -> None:
    """Another pod crosses the line: its process lives, and user space evicts who is armed."""
    victim, database = node.add_pod("victim"), node.add_pod("database", "Guaranteed", request=100 * MIB)
    with live.daemon(node, *IN_KERNEL, *hard(48)) as daemon:
        prey = live.filled(node, victim, 16)
        armed_for(victim)
        signals = live.metric(daemon, 'records_total{kind="signal",side="kernel"}')
        crosser = live.filled(node, database, 70)
        decision, _ = evicted(daemon, victim)
        assert prey.wait() == -signal.SIGKILL
        assert decision["trigger"] == "user"
        assert crosser.process.poll() is None
        # Nobody outside a pod either.
        armed_for(database)
        with live.Puppet(cgroupfs.make(node.cgroup / "no-pod")) as stranger:
            stranger.do("anon(2)")
        assert live.metric(daemon, 'records_total{kind="signal",side="kernel"}') == signals
