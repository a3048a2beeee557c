"""The daemon on a lab node of the live kernel: what an evicted pod leaves behind, or does afterwards."""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.meminfo import multi_gen_lru
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod
from tests import live
from tests.daemon.hot_node import decided, evicted, hard, hot_node

pytestmark = [pytest.mark.kernel, pytest.mark.newest]

node = live.fixture(hot_node)


@contextmanager
def evicted_with_cache(node: LabNode, pod: LabPod, mib: int, then: str = "") -> Iterator[tuple[LabDaemon, str]]:
    """A daemon that has evicted ``pod``, and the file whose page cache it left; ``then``: what it did with the file.

    Without that, what takes page cache back is covered, and the test is of a page that is active when it is read twice.
    """
    if not then and multi_gen_lru():
        pytest.skip("reading twice activates nothing under the multi-gen LRU")
    reclaim = pod.cgroup / ("memory.reclaim" if cgroupfs.detect().version == 2 else "memory.force_empty")
    covered = live.in_own_mounts(f"[ ! -e {reclaim} ] || mount --bind /dev/null {reclaim}")
    place = tempfile.TemporaryDirectory(prefix="outrace-test-", dir="/var/tmp")
    with place as files, live.daemon(node, "--enforce", *hard(80), wrapper=() if then else covered) as daemon:
        with live.Puppet(pod.containers["c0"]) as puppet:
            puppet.do(f"write('{files}/a', {mib})" + then.format(f"{files}/a"))
            puppet.tell("anon(100)")
            evicted(daemon, pod)
        yield daemon, f"{files}/a"


TWICE = "read('{0}'); read('{0}')"


@pytest.mark.once
def test_an_evicted_pod_that_runs_again_is_a_candidate_again(node: LabNode) -> None:
    pod = node.add_pod("phoenix")
    with live.daemon(node, "--enforce", *hard(80)) as daemon:
        for i in range(2):
            live.killed_hog(node, pod, 100)
            live.message(daemon, "evicted", id=i + 1)
        live.message(daemon, "an evicted pod runs again: it is a candidate again")
        assert decided(daemon) == ["phoenix"] * 2


def test_page_cache_that_an_evicted_pod_left_is_taken_back(node: LabNode) -> None:
    """No process is left in the pod to read it; active, it would count as working set, and cost the next pod."""
    pod = node.add_pod("left")
    if cgroupfs.detect().version == 2 and not (pod.cgroup / "memory.reclaim").exists():
        pytest.skip("memory.reclaim came with Linux 5.19")
    usage = pod.cgroup / ("memory.current" if cgroupfs.detect().version == 2 else "memory.usage_in_bytes")
    with evicted_with_cache(node, pod, 24, f"; {TWICE}") as (daemon, _):
        logged = live.message(daemon, "the kernel took back what an evicted pod left", pod="lab/left")
        assert logged["bytes"] > 20 * MIB
        assert int(usage.read_text()) < 4 * MIB
        assert live.metric(daemon, "given_back_bytes_total") == logged["bytes"]


def test_an_evicted_pod_that_fills_memory_as_soon_as_it_runs_again_costs_no_other_pod(node: LabNode) -> None:
    """It was found to be empty a moment ago, and that is not asked again for 0.1 s: at a crossing it is."""
    pod = node.add_pod("phoenix")
    with evicted_with_cache(node, pod, 12) as (daemon, file):
        neighbour = node.fill(node.add_pod("neighbour"), 8)
        with live.cgroup("reader") as outside, live.Puppet(outside) as reader, live.Puppet(outside) as restarted:
            since = len(daemon.log)
            reader.do(TWICE.format(file))
            restarted.tell(f"open('{pod.containers['c0']}/cgroup.procs', 'w').write('0'); anon(100)")
            live.message(daemon, "evicting", since)
            assert restarted.process.wait() == -signal.SIGKILL
        assert decided(daemon) == ["phoenix"] * 2
        assert neighbour.process.poll() is None
