"""Evictions suspended on the live kernel: smokes of what test_evictions_played.py plays on the simulated node."""

import json
import signal
from typing import Any

import pytest

from monitor.lab.child import Child
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from tests import live
from tests.daemon.hot_node import IN_KERNEL, armed, decided, evicted, hard, losing_node, passes, up_to

pytestmark = [pytest.mark.kernel, pytest.mark.previous]
#: In guests one test that no pod is evicted and one that the right one is: how growth is measured differs by rung, what
#: follows from it does not (monitor/policy).
ENFORCE = pytest.param(("--enforce",), id="enforce")

HELD = "evictions are suspended: they would not help"
OVER = "evictions are resumed"

node = live.fixture(losing_node)


#: What a process outside has, of a node of 128 MiB with a threshold of 32: more than any eviction makes up for. (With
#: less it is evicted for once it stands still, which is known after 12 s: no time at all on an emulated CPU.)
TOO_MUCH = 100


def small(node: LabNode, number: int = 5, mib: int = 3) -> list[Child]:
    """Pods that are far below their requests."""
    return [node.fill(node.add_pod(f"small-{n}", "Burstable", request=32 * MIB), mib) for n in range(number)]


def asked(daemon: LabDaemon, *command: str) -> dict[str, Any]:
    """What a command shows of the daemon's node."""
    done = live.outrace(*command, "-o", "json", asking=daemon)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def survive(hogs: list[Child]) -> None:
    assert [hog.process.poll() for hog in hogs] == [None] * len(hogs)


def braked(daemon: LabDaemon) -> list[str]:
    """The reasons that evictions are suspended for, as the metric has them."""
    prefix = 'outrace_evictions_braked{reason="'
    return [k.removeprefix(prefix)[:-2] for k, v in daemon.metrics().items() if k.startswith(prefix) and v == 1]


@pytest.mark.parametrize("options", [ENFORCE, pytest.param((), id="observe", marks=pytest.mark.once)])
def test_a_process_in_no_pod_costs_no_pod_its_life(node: LabNode, options: tuple[str, ...]) -> None:
    with live.daemon(node, *options, *hard(32)) as daemon:
        pods = small(node)
        hog = live.hog_at(node, "system", mib=TOO_MUCH, rate=100)
        passes(daemon)
        hog.go()
        assert live.message(daemon, HELD)["reason"] in ("outgrown", "not_covered")
        logged = live.message(daemon, HELD, reason="not_covered")
        assert logged["kubelet_would_evict"].startswith("lab/small-")
        hog.expect("grown")
        live.until(lambda: braked(daemon), "the metric")
        taker = live.message(daemon, "largest memory users outside evictable pods")["takers"][0]
        assert str(hog.pid) in taker
        assert "/system:" in taker
        assert armed() == 0
        survive(pods)
        shown = asked(daemon, "top", "--once")["braked"]
        assert [shown["reason"]] == braked(daemon)
        assert shown["takers"][0].startswith(taker.partition(": ")[0])
        shown = asked(daemon, "explain")
        assert shown["node"]["braked"]["takers"][0].startswith(taker.partition(": ")[0])
        # The pod that the kubelet would evict now stays the answer, and is shown.
        assert f": {shown['order'][0]['pod']} would be evicted now" in shown["node"]["verdict"]
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


@pytest.mark.parametrize(
    "options",
    [
        ENFORCE,
        pytest.param(IN_KERNEL, id="kernel", marks=pytest.mark.once),
        pytest.param(("--enforce", "--hooks", "poll"), id="poll", marks=pytest.mark.once),
    ],
)
def test_a_pod_that_grows_is_evicted_while_evictions_are_held(node: LabNode, options: tuple[str, ...]) -> None:
    """What is outside stands still, and no eviction makes up for it: a pod that then grows goes, and no other."""
    with live.daemon(node, *options, *hard(32)) as daemon:
        pods = small(node, 2)
        hog = node.start_hog(node.add_pod("hog"), mib=12, rate=10)
        outside = live.hog_at(node, "system", mib=up_to(node, 108), rate=200)
        outside.go()
        outside.expect("grown")
        live.message(daemon, HELD)
        survive(pods)
        hog.go()  # and does not use up the node's memory, however late it is evicted
        assert hog.wait() == -signal.SIGKILL
        evicted(daemon, node.pods["hog"])
        survive(pods)
        live.ended(daemon)
        assert decided(daemon) == ["hog"]
    assert node.oom_kills() == 0
