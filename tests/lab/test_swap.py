"""Swap in use, for real: only in a guest that may be lost, where a file may be made swap (`make test-vm`)."""

import time
from collections.abc import Iterator

import pytest

from monitor.kernel import cgroupfs
from monitor.lab.node import MIB, LabNode
from tests import live
from tests.filesystems import swap

pytestmark = [pytest.mark.kernel, pytest.mark.expendable]


@pytest.fixture
def node() -> Iterator[LabNode]:
    """A node of 160 MiB that may swap, on a machine with 96 MiB of swap."""
    if cgroupfs.detect().version == 1:
        pytest.skip("nothing can be swapped out on request on cgroup v1: it has no memory.reclaim")
    with swap(), LabNode("test-swap", 160 * MIB) as made:
        (made.cgroup / "memory.swap.max").write_text("max")
        yield made


def test_swapped_memory_is_no_working_set_until_it_comes_back(node: LabNode) -> None:
    """As for the kubelet, whose working set is usage without inactive page cache: usage does not count swap."""
    pod = node.add_pod("sleeper")
    with (
        live.daemon(node, "--eviction-hard", "memory.available<70Mi") as daemon,
        live.Puppet(pod.containers["c0"]) as puppet,
    ):
        swap = 'pod_memory_swap_bytes{namespace="lab",pod="sleeper"}'
        used = 'memory_working_set_bytes{domain="node"}'
        puppet.do("anon(40); kept[0][0]")
        live.until(lambda: live.metric(daemon, used) > 40 * MIB, "the pod's memory")
        (pod.cgroup / "memory.reclaim").write_text(f"{30 * MIB}")
        live.until(lambda: live.metric(daemon, swap) > 25 * MIB, "swap in use")
        assert live.metric(daemon, 'memory_swap_bytes{domain="node"}') == live.metric(daemon, swap)
        live.until(lambda: live.metric(daemon, used) < 20 * MIB, "the working set without it")
        puppet.do("anon(60)")
        taken_ns = time.monotonic_ns()
        puppet.do("sum(kept[0][::4096])")
        first = live.message(daemon, "would evict", pod="lab/sleeper")
        # Not by the log until then: the daemon may be late.
        assert first["crossed_ns"] > taken_ns, "memory that was swapped out counted as if it were there"
        assert first["available"] < 70 * MIB
    assert node.oom_kills() == 0
