"""What an eviction leaves in the state directory."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.actions.status import EvictedPod, StatusStore, pod_object, stem
from monitor.policy.pods import Pod, pod_from_object


def pod(name: str = "web", uid: str = "u1", **metadata: Any) -> Pod:
    return pod_from_object(
        {
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "shop", "uid": uid, **metadata},
            "spec": {"containers": [{"name": "main"}]},
        }
    )


def eviction(number: str = "1", of: Pod | None = None) -> EvictedPod:
    return EvictedPod(
        id=number,
        pod=of or pod(annotations={"team": "a"}),
        qos="BestEffort",
        message="The node was low on resource: memory. ",
        annotations={"offending_containers": "main", "starved_resource": "memory"},
        started=1_800_000_000.0,
        decided=1_800_000_100.25,
        node="node1",
    )


def test_pod_object_is_what_the_kubelet_leaves() -> None:
    result = pod_object(eviction())
    status = result["status"]
    message = "The node was low on resource: memory. "
    assert status.items() >= {
        "phase": "Failed", "reason": "Evicted", "message": message, "startTime": "2027-01-15T08:00:00Z",
        "qosClass": "BestEffort",
    }.items()  # fmt: skip
    assert status["conditions"][0] == {
        "type": "DisruptionTarget", "status": "True", "lastProbeTime": None,
        "lastTransitionTime": "2027-01-15T08:01:40Z", "reason": "TerminationByKubelet", "message": message,
    }  # fmt: skip
    assert {(c["type"], c["status"], c["reason"]) for c in status["conditions"][1:]} == {
        ("Ready", "False", "PodFailed"),
        ("ContainersReady", "False", "PodFailed"),
    }
    assert result["metadata"]["annotations"]["team"] == "a"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_pod_has_the_files_of_its_last_eviction(tmp_path: Path) -> None:
    store, path = StatusStore(tmp_path), tmp_path / "pods" / "shop_web_u1.json"
    for number in ("1", "2"):
        store.write(eviction(number))
        assert json.loads(path.read_text())["metadata"]["annotations"]["outrace/eviction"] == number
    store.write(eviction("2"), {"freed": 4096, "pids": [7, 8]})
    notes = json.loads(path.read_text())["metadata"]["annotations"]
    assert (notes["outrace/freed-bytes"], notes["outrace/pids"]) == ("4096", "7,8")
    assert all(names(tmp_path / kind) == [path.name] for kind in ("pods", "events", "node-events"))
    # The first pids of many are written with their number.
    for total, noted in ((2, None), (900, "900")):
        made = pod_object(eviction(), {"pids": [7, 8], "pids_total": total})["metadata"]["annotations"]
        assert (made["outrace/pids"], made.get("outrace/pids-total")) == ("7,8", noted)


def test_the_newest_are_kept(tmp_path: Path) -> None:
    store = StatusStore(tmp_path, keep=3)
    for n in range(5):
        store.write(eviction(str(n), of=pod(name=f"p{n}")))
    for directory in (tmp_path / "pods", tmp_path / "events"):
        assert names(directory) == [f"shop_p{n}_u1.json" for n in (2, 3, 4)]
        for age, name in enumerate(reversed(names(directory))):
            os.utime(directory / name, ns=(10**18 - age, 10**18 - age))
    # A daemon that is started again knows which are the oldest, and a removed file does no harm; what it writes itself
    # stays also where the clock was set back.
    (tmp_path / "pods" / "shop_p2_u1.json").unlink()
    again = StatusStore(tmp_path, keep=3)
    for n in range(2):
        again.write(eviction(str(n), of=pod(name=f"q{n}")))
    left = ["shop_p4_u1.json", "shop_q0_u1.json", "shop_q1_u1.json"]
    assert names(tmp_path / "pods") == names(tmp_path / "events") == left
    for name in left:
        os.utime(tmp_path / "pods" / name, ns=(3 * 10**18, 3 * 10**18))
    StatusStore(tmp_path, keep=3).write(eviction(of=pod(name="r")))
    assert "shop_r_u1.json" in names(tmp_path / "pods")


def test_nothing_that_lies_there_is_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("important")
    for kind in ("pods", "events"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / ".shop_web_u1.tmp").symlink_to(precious)
    StatusStore(tmp_path).write(eviction())
    path = tmp_path / "pods" / "shop_web_u1.json"
    assert precious.read_text() == "important"
    assert not path.is_symlink()
    assert json.loads(path.read_text())["kind"] == "Pod"


def test_an_error_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("a file where the directory should be")
    store = StatusStore(tmp_path)
    with pytest.raises(OSError, match="exists"):
        store.write(eviction())
    (tmp_path / "events").unlink()
    store.write(eviction())
    assert names(tmp_path / "pods") == names(tmp_path / "events") == ["shop_web_u1.json"]


@given(st.text(max_size=300), st.text(max_size=300), st.text(min_size=1, max_size=300))
def test_any_name_is_one_directory_entry(namespace: str, name: str, uid: str) -> None:
    result = stem(Pod(uid=uid, namespace=namespace, name=name))
    assert "/" not in result
    assert "\0" not in result
    assert not result.startswith(".")
    assert 0 < len(f"{result}.999.json".encode(errors="surrogateescape")) <= 255
