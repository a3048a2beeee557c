"""`outrace explain` on the node as a whole: its thresholds, who would go now, the daemon's figures, and mistakes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.main import main
from monitor.kernel import cgroupfs
from monitor.lab.node import LabNode
from monitor.policy.releases import ERAS
from tests.cli.explain_node import MEMORY, NOTHING, explain, explained_node, names, options, text
from tests.live import MIB, Puppet, cgroup, daemon, filled, one_line, outrace, until

node = pytest.fixture(explained_node, scope="module")


def test_thresholds_of_a_quiet_node(node: LabNode) -> None:
    answer = explain(node, "--eviction-hard", "memory.available<12.5%,nodefs.available<1Ki")
    assert (answer["source"], answer["signal"], answer["policy"]) == ("cgroup files", MEMORY, [ERAS[0]])
    found = answer["node"]
    assert (found["cgroup"], found["capacity"]) == (str(node.cgroup), 256 * MIB)
    assert (found["verdict"], found["conditions"], found["evictions"], found["starved"]) == (NOTHING, [], [], None)
    memory = found["thresholds"][0]
    assert (memory["signal"], memory["kind"], memory["value"], memory["quantity"]) == (
        MEMORY,
        "hard",
        "12.5%",
        32 * MIB,
    )
    assert memory["distance"] == memory["available"] - 32 * MIB > 0
    assert memory["capacity"] == 256 * MIB
    rows = {row["signal"]: row for row in found["thresholds"]}
    assert rows["allocatableMemory.available"]["available"] is None  # there is no kubepods here
    disk, facts = rows["nodefs.available"], os.statvfs("/var/lib/kubelet" if Path("/var/lib/kubelet").exists() else "/")
    assert (disk["quantity"], disk["capacity"]) == (1024, facts.f_blocks * facts.f_frsize)
    assert [row["met"] for row in found["thresholds"]] == [False] * len(rows)
    shares = {row["signal"]: row["distance"] / row["capacity"] for row in rows.values() if row["capacity"]}
    assert [row["signal"] for row in rows.values() if row["first"]] == [min(shares, key=lambda name: shares[name])]


def test_a_starved_node_shows_who_would_go(node: LabNode) -> None:
    answer = explain(node, "lab/burstable", "--eviction-hard", "memory.available<99%")
    found = answer["node"]
    assert found["starved"] == {"signal": MEMORY, "threshold": "memory.available<99%"}
    assert found["verdict"] == "memory.available is starved: lab/burstable would be evicted now"
    assert found["conditions"] == ["MemoryPressure"]
    (eviction,) = found["evictions"]
    assert (eviction["pod"], eviction["grace_s"]) == ("lab/burstable", 1)
    # The message shown for the pod is that of the pass.
    assert answer["pod"]["eviction"]["message"] == eviction["message"]
    assert "Container c0 was using" in eviction["message"]
    assert [row["signal"] for row in found["thresholds"] if row["first"]] == [MEMORY]
    shown = text(node, "--eviction-hard", "memory.available<99%")
    assert "conditions a pass would raise now: MemoryPressure\n" in shown
    assert f"lab/burstable, with 1 s of grace: {eviction['message'][:40]}" in shown


def test_a_soft_threshold_begins_its_grace(node: LabNode) -> None:
    soft = ("--eviction-soft", "memory.available<99%", "--eviction-soft-grace-period", "memory.available=90s")
    answer = explain(node, "guaranteed", *soft, "--eviction-max-pod-grace-period", "20")
    found = answer["node"]
    assert found["verdict"] == f"{NOTHING}; memory.available<99% for 90s is met and acts if it stays so"
    assert (found["conditions"], found["evictions"]) == (["MemoryPressure"], [])
    # Of the signal there are a hard and a soft threshold: the pod would go for the hard one.
    assert answer["pod"]["eviction"]["grace_s"] == 1
    alone = explain(node, "guaranteed", *soft, "--eviction-max-pod-grace-period", "20", "--eviction-hard", "")
    assert alone["pod"]["eviction"]["grace_s"] == 20
    assert alone["pod"]["admission"]["admitted"] is True
    best_effort = explain(node, "besteffort", *soft)["pod"]
    assert best_effort["admission"] == {
        "conditions": ["MemoryPressure"],
        "admitted": False,
        "reason": "Evicted",
        "message": "The node had condition: [MemoryPressure]. ",
    }


def test_nobody_is_left_to_evict() -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    with LabNode("test-explain-few", 64 * MIB) as node:
        starved = ("--eviction-hard", "memory.available<100Mi")
        assert explain(node, *starved)["node"]["verdict"].endswith("but there are no pods: nobody would be evicted")
        assert "no pods\n" in text(node)
        one_line(outrace("explain", *options(node), "x"), 1, "no pod 'x'", "there are no pods here")
        node.add_pod("critical", priority=2 * 10**9)
        assert explain(node, *starved)["node"]["verdict"] == (
            "memory.available is starved, but every pod is critical: nobody would be evicted"
        )
        assert explain(node, "--eviction-hard", "")["node"]["verdict"].startswith("no threshold is configured")


def test_values_are_spelt_as_they_were_written(node: LabNode) -> None:
    written = "memory.available<0.0625Gi,nodefs.inodesFree<1e1"
    rows = {row["signal"]: row for row in explain(node, "--eviction-hard", written)["node"]["thresholds"]}
    assert [(rows[name]["value"], rows[name]["quantity"]) for name in (MEMORY, "nodefs.inodesFree")] == [
        ("0.0625Gi", 64 * MIB),
        ("1e1", 10),
    ]
    # Those that are copies are the policy's own.
    assert rows["containerfs.inodesFree"]["quantity"] == 10


def test_pods_known_by_their_cgroups_alone() -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    uid = "7a0d1f8e-0000-4000-8000-00000000beef"
    with cgroup("explain-tree", 256 * MIB) as path:
        kubepods = cgroupfs.make(path / "kubepods")
        cgroupfs.set_limit(kubepods, 128 * MIB)
        container = cgroupfs.make(kubepods / "besteffort" / f"pod{uid}" / "0123abcd")
        with Puppet(container) as puppet:
            puppet.do("open('/proc/self/oom_score_adj', 'w').write('1000')")
            puppet.do("anon(16)")
            arguments = ("--node-cgroup", path.name, "-o", "json")
            done = outrace("explain", uid, "--eviction-hard", "memory.available<95%", *arguments)
            assert done.returncode == 0, done.stderr
            answer = json.loads(done.stdout)
            assert names(answer) == [uid]
            assert answer["pod"]["qos"]["class"] == "BestEffort"
            assert (answer["order"][0]["priority"], answer["order"][0]["spec_known"]) == (None, False)
            assert "unknown" in next(c["verdict"] for c in answer["order"][0]["comparisons"] if c["name"] == "priority")
            assert answer["pod"]["oom_score_adj"]["mismatches"] == []
            # 16 MiB are more than 5 % of kubepods' limit and of the node's: the copy, of the smaller one, goes first.
            assert answer["signal"] == "allocatableMemory.available"
            rows = {row["signal"]: row for row in answer["node"]["thresholds"]}
            assert [rows[name]["capacity"] for name in (MEMORY, answer["signal"])] == [256 * MIB, 128 * MIB]
            assert [rows[name]["met"] for name in (MEMORY, answer["signal"])] == [True, True]
            assert [rows[name]["first"] for name in (MEMORY, answer["signal"])] == [False, True]
            assert answer["node"]["evictions"][0]["uid"] == uid
            # A static pod: its uid is a hash.
            static = cgroupfs.make(kubepods / "besteffort" / f"pod{'e2' * 16}" / "0123abcd")
            with Puppet(static) as other:
                other.do("open('/proc/self/oom_score_adj', 'w').write('1000')")
                other.do("anon(32)")
                text = outrace("explain", "e2" * 16, "--eviction-hard", "memory.available<95%", *arguments[:2]).stdout
                assert f"{'e2' * 16}: never evicted" in text
                assert "its uid is no UUID of the API server: a static pod" in text
                assert "priority unknown" in text
                shown = outrace("top", "--once", *arguments[:2]).stdout
                assert [line.split()[2] for line in shown.splitlines() if line.startswith(("e2e2", uid))] == [
                    "unknown"
                ] * 2


# ---- what is wrong is reported in one line


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["lab/burstible"], 1, ("no pod 'lab/burstible'", "did you mean lab/burstable")),
        (["zzz"], 1, ("no pod 'zzz'", "pods are lab/burstable")),
        (["--signal", "memory"], 2, ("--signal: 'memory'", "memory.available")),
        (["--policy", "kubelet-1.9"], 2, ("--policy: 'kubelet-1.9' is not known", "kubelet-1.17")),
        (["--policy", "kubelet-1.8", "--signal", "pid.available"], 2, ("kubelet-1.8 does not know pid.available",)),
        (["--eviction-hard", "memory.available<x"], 2, ("--eviction-hard", "memory.available")),
        (["--nodefs", "/nowhere"], 2, ("--nodefs /nowhere",)),
        (["--config", "/nowhere"], 2, ("/nowhere",)),
    ],
)
def test_mistakes(node: LabNode, arguments: list[str], code: int, expected: tuple[str, ...]) -> None:
    one_line(outrace("explain", *options(node), *arguments), code, *expected)


def test_a_name_two_pods_have(node: LabNode) -> None:
    own = node.pods["burstable"]
    twin = node.add_pod("burstable", namespace="other")
    try:
        one_line(outrace("explain", *options(node), "burstable"), 1, "2 pods are called burstable", "other/burstable")
        assert explain(node, "other/burstable")["pod"]["uid"] == twin.uid
    finally:
        node.remove_pod(twin)
        node.pods["burstable"] = own


def test_options_that_explain_nothing_are_refused(node: LabNode) -> None:
    done = outrace("explain", *options(node), "--enforce")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such option" in done.stderr


# ---- with a daemon


@pytest.mark.kernel
@pytest.mark.once
def test_exact_figures_from_the_daemon() -> None:
    with LabNode("test-explain-daemon", 128 * MIB) as node:
        pod = node.add_pod("hog")
        with daemon(node, "--eviction-hard", "memory.available<99%") as running:
            filled(node, pod, 16)

            def conditions() -> dict[str, Any] | None:
                done = outrace("explain", "hog", "--run-dir", str(running.state_dir), "-o", "json")
                assert done.returncode == 0, done.stderr
                answer: dict[str, Any] = json.loads(done.stdout)
                return answer if answer["node"]["held_conditions"] and answer["order"][0]["usage"] else None

            answer = until(conditions, "the daemon's conditions")
            assert answer["source"].startswith("daemon ")
            assert answer["node"]["held_conditions"] == ["MemoryPressure"]
            assert answer["pod"]["admission"]["admitted"] is False
            assert answer["order"][0]["usage"] >= 16 * MIB


def test_a_full_disk_evicts_no_service(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `--pods` on a machine without a kubelet; it named a service that would go for the disk."""
    monkeypatch.setattr("monitor.pods.source.is_services", lambda _: True)
    full = "memory.available<1Mi,nodefs.available<100%,imagefs.available<100%"
    assert main(["explain", "--no-daemon", "--eviction-hard", full, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["node"]
    assert [row["signal"] for row in found["thresholds"]] == ["memory.available"]
    assert (found["verdict"], found["conditions"]) == (NOTHING, [])
