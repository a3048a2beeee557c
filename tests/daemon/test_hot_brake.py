"""The brake on evictions on the live kernel: nobody dies for what no eviction can relieve."""

import json
import signal
import time
from typing import Any

import pytest

from monitor.kernel import cgroupfs
from monitor.lab.child import Hog
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from monitor.policy.eviction_brake import OBSERVE_NS
from tests import live
from tests.daemon.hot_node import IN_KERNEL, armed, decided, evicted, hard, losing_node, passes, up_to

pytestmark = [pytest.mark.kernel, pytest.mark.previous]
#: In guests one test that nobody dies and one that the right one does: how growth is measured differs by rung, what
#: follows from it does not (monitor/policy).
ENFORCE = pytest.param(("--enforce",), id="enforce")
KERNEL = pytest.param(IN_KERNEL, id="kernel", marks=pytest.mark.once)

HELD = "evictions are held: they would not help"
OVER = "evictions are not held any more"

node = live.fixture(losing_node)


def stranger(node: LabNode, **options: str | int) -> Hog:
    """A process in the node's cgroup that is in no pod."""
    hog = Hog(cgroupfs.make(node.cgroup / "system"), **options)
    node.children.append(hog)
    return hog


#: What a process outside has, of a node of 128 MiB with a threshold of 32: more than any eviction makes up for. (With
#: less it is evicted for once it stands still, which is known after 12 s: no time at all on an emulated CPU.)
TOO_MUCH = 100


def small(node: LabNode, number: int = 5, mib: int = 3) -> list[Hog]:
    """Pods that are far below their requests."""
    return [live.filled(node, node.add_pod(f"small-{n}", "Burstable", request=32 * MIB), mib) for n in range(number)]


