"""`outrace explain` on small nodes made of real cgroups, with real processes, disks and a real OOM kill."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel import cgroupfs
from monitor.lab.node import LabNode, LabPod
from monitor.policy.eras import ERAS
from tests.live import MIB, Puppet, cgroup, daemon, filled, one_line, outrace, until

MEMORY = "memory.available"
NOTHING = "nothing is starved: nobody would be evicted now"


@pytest.fixture(scope="module")
def node() -> Iterator[LabNode]:
    """A pod of each QoS class and a critical one; the Burstable one is furthest above its request."""
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    with LabNode("test-explain", 256 * MIB) as node:
        pods = (
            (node.add_pod("guaranteed", "Guaranteed", request=64 * MIB), 24),
            (node.add_pod("burstable", "Burstable", request=8 * MIB), 40),
            (node.add_pod("besteffort"), 16),
            (node.add_pod("critical", priority=2 * 10**9), 4),
        )
        for pod, mib in pods:
            filled(node, pod, mib)
        yield node


def options(node: LabNode, *more: str) -> list[str]:
    """The options that find ``node``, with no daemon to ask."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]  # nobody listens there once it is closed
    state = ("--state-dir", str(node.manifests / "state"))
    return [
        *("--node-cgroup", node.cgroup.name, "--pods", f"manifests:{node.manifests}"),
        *("--listen", f"127.0.0.1:{port}", *state, *more),
    ]


