"""The daemon with more cgroups than one turn of its loop counts, and with cgroups deeper than its programs look."""

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.charging import POLL
from monitor.kernel.domains import MAX_LEVEL
from monitor.lab.node import LabNode
from tests import live
from tests.crowd import Crowd
from tests.daemon.hot_node import evicted, hard, hot_node, up_to

pytestmark = [pytest.mark.kernel, pytest.mark.once]
MIB = live.MIB
NOT_WATCHED = "a pod is not watched: the BPF programs do not look that deep"
FAR_DOWN = "/".join(f"l{i}" for i in range(MAX_LEVEL))


def test_with_thousands_of_cgroups_a_pod_is_evicted_all_the_same() -> None:
    """Those without a process; and a sweep is complete in the end, not in the turn it was begun."""
    with hot_node() as node, Crowd(cgroupfs.make(node.cgroup / "crowd"), 4000):
        pod, other = node.add_pod("pod"), node.add_pod("other")
        with live.daemon(node, *hard(24), "--enforce") as daemon:
            node.fill(other, 8)
            node.start_hog(pod, mib=up_to(node, 118)).go()
            decision, _ = evicted(daemon, pod)
            assert decision["trigger"] == "user"
            live.until(lambda: live.metric(daemon, "sweeps_total") > 1, "sweeps")
            metrics = daemon.metrics()
            assert metrics["outrace_sweep_max_seconds"] >= metrics["outrace_sweep_took_seconds"] > 0
            assert 0 < metrics["outrace_sweep_turn_max_seconds"] < metrics["outrace_sweep_max_seconds"]
            assert metrics["outrace_pods_uncounted"] == 0
            live.ended(daemon)
            assert live.messages(daemon, NOT_WATCHED) == []


def test_a_pod_deeper_than_the_programs_look_is_named_and_not_taken_for_empty() -> None:
    with hot_node() as node:
        deep, pod = node.add_pod("deep", under=FAR_DOWN), node.add_pod("pod")
        node.fill(deep, 40)
        with live.daemon(node, *hard(24), "--enforce") as daemon:
            logged = live.message(daemon, NOT_WATCHED)
            assert (logged["pod"], logged["levels"]) == ("lab/deep", MAX_LEVEL)
            live.until(lambda: live.metric(daemon, "pods_uncounted") == 1, "the metric")
            node.start_hog(pod, mib=70).go()
            evicted(daemon, pod)
            live.ended(daemon)
            assert len(live.messages(daemon, NOT_WATCHED)) == 1


def test_a_node_deeper_than_the_programs_look_is_watched_by_its_files() -> None:
    """Or, with a hook that was asked for by name, refused in one line."""
    with LabNode("test-deep", 128 * MIB) as node:
        path = cgroupfs.make(node.cgroup / FAR_DOWN)
        cgroupfs.set_limit(path, 64 * MIB)
        relative = str(path.relative_to(node.hierarchy.root))
        problem = f"{path} is not counted by the BPF programs, which look at {MAX_LEVEL} levels"
        pod = node.add_pod("pod", under=FAR_DOWN)
        with live.daemon(node, *hard(20), "--enforce", "--node-cgroup", relative) as daemon:
            assert live.rung(daemon) == POLL
            logged = live.message(daemon, "better hooks cannot be used here")
            assert problem in logged["problem"]
            node.start_hog(pod, mib=56).go()
            evicted(daemon, pod)
        hooks, place = live.Watching(attach=False).pins.hook, str(live.state_dir())
        options = ("--node-cgroup", relative, "--hooks", hooks, "--state-dir", place, "--listen", "127.0.0.1:0")
        refused = live.outrace("run", *options, "--pods", f"manifests:{node.manifests}")
        live.one_line(refused, 3, problem)
