"""`outrace explain` on a small node of real cgroups: thresholds, the order of all pods, one pod."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from monitor.kernel import cgroupfs
from monitor.lab.node import LabNode
from monitor.policy.releases import ERAS
from tests.commands import called
from tests.live import MIB, Puppet, cgroup, daemon, one_line, until

MEMORY = "memory.available"
NOTHING = "memory is not short: no pod would be evicted for it now"
pytestmark = [pytest.mark.live, pytest.mark.once, pytest.mark.skipif(os.geteuid() != 0, reason="not root: no cgroup")]


@pytest.fixture(scope="module")
def node() -> Iterator[LabNode]:
    """A pod of each QoS class and a critical one; the Burstable one is furthest above its request."""
    with LabNode("test-explain", 256 * MIB) as made:
        pods = (
            (made.add_pod("guaranteed", "Guaranteed", request=64 * MIB), 24),
            (made.add_pod("burstable", "Burstable", request=8 * MIB), 40),
            (made.add_pod("besteffort"), 16),
            (made.add_pod("critical", priority=2 * 10**9), 4),
        )
        for pod, mib in pods:
            made.fill(pod, mib)
        yield made


def options(node: LabNode, *more: str) -> list[str]:
    """The options that find ``node``, with no daemon to ask."""
    found = ("--node-cgroup", node.cgroup.name, "--pods", f"manifests:{node.manifests}")
    return [*found, "--state-dir", str(node.manifests / "state"), *more]


def text(node: LabNode, *arguments: str) -> str:
    done = called("explain", *options(node), *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def explain(node: LabNode, *arguments: str) -> dict[str, Any]:
    return json.loads(text(node, *arguments, "-o", "json"))


def names(answer: dict[str, Any]) -> list[str]:
    return [row["pod"] for row in answer["order"]]


def test_thresholds_of_a_quiet_node(node: LabNode) -> None:
    answer = explain(node, "--eviction-hard", "memory.available<12.5%,memory.reclaimable<1Mi,nodefs.available<100Pi")
    assert (answer["source"], answer["signal"], answer["policy"]) == ("cgroup files", MEMORY, [ERAS[0]])
    found = answer["node"]
    assert (found["cgroup"], found["capacity"]) == (str(node.cgroup), 256 * MIB)
    assert (found["verdict"], found["conditions"], found["starved"]) == (NOTHING, [], None)
    memory, own = found["thresholds"]  # no disk; and there is no kubepods here
    assert (memory["signal"], memory["kind"], memory["value"]) == (MEMORY, "hard", "12.5%")
    assert memory["distance"] == memory["available"] - 32 * MIB > 0
    assert own["signal"] == "memory.reclaimable"
    assert [(row["met"], row["first"]) for row in (memory, own)] == [(False, True), (False, False)]


def test_a_starved_node_shows_who_would_go(node: LabNode) -> None:
    answer = explain(node, "lab/burstable", "--eviction-hard", "memory.available<99%")
    found = answer["node"]
    assert found["starved"] == {"signal": MEMORY, "threshold": "memory.available<99%"}
    assert found["verdict"] == "memory.available is starved: lab/burstable would be evicted now, with 1 s of grace"
    assert found["conditions"] == ["MemoryPressure"]
    assert [row["signal"] for row in found["thresholds"] if row["first"]] == [MEMORY]
    shown = text(node, "--eviction-hard", "memory.available<99%")
    assert "conditions of memory a pass would raise now: MemoryPressure\n" in shown


def test_a_soft_threshold_begins_its_grace(node: LabNode) -> None:
    soft = ("--eviction-soft", "memory.available<99%", "--eviction-soft-grace-period", "memory.available=90s")
    found = explain(node, *soft, "--eviction-max-pod-grace-period", "20")["node"]
    assert found["verdict"] == f"{NOTHING}; memory.available<99% for 90s is met and acts if it stays so"
    assert found["conditions"] == ["MemoryPressure"]


def test_nobody_is_left_to_evict() -> None:
    with LabNode("test-explain-few", 64 * MIB) as node:
        starved = ("--eviction-hard", "memory.available<100Mi")
        assert explain(node, *starved)["node"]["verdict"].endswith("but there are no pods: no pod would be evicted")
        assert "no pods\n" in text(node)
        one_line(called("explain", *options(node), "x"), 1, "no pod 'x'", "there are no pods here")
        node.add_pod("critical", priority=2 * 10**9)
        assert explain(node, *starved)["node"]["verdict"] == (
            "memory.available is starved, but every pod is critical: no pod would be evicted"
        )
        assert explain(node, "--eviction-hard", "")["node"]["verdict"].startswith("no threshold for memory is")


def test_pods_known_by_their_cgroups_alone() -> None:
    uid, static = "7a0d1f8e-0000-4000-8000-00000000beef", "e2" * 16
    with cgroup("explain-tree", 256 * MIB) as path, ExitStack() as puppets:
        kubepods = cgroupfs.make(path / "kubepods")
        cgroupfs.set_limit(kubepods, 128 * MIB)
        for pod, mib in ((uid, 16), (static, 32)):
            puppet = puppets.enter_context(Puppet(cgroupfs.make(kubepods / "besteffort" / f"pod{pod}" / "0123abcd")))
            puppet.do(f"anon({mib})")
        arguments = ("--node-cgroup", path.name)
        done = called("explain", uid, "--eviction-hard", "memory.available<95%", *arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        (row,) = (row for row in answer["order"] if row["uid"] == uid)
        assert (row["priority"], row["spec_known"], answer["pod"]["qos"]["class"]) == (None, False, "BestEffort")
        # More than 5 % of kubepods' limit and of the node's is used: the copy, of the smaller one, is first.
        assert answer["signal"] == "allocatableMemory.available"
        rows = {row["signal"]: row for row in answer["node"]["thresholds"]}
        own, copy = rows[MEMORY], rows[answer["signal"]]
        assert copy["quantity"] < own["quantity"]
        assert [(one["met"], one["first"]) for one in (own, copy)] == [(True, False), (True, True)]
        assert answer["pod"]["next"]
        shown = called("explain", static, *arguments).stdout
        assert f"{static}: never evicted" in shown
        assert "its uid is no UUID of the API server: a static pod" in shown
        shown = called("top", "--once", *arguments).stdout
        assert sum(" ? " in line for line in shown.splitlines() if static in line or uid in line) == 2, "priorities"


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["lab/burstible"], 1, ("no pod 'lab/burstible'", "pods are lab/burstable")),
        (["--signal", "x"], 2, ("`outrace explain --signal` is gone: use `outrace explain` without it",)),
        (["--policy", "kubelet-1.9"], 2, ("--policy: 'kubelet-1.9'", "kubelet-1.17")),
        (["--enforce"], 2, ("No such option",)),
    ],
)
def test_mistakes_are_one_line(node: LabNode, arguments: list[str], code: int, expected: tuple[str, ...]) -> None:
    one_line(called("explain", *options(node), *arguments), code, *expected)


@pytest.mark.kernel
def test_exact_figures_from_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    with LabNode("test-explain-daemon", 128 * MIB) as node:
        pod = node.add_pod("hog")
        with daemon(node, "--eviction-hard", "memory.available<99%") as running:
            node.fill(pod, 16)
            monkeypatch.setenv("OUTRACE_RUN_DIR", str(running.state_dir))

            def answer() -> dict[str, Any] | None:
                done = called("explain", "hog", "-o", "json")
                assert done.returncode == 0, done.stderr
                found: dict[str, Any] = json.loads(done.stdout)
                return found if found["node"]["held_conditions"] and found["order"][0]["usage"] else None

            found = until(answer, "the daemon's conditions")
            assert found["source"].startswith("daemon ")
            assert found["node"]["held_conditions"] == ["MemoryPressure"]
            assert found["order"][0]["usage"] >= 16 * MIB

            def victim() -> dict[str, Any] | None:
                found: dict[str, Any] = json.loads(called("top", "--once", "-o", "json").stdout)
                return found["kernel_victim"]

            shown = until(victim, "a look at the processes")
            assert (shown["pod"], shown["uid"], shown["rss"] > 16 * MIB) == ("lab/hog", pod.uid, True)


def test_a_pod_is_found_by_its_label_its_uid_and_its_name(node: LabNode) -> None:
    own = node.pods["besteffort"]
    for wanted in ("lab/besteffort", own.uid, "besteffort"):
        found = explain(node, wanted)["pod"]
        assert (found["pod"], found["uid"], found["cgroup"]) == ("lab/besteffort", own.uid, str(own.cgroup))
        assert (found["rank"], found["of"], found["next"]) == (2, 4, False)
    twin = node.add_pod("besteffort", namespace="other")
    try:
        one_line(called("explain", *options(node), "besteffort"), 1, "2 pods are called besteffort", "other/beste")
        assert explain(node, "other/besteffort")["pod"]["uid"] == twin.uid
    finally:
        node.remove_pod(twin)
        node.pods["besteffort"] = own


def test_the_whole_order(node: LabNode) -> None:
    order = explain(node)["order"]
    assert [row["pod"] for row in order] == ["lab/burstable", "lab/besteffort", "lab/critical", "lab/guaranteed"]
    assert [row["rank"] for row in order] == [1, 2, 3, 4]
    assert [row["critical"] for row in order] == [False, False, True, False]
    first = order[0]
    assert (first["uid"], first["qos"], first["request"]) == (node.pods["burstable"].uid, "Burstable", 8 * MIB)
    assert first["usage"] >= 40 * MIB
    shown = text(node)
    (line,) = [line for line in shown.splitlines() if "lab/critical" in line]
    assert line.split()[-4:] == ["2000000000", "BestEffort", "never", "evicted"]


def test_another_release_decides_everything(node: LabNode) -> None:
    assert names(explain(node, "--policy", ERAS[1])) == names(explain(node))
    answer = explain(node, "critical", "--policy", "kubelet-1.8")
    assert (answer["policy"], "eras" in answer) == (["kubelet-1.8"], False)
    # By class first: what a Burstable pod takes counts only among its like; priority protects no pod.
    assert names(answer) == ["lab/besteffort", "lab/critical", "lab/burstable", "lab/guaranteed"]
    assert answer["pod"]["critical"]["critical"] is False


def test_why_it_would_be_next(node: LabNode) -> None:
    pod = explain(node, "burstable")["pod"]
    assert (pod["next"], pod["rank"]) == (True, 1)
    assert (pod["qos"]["class"], pod["qos"]["why"][:15]) == ("Burstable", "not Guaranteed:")
    assert pod["request"]["value"] == 8 * MIB
    (behind,) = pod["against"]
    assert (behind["role"], behind["pod"], behind["goes_first"]) == ("behind it", "lab/besteffort", False)
    assert [c["name"] for c in behind["comparisons"] if c["decides"]] == ["excess"]
    shown = text(node, "burstable")
    assert "lab/burstable: rank 1 of 4, the next to be evicted for memory.available\n" in shown


def test_why_it_would_not_be_next(node: LabNode) -> None:
    pod = explain(node, "guaranteed")["pod"]
    assert (pod["next"], pod["rank"], pod["critical"]["critical"]) == (False, 4, False)
    (first,) = pod["against"]
    assert (first["role"], first["pod"], first["goes_first"]) == ("first victim", "lab/burstable", True)
    assert [c["name"] for c in first["comparisons"] if c["decides"]] == ["usage"]
    critical = explain(node, "critical")["pod"]
    assert critical["critical"] == {"critical": True, "why": "priority 2000000000"}
    assert "lab/critical: never evicted (it would be rank 3 of 4) for memory.available\n" in text(node, "critical")