def explain(node: LabNode, *arguments: str) -> dict[str, Any]:
    done = outrace("explain", *options(node), *arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def text(node: LabNode, *arguments: str) -> str:
    done = outrace("explain", *options(node), *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def names(answer: dict[str, Any]) -> list[str]:
    return [row["pod"] for row in answer["order"]]


# ---- the node


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


def test_a_starved_node_says_who_would_go(node: LabNode) -> None:
    answer = explain(node, "lab/burstable", "--eviction-hard", "memory.available<99%")
    found = answer["node"]
    assert found["starved"] == {"signal": MEMORY, "threshold": "memory.available<99%"}
    assert found["verdict"] == "memory.available is starved: lab/burstable would be evicted now"
    assert found["conditions"] == ["MemoryPressure"]
    (eviction,) = found["evictions"]
    assert (eviction["pod"], eviction["grace_s"]) == ("lab/burstable", 1)
    # What the pod itself is said to be told is what the pass would tell it.
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
            arguments = ("--node-cgroup", path.name, "--listen", "127.0.0.1:1", "-o", "json")
            done = outrace("explain", uid, "--eviction-hard", "memory.available<95%", *arguments)
            assert done.returncode == 0, done.stderr
            answer = json.loads(done.stdout)
            assert names(answer) == [uid]
            assert answer["pod"]["qos"]["class"] == "BestEffort"
            assert answer["pod"]["oom_score_adj"]["mismatches"] == []
            # 16 MiB are more than 5 % of kubepods' limit and of the node's: the copy, of the smaller one, goes first.
            assert answer["signal"] == "allocatableMemory.available"
            rows = {row["signal"]: row for row in answer["node"]["thresholds"]}
            assert [rows[name]["capacity"] for name in (MEMORY, answer["signal"])] == [256 * MIB, 128 * MIB]
            assert [rows[name]["met"] for name in (MEMORY, answer["signal"])] == [True, True]
            assert [rows[name]["first"] for name in (MEMORY, answer["signal"])] == [False, True]
            assert answer["node"]["evictions"][0]["uid"] == uid


# ---- the order


def test_the_whole_order(node: LabNode) -> None:
    order = explain(node)["order"]
    assert [row["pod"] for row in order] == ["lab/burstable", "lab/besteffort", "lab/critical", "lab/guaranteed"]
    assert [row["rank"] for row in order] == [1, 2, 3, 4]
    assert [row["critical"] for row in order] == [False, False, True, False]
    first = order[0]
    assert (first["uid"], first["qos"], first["request"]) == (node.pods["burstable"].uid, "Burstable", 8 * MIB)
    assert first["usage"] >= 40 * MIB
    assert [c["name"] for c in first["comparisons"]] == ["usage", "priority", "excess"]
    shown = text(node)
    assert "priority (lower ones go first)" in shown
    (line,) = [line for line in shown.splitlines() if "lab/critical" in line]
    assert line.endswith("priority 2000000000: never evicted")


def test_processes_are_ranked_by_their_number(node: LabNode) -> None:
    filled(node, node.pods["guaranteed"], 1)
    answer = explain(node, "guaranteed", "--signal", "pid.available")
    assert names(answer)[0] == "lab/guaranteed"
    assert answer["order"][0]["usage"] == 2
    assert answer["pod"]["request"] is None
    node.children.pop().close()


def annotate(pod: LabPod, volumes: tuple[dict[str, Any], ...] = (), limit: str = "", **annotations: str) -> str:
    """Rewrite the pod's manifest; what it was."""
    before = pod.manifest.read_text()
    manifest = json.loads(before)
    notes = {key.replace("_", ".").replace("outrace.", "outrace/"): value for key, value in annotations.items()}
    manifest["metadata"]["annotations"].update(notes)
    manifest["spec"]["volumes"] = list(volumes)
    if limit:
        resources = manifest["spec"]["containers"][0].setdefault("resources", {})
        resources.setdefault("limits", {})["ephemeral-storage"] = limit
    pod.manifest.write_text(json.dumps(manifest))
    return before


def test_disks_and_local_storage(node: LabNode, tmp_path: Path) -> None:
    pod = node.pods["besteffort"]
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "file").write_bytes(b"x" * 2 * MIB)
    before = annotate(pod, outrace_rootfs_c0=str(layer))
    try:
        answer = explain(node, "besteffort", "--signal", "nodefs.available")
        assert names(answer)[0] == "lab/besteffort"
        assert 2 * MIB <= answer["order"][0]["usage"] < 3 * MIB
        assert answer["pod"]["request"]["resource"] == "ephemeral-storage"
        starved = explain(node, "--eviction-hard", "nodefs.available<100Pi")
        assert starved["signal"] == "nodefs.available"
        assert starved["node"]["cleanup"] == []  # there is no command for it
        assert starved["node"]["verdict"].endswith("is starved: lab/besteffort would be evicted now")
        starved = explain(node, "--eviction-hard", "nodefs.available<100Pi", "--reclaim-images", "true")
        assert starved["node"]["cleanup"] == ["DeleteUnusedImages"]
        assert starved["node"]["verdict"].endswith("unless cleaning up is enough, lab/besteffort would be evicted now")
        pod.manifest.write_text(before)
        annotate(pod, limit="1Mi", outrace_rootfs_c0=str(layer))
        over = explain(node, "besteffort")
        assert over["node"]["verdict"] == (
            "nothing is starved, but over a limit of local storage: lab/besteffort would be evicted now"
        )
        storage = over["pod"]["local_storage"]
        assert {"of": "container c0", "limit": "1Mi"} in storage["limits"]
        assert storage["over"] == over["node"]["evictions"][0]["message"]
        off = explain(node, "besteffort", "--local-storage-capacity-isolation=false")
        assert (off["node"]["verdict"], off["pod"]["local_storage"]["over"]) == (NOTHING, None)
        assert "not enforced" in text(node, "besteffort", "--local-storage-capacity-isolation=false")
    finally:
        pod.manifest.write_text(before)


# ---- one pod


@pytest.mark.parametrize("how", ["label", "uid", "name"])
def test_a_pod_is_found_by(node: LabNode, how: str) -> None:
    pod = node.pods["besteffort"]
    wanted = {"label": "lab/besteffort", "uid": pod.uid, "name": "besteffort"}[how]
    found = explain(node, wanted)["pod"]
    assert (found["pod"], found["uid"], found["cgroup"]) == ("lab/besteffort", pod.uid, str(pod.cgroup))
    assert (found["rank"], found["of"], found["next"]) == (2, 4, False)


def test_why_it_would_be_next(node: LabNode) -> None:
    pod = explain(node, "burstable")["pod"]
    assert (pod["next"], pod["rank"]) == (True, 1)
    assert pod["qos"] == {"class": "Burstable", "why": "not Guaranteed: container c0 has no cpu limit"}
    assert pod["request"]["value"] == 8 * MIB
    (behind,) = pod["against"]
    assert (behind["role"], behind["pod"], behind["goes_first"]) == ("behind it", "lab/besteffort", False)
    assert [c["name"] for c in behind["comparisons"] if c["decides"]] == ["excess"]
    assert [change["kind"] for change in behind["changes"]] == ["request", "priority", "usage"]
    shown = text(node, "burstable")
    assert "lab/burstable: rank 1 of 4, the next to be evicted for memory.available\n" in shown
    assert "to be passed over: raise the memory request of container c0 from 8388608 to " in shown


def test_the_change_it_names_works_on_the_node(node: LabNode) -> None:
    pod = node.pods["burstable"]
    change = explain(node, "burstable")["pod"]["against"][0]["changes"][0]
    before = pod.manifest.read_text()
    try:
        # The pods' memory may have moved by a page or so since: see tests/policy/test_explain.py for the very byte.
        for request, first in ((change["new"] + MIB, "lab/besteffort"), (change["new"] - MIB, "lab/burstable")):
            manifest = json.loads(before)
            manifest["spec"]["containers"][0]["resources"]["requests"]["memory"] = str(request)
            pod.manifest.write_text(json.dumps(manifest))
            assert names(explain(node))[0] == first
    finally:
        pod.manifest.write_text(before)


def test_why_it_would_not_be_next(node: LabNode) -> None:
    pod = explain(node, "guaranteed")["pod"]
    assert (pod["next"], pod["rank"], pod["critical"]["critical"]) == (False, 4, False)
    first, before = pod["against"]  # nobody is behind it, and the critical pod in between does not count
    assert (first["role"], first["pod"]) == ("first victim", "lab/burstable")
    assert (before["role"], before["pod"]) == ("before it", "lab/besteffort")
    assert all(other["goes_first"] for other in pod["against"])
    assert [c["name"] for c in first["comparisons"] if c["decides"]] == ["usage"]
    (more,) = first["changes"]
    assert more["kind"] == "usage"
    assert more["new"] > 64 * MIB
    critical = explain(node, "critical")["pod"]
    assert critical["critical"] == {"critical": True, "why": "priority 2000000000"}
    assert critical["eviction"] is None
    assert all(other["changes"] == [] for other in critical["against"])
    assert "lab/critical: never evicted (it would be rank 3 of 4) for memory.available\n" in text(node, "critical")


def test_scores_wanted_and_real(node: LabNode) -> None:
    found = explain(node, "besteffort")["pod"]
    scores, killer = found["oom_score_adj"], found["badness"]
    assert scores["containers"] == [{"name": "c0", "wanted": 1000, "processes": 1}]
    (hog,) = [h for h in node.children if h.pid == killer["pod"]["pid"]]
    assert scores["mismatches"] == [{"container": "c0", "pid": hog.pid, "is_now": 0, "should_be": 1000}]
    Path(f"/proc/{hog.pid}/oom_score_adj").write_text("1000")
    found = explain(node, "besteffort")["pod"]
    assert found["oom_score_adj"]["mismatches"] == []
    own = found["badness"]["pod"]
    assert found["badness"]["total_pages"] == 256 * MIB // 4096  # the lab's nodes do not swap
    pages = (own["rss"] + own["swap"] + own["page_tables"]) // 4096
    assert own["points"] == pages + 1000 * (65536 // 1000)
    assert found["badness"]["node"] == own
    # The kernel would take it, the policy would not: that is said.
    assert "the policy would evict lab/burstable first" in found["badness"]["differs"]
    assert "every process has what it should" in text(node, "besteffort")


def test_the_kernel_kills_whom_it_says() -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    with LabNode("test-explain-oom", 64 * MIB) as node:
        big, small = node.add_pod("big"), node.add_pod("small")
        with Puppet(big.containers["c0"]) as growing, Puppet(small.containers["c0"]) as marked:
            # 900 x 16 pages of 4 KiB are 56 MiB: with them the small one stays ahead whatever the big one takes.
            marked.do("open('/proc/self/oom_score_adj', 'w').write('900')")
            marked.do("anon(8)")
            growing.do("anon(16)")
            found = explain(node, "big")["pod"]["badness"]
            assert found["node"]["pid"] == marked.pid
            assert found["pod"]["pid"] == growing.pid
            growing.tell("anon(40)")
            assert marked.wait() == -signal.SIGKILL
            assert growing.answer() == "done"
            assert node.oom_kills() == 1


# ---- eras


def test_eras_side_by_side(node: LabNode) -> None:
    answer = explain(node, "--policy", "all")
    assert answer["policy"] == list(ERAS)
    orders = {row["policy"]: [one["pod"] for one in row["order"]] for row in answer["eras"]}
    today, blog, old = (orders[name] for name in ERAS)
    assert today == blog == names(answer)
    # By class first: what a Burstable pod takes counts only among its like; priority protects nobody.
    assert old == ["lab/besteffort", "lab/critical", "lab/burstable", "lab/guaranteed"]
    (parting,) = answer["disagreements"]
    assert (parting["between"], parting["rank"]) == ([ERAS[0], ERAS[2]], 1)
    assert parting["pods"] == ["lab/burstable", "lab/besteffort"]
    assert [(why["policy"], why["name"]) for why in parting["why"]] == [(ERAS[0], "excess"), (ERAS[2], "QoS class")]
    scores = [row["oom_score_adj"]["lab/guaranteed"]["c0"] for row in answer["eras"]]
    assert scores == [-997, -998, -998]
    assert [len(row["default_hard"]) for row in answer["eras"]] == [5, 4, 1]
    shown = text(node, "--policy", "all")
    assert "kubelet-1.17 has the same order as kubelet-1.36\n" in shown
    assert "kubelet-1.36 and kubelet-1.8 first part at rank 1:\n" in shown


def test_within_their_requests_the_old_one_takes_the_largest_and_today_the_closest() -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    with LabNode("test-explain-eras", 256 * MIB) as node:
        for name, request, mib in (("large", 80, 32), ("close", 32, 16)):
            filled(node, node.add_pod(name, "Burstable", request=request * MIB), mib)
        answer = explain(node, "--policy", "kubelet-1.17,kubelet-1.8")
        assert names(answer) == ["lab/close", "lab/large"]
        (parting,) = answer["disagreements"]
        assert parting["pods"] == ["lab/close", "lab/large"]
        assert [(why["policy"], why["first"], why["name"]) for why in parting["why"]] == [
            ("kubelet-1.17", "lab/close", "excess"),
            ("kubelet-1.8", "lab/large", "usage"),
        ]


def test_an_era_alone_decides_everything(node: LabNode) -> None:
    answer = explain(node, "critical", "--policy", "kubelet-1.8")
    assert answer["policy"] == ["kubelet-1.8"]
    assert "eras" not in answer
    assert [row["signal"] for row in answer["node"]["thresholds"]] == [MEMORY, "allocatableMemory.available"]
    assert names(answer)[:2] == ["lab/besteffort", "lab/critical"]
    assert answer["pod"]["critical"]["critical"] is False
    assert answer["pod"]["eviction"]["grace_s"] == 0


def test_a_signal_an_era_does_not_know(node: LabNode) -> None:
    answer = explain(node, "--policy", "kubelet-1.36,kubelet-1.8", "--signal", "pid.available")
    assert [row["signal_known"] for row in answer["eras"]] == [True, False]
    assert answer["eras"][1]["order"] == []
    assert "kubelet-1.8 does not know pid.available\n" in text(
        node, "--policy", "kubelet-1.36,kubelet-1.8", "--signal", "pid.available"
    )


# ---- what is wrong is said in one line


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
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
def test_mistakes(node: LabNode, arguments: list[str], code: int, says: tuple[str, ...]) -> None:
    one_line(outrace("explain", *options(node), *arguments), code, *says)


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
            listen = ("--listen", running.address.removeprefix("http://"))

            def told() -> dict[str, Any] | None:
                answer = explain(node, "hog", *listen)
                return answer if answer["node"]["held_conditions"] and answer["order"][0]["usage"] else None

            answer = until(told, "the daemon's conditions")
            assert answer is not None
            assert answer["source"] == f"daemon at {listen[1]}"
            assert answer["node"]["held_conditions"] == ["MemoryPressure"]
            # Its own thresholds here are not met: the node is under pressure all the same, because the daemon says so.
            assert answer["node"]["conditions"] == []
            assert answer["pod"]["admission"]["admitted"] is False
            assert answer["order"][0]["usage"] >= 16 * MIB
