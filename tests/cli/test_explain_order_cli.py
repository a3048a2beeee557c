"""`outrace explain` on the order of all pods: by memory, processes and disk, and by the rules of each era."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from monitor.lab.node import LabNode, LabPod
from monitor.policy.releases import ERAS
from tests.cli.explain_node import MEMORY, NOTHING, explain, explained_node, names, text
from tests.live import MIB, filled

node = pytest.fixture(explained_node, scope="module")


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