def asked(daemon: LabDaemon, *command: str) -> dict[str, Any]:
    """What a command shows of the daemon's node."""
    done = live.outrace(*command, "--run-dir", str(daemon.state_dir), "-o", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def survive(hogs: list[Hog]) -> None:
    assert [hog.process.poll() for hog in hogs] == [None] * len(hogs)


def braked(daemon: LabDaemon) -> list[str]:
    """The reasons that evictions are held for, as the metric has them."""
    prefix = 'outrace_evictions_braked{reason="'
    return [k.removeprefix(prefix)[:-2] for k, v in daemon.metrics().items() if k.startswith(prefix) and v == 1]


@pytest.mark.parametrize("options", [ENFORCE, KERNEL, pytest.param((), id="observe", marks=pytest.mark.once)])
def test_a_process_in_no_pod_costs_no_pod_its_life(node: LabNode, options: tuple[str, ...]) -> None:
    with live.daemon(node, *options, *hard(32)) as daemon:
        pods = small(node)
        hog = stranger(node, mib=TOO_MUCH, rate=100)
        passes(daemon)
        hog.go()
        assert live.message(daemon, HELD)["reason"] in ("outgrown", "not_covered")
        logged = live.message(daemon, HELD, reason="not_covered")
        assert logged["kubelet_would_evict"].startswith("lab/small-")
        hog.expect("grown")
        live.until(lambda: braked(daemon), "the metric")
        taker = live.message(daemon, "what no eviction gives back is taken by")["takers"][0]
        assert str(hog.pid) in taker
        assert "/system:" in taker
        assert armed() == 0
        survive(pods)
        shown = asked(daemon, "top", "--once")["braked"]
        assert [shown["reason"]] == braked(daemon)
        assert shown["takers"][0].startswith(taker.partition(": ")[0])
        shown = asked(daemon, "explain")
        assert shown["node"]["braked"]["takers"][0].startswith(taker.partition(": ")[0])
        # Whom the kubelet would evict now stays the answer, and is shown.
        assert shown["node"]["verdict"].endswith(f"{shown['order'][0]['pod']} would be evicted now")
        assert shown["node"]["braked"]["name"].startswith("lab/small-")
        hog.free()
        live.message(daemon, OVER, why="the shortage is over")
        live.until(lambda: not braked(daemon), "the metric to be back")
        survive(pods)
        counted = daemon.metrics()
        assert sum(v for k, v in counted.items() if k.startswith("outrace_eviction_brakes_total")) == 1
        assert counted["outrace_pods_chosen_total"] == 0
        live.ended(daemon)
        assert decided(daemon) == []
        assert live.messages(daemon, "would evict") == []


@pytest.mark.once
def test_a_daemon_that_is_started_again_evicts_nobody_before_it_knows_what_grows(node: LabNode) -> None:
    """It knew nothing of what had grown, took what pods had before it knew them for growth of theirs, and evicted all
    five within a second.
    """
    before, hog = stranger(node, mib=60, rate=200), stranger(node, mib=40, rate=10)
    pods = small(node)
    before.go()
    before.expect("grown")
    with live.daemon(node, "--enforce", *hard(32)) as daemon:
        hog.go()
        live.message(daemon, HELD)
        daemon.process.kill()
        daemon.process.wait()
    with live.daemon(node, "--enforce", *hard(32)) as daemon:
        live.message(daemon, HELD)
        hog.expect("grown")
        live.ended(daemon)
        assert decided(daemon) == []
    survive(pods)


@pytest.mark.once
def test_a_leak_outside_is_seen_beside_a_pod_that_trembles(node: LabNode) -> None:
    """Growth was remembered for 24 samples: 0.12 s where something moves all the time, and 4 MiB a second were none."""
    trembling = node.add_pod("trembling", priority=2_000_001_000)  # critical: what it takes is outside of who may go
    with live.daemon(node, "--enforce", *hard(32)) as daemon:
        pods = small(node)
        before, leak = stranger(node, mib=62, rate=200), stranger(node, mib=36, rate=4)
        before.go()
        before.expect("grown")
        node.start_hog(trembling, mib=3, cycles=1 << 30).go()
        leak.go()
        live.message(daemon, HELD)
        leak.expect("grown")
        live.ended(daemon)
        assert decided(daemon) == []
    survive(pods)


@pytest.mark.once
@pytest.mark.parametrize("hooks", ["auto", "poll"])
def test_a_pod_that_becomes_known_meanwhile_has_not_grown(node: LabNode, hooks: str) -> None:
    """What it had already was taken for growth of pods, and it was evicted for what a process in no pod took."""
    late = live.filled(node, node.add_pod("late", "Burstable", request=32 * MIB), 10)
    manifest = node.pods["late"].manifest
    away = manifest.rename(manifest.with_suffix(".away"))
    with live.daemon(node, "--enforce", "--hooks", hooks, *hard(32)) as daemon:
        pods = small(node)
        before = stranger(node, mib=up_to(node, 96 - 6), rate=200)
        before.go()
        before.expect("grown")
        hog = stranger(node, mib=14, rate=3)
        hog.go()
        live.until(lambda: node.usage() > 93 * MIB, "the threshold to be near")
        away.rename(manifest)
        live.message(daemon, "pod found", pod="lab/late")
        live.message(daemon, HELD)
        hog.expect("grown")
        live.ended(daemon)
        assert decided(daemon) == []
    survive([late, *pods])


@pytest.mark.once
def test_who_gives_back_outside_is_waited_for(node: LabNode) -> None:
    """When what was missing had become less than what pods have, one went although 100 MiB were on their way back."""
    pods = small(node)
    with live.Puppet(cgroupfs.make(node.cgroup / "system")) as outside:
        outside.do("for _ in range(104): anon(1)")
        with live.daemon(node, "--enforce", *hard(32)) as daemon:
            live.message(daemon, HELD, reason="not_covered")
            time.sleep(1.5 * OBSERVE_NS / 1e9)  # nobody goes before that anyway
            # From where pods cover what is missing to the end in 0.05 s: a break of 0.1 s there is taken for the end.
            outside.do("while kept: kept.pop().close(); time.sleep(0.003)")
            live.message(daemon, OVER, why="the shortage is over")
            live.ended(daemon)
        assert decided(daemon) == []
    survive(pods)


@pytest.mark.once
def test_a_shortage_that_stands_still_when_a_daemon_starts_is_ended(node: LabNode) -> None:
    pods = [live.filled(node, node.add_pod(f"large-{n}", "Burstable", request=8 * MIB), 25) for n in range(4)]
    with live.daemon(node, "--enforce", *hard(32)) as daemon:
        live.message(daemon, "evicted")
        live.ended(daemon)
        assert len(decided(daemon)) == 1
    assert sum(hog.process.poll() is None for hog in pods) == 3


@pytest.mark.once
def test_the_kernel_takes_the_process_that_grows_and_no_pod_was_evicted_before(node: LabNode) -> None:
    with live.daemon(node, "--enforce", *hard(32)) as daemon:
        pods = small(node)
        hog = stranger(node, mib=200, rate=100)
        passes(daemon)
        hog.go()
        assert hog.wait() == -signal.SIGKILL
        survive(pods)
        live.message(daemon, OVER)
        live.ended(daemon)
        assert decided(daemon) == []


@pytest.mark.once
def test_with_the_answers_of_the_kubelet_there_is_no_brake(node: LabNode) -> None:
    with live.daemon(node, "--enforce", "--compat", "kubelet-1.36", *hard(32)) as daemon:
        small(node)
        stranger(node, mib=92, rate=100).go()
        live.until(lambda: len(decided(daemon)) >= 2, "two pods to be evicted for nothing")


@pytest.mark.parametrize("options", [ENFORCE, KERNEL])
def test_a_pod_that_grows_is_evicted_while_evictions_are_held(node: LabNode, options: tuple[str, ...]) -> None:
    """What is outside stands still, and no eviction makes up for it: a pod that then grows goes, and nobody else."""
    with live.daemon(node, *options, *hard(32)) as daemon:
        pods = small(node, 2)
        outside = stranger(node, mib=TOO_MUCH, rate=200)
        outside.go()
        outside.expect("grown")
        live.message(daemon, HELD)
        hog = node.start_hog(node.add_pod("hog"), mib=100, rate=20)
        hog.go()
        assert hog.wait() == -signal.SIGKILL
        evicted(daemon, node.pods["hog"])
        survive(pods)
        live.ended(daemon)
        assert decided(daemon) == ["hog"]
    assert node.oom_kills() == 0


@pytest.mark.once
def test_without_bpf_the_same_are_held_and_let_go(node: LabNode) -> None:
    with live.daemon(node, "--enforce", "--hooks", "poll", *hard(32)) as daemon:
        pods = small(node, 2)
        outside = stranger(node, mib=TOO_MUCH, rate=100)
        outside.go()
        outside.expect("grown")
        live.message(daemon, HELD)
        survive(pods)
        hog = node.start_hog(node.add_pod("hog"), mib=100, rate=20)
        hog.go()
        assert hog.wait() == -signal.SIGKILL
        survive(pods)
        live.ended(daemon)
        assert decided(daemon) == ["hog"]


@pytest.mark.once
def test_hogs_in_two_pods_beside_one_outside_are_evicted(node: LabNode) -> None:
    with live.daemon(node, "--enforce", *hard(48)) as daemon:
        outside = stranger(node, mib=24, rate=10)
        hogs = [node.start_hog(node.add_pod(name), mib=100, rate=15) for name in ("one", "two")]
        for each in (outside, *hogs):
            each.go()
        for hog in hogs:
            assert hog.wait() == -signal.SIGKILL
        live.ended(daemon)
        assert sorted(decided(daemon)) == ["one", "two"]
    assert node.oom_kills() == 0


@pytest.mark.once
def test_candidates_that_just_cover_what_is_missing_are_evicted(node: LabNode) -> None:
    """Outside of the pods grew, and stands still: with one pod less the shortage is over."""
    with live.daemon(node, "--enforce", *hard(32)) as daemon:
        pods = small(node, mib=8)
        outside = stranger(node, mib=40, rate=200)
        outside.go()
        outside.expect("grown")
        passes(daemon)
        more = stranger(node, mib=up_to(node, 96 + 4), rate=20)  # half of a pod is missing then
        more.go()
        more.expect("grown")
        live.message(daemon, HELD)
        # Growth is remembered for 12 s; then it is known that it stands still.
        live.message(daemon, "evicted")
        live.message(daemon, OVER, why="evictions help now")
        live.ended(daemon)
        assert len(decided(daemon)) == 1
        assert sum(hog.process.poll() is None for hog in pods) == 4


@pytest.mark.once
def test_growth_that_demands_it_takes_a_pod_that_covers(node: LabNode) -> None:
    """The pod covers what is missing; memory would be used up otherwise, and was not yet when it was crossed."""
    with live.daemon(node, "--enforce", *hard(48)) as daemon:
        large = live.filled(node, node.add_pod("large"), 56)
        hog = stranger(node, mib=68, rate=20)
        passes(daemon)
        hog.go()
        live.message(daemon, HELD)
        decision = live.message(daemon, "evicting", pod="lab/large")
        assert decision["braked"] == "outgrown"
        assert decision["available"] < 26 * MIB
        assert large.wait() == -signal.SIGKILL
        hog.expect("grown")
        live.ended(daemon)
    assert node.oom_kills() == 0
