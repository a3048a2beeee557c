"""The daemon on a lab node of the live kernel: which pod is evicted, which is not, and what is logged."""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from monitor.kernel import cgroup_procs, cgroupfs
from monitor.kernel.meminfo import multi_gen_lru
from monitor.lab.child import Child
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod
from tests import live
from tests.daemon.hot_node import IN_KERNEL, armed_for, decided, evicted, hard, hot_node

pytestmark = pytest.mark.kernel

node = live.fixture(hot_node)


@pytest.mark.once
def test_the_first_pod_goes_whole_and_nobody_else(node: LabNode) -> None:
    database = node.add_pod("database", "Guaranteed", request=64 * MIB)
    web = node.add_pod("web", "Burstable", request=32 * MIB)
    batch = node.add_pod("batch", containers=2)
    with live.daemon(node, "--enforce", *hard(40)) as daemon:
        calm = node.fill(web, 16)
        with live.Puppet(batch.containers["c1"]) as family:
            hog = node.fill(batch, 24)
            family.tell("print(*[os.fork() or signal.pause() for _ in range(5)], flush=True)")
            pids = [hog.pid, family.pid, *map(int, family.answer().split())]
            assert family.answer() == "done"
            assert set(cgroup_procs.processes(batch.cgroup)) == set(pids)
            # The pod that crosses is within its request: another one pays.
            big = node.fill(database, 56)
            decision, end = evicted(daemon, batch)
            assert not [pid for pid in pids if live.alive(pid)]
            assert cgroup_procs.processes(batch.cgroup) == []
        assert hog.wait() == -signal.SIGKILL
        for survivor in (calm, big):
            assert survivor.process.poll() is None
        assert decision["trigger"] == "user"
        assert (decision["request"], decision["rank"]) == (0, 1)
        assert decision["decided_ns"] <= decision["signalled_ns"] < end["gone_ns"]
        assert set(pids) <= set(end["pids"])
        assert decided(daemon) == ["batch"]
        assert decision["message"].startswith(
            "The node was low on resource: memory. Threshold quantity: 40Mi, available: "
        )
        assert "Container c0 was using " in decision["message"]
        live.message(daemon, "node conditions changed", conditions=["MemoryPressure"])
        counted = daemon.metrics()
        assert (counted["outrace_evictions_total"], counted["outrace_eviction_failures_total"]) == (1, 0)
        assert counted['outrace_node_condition{condition="MemoryPressure"}'] == 1


#: A pod of a kubelet's tree with one container, as systemd's driver makes it; and as the kubelet's own.
SLICES = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-{id}.scope"
PLAIN = "kubepods/burstable/pod{uid}/{id}"
UID = "5c2b2da2-119f-4fa8-8801-c79f0fa869aa"


def of_kubelet(node: LabNode, tree: str, uid: str, mib: int) -> Child:
    """A process in a pod that the lab node has no manifest of."""
    name = tree.format(uid=uid, slice=uid.replace("-", "_"), id="46b4aeed" * 8)
    return live.hog_at(node, name, mib=mib, rate=100)


@pytest.mark.newest
def test_a_pod_known_by_its_cgroups_alone_would_be_evicted_and_a_static_one_not(node: LabNode) -> None:
    hog, static = of_kubelet(node, SLICES, UID, 45), of_kubelet(node, SLICES, "e2" * 16, 50)
    static.go()
    static.expect("grown")
    with live.daemon(node, *hard(48), "--pods", "cgroups") as daemon:
        hog.go()
        live.message(daemon, "would evict", uid=UID)
        live.ended(daemon)
        assert {record["uid"] for record in live.messages(daemon, "would evict")} == {UID}


@pytest.mark.once
def test_a_pod_without_a_manifest_is_never_chosen(node: LabNode) -> None:
    """Beside manifests, a pod of kubepods that has none has an unknown priority: the largest one is passed over. Nor is
    it chosen by the manifest of another one, of a low priority, whose annotation names its cgroup.
    """
    unknown = of_kubelet(node, PLAIN, UID, 56)
    unknown.go()
    unknown.expect("grown")
    attacker, pod = node.add_pod("attacker", priority=-10), node.add_pod("known", priority=1000)
    own, other = (
        str(path.relative_to(node.hierarchy.root))
        for path in (attacker.cgroup, node.cgroup / f"kubepods/burstable/pod{UID}")
    )
    attacker.manifest.write_text(attacker.manifest.read_text().replace(f'"{own}"', f'"{other}"'))
    with live.daemon(node, "--enforce", *hard(32)) as daemon:
        assert daemon.wait_for(lambda r: f"is of the pod of uid {UID}" in str(r.get("msg")), live.TIMEOUT_S)
        live.killed_hog(node, pod, 50, rate=100)
        evicted(daemon, pod)
        assert decided(daemon) == ["known"]
    assert unknown.process.poll() is None


# The trigger in the kernel on a lab node: which process it signals in its own charge, and which never.
@pytest.mark.parametrize("pages", ["4k", "thp"])
def test_the_victim_is_signalled_in_its_own_charge(node: LabNode, pages: str) -> None:
    pod = node.add_pod("hog")
    bystander = node.fill(node.add_pod("calm", "Guaranteed", request=16 * MIB), 8)
    with live.daemon(node, *IN_KERNEL, *hard(32)) as daemon:
        second = node.fill(pod, 2)
        armed_for(pod)
        live.killed_hog(node, pod, 100, kind=pages)
        decision, _ = evicted(daemon, pod)
        assert second.wait() == -signal.SIGKILL, "user space finishes the pod"
        assert decision["trigger"] == "kernel"
        assert bystander.process.poll() is None
        counted = daemon.metrics()
        assert counted['outrace_records_total{kind="signal",side="reader"}'] >= 1
        live.ended(daemon)
        assert decided(daemon) == ["hog"]


def test_the_kernel_signals_nobody_outside_the_armed_pod(node: LabNode) -> None:
    """Another pod crosses the line: its process lives, and user space evicts the pod that is armed."""
    victim, database = node.add_pod("victim"), node.add_pod("database", "Guaranteed", request=100 * MIB)
    with live.daemon(node, *IN_KERNEL, *hard(48)) as daemon:
        prey = node.fill(victim, 16)
        armed_for(victim)
        signals = live.metric(daemon, 'records_total{kind="signal",side="kernel"}')
        crosser = node.fill(database, 70)
        decision, _ = evicted(daemon, victim)
        assert prey.wait() == -signal.SIGKILL
        assert decision["trigger"] == "user"
        assert crosser.process.poll() is None
        # Nor a process outside a pod.
        armed_for(database)
        with live.Puppet(cgroupfs.make(node.cgroup / "no-pod")) as stranger:
            stranger.do("anon(2)")
        assert live.metric(daemon, 'records_total{kind="signal",side="kernel"}') == signals


# What an evicted pod leaves behind, or does afterwards.
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


@pytest.mark.newest
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


@pytest.mark.newest
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
