"""What an eviction leaves in the state directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.actions.status import Eviction, StatusStore, event_object, pod_object, stem
from monitor.policy.pods import Pod, pod_from_object


def pod(name: str = "web", namespace: str = "shop", uid: str = "u1", **metadata: Any) -> Pod:
    return pod_from_object(
        {
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, **metadata},
            "spec": {"containers": [{"name": "main"}]},
        }
    )


def eviction(number: str = "1", of: Pod | None = None) -> Eviction:
    return Eviction(
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
    assert {key: status[key] for key in ("phase", "reason", "message", "startTime", "qosClass")} == {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory. ",
        "startTime": "2027-01-15T08:00:00Z",
        "qosClass": "BestEffort",
    }
    assert status["conditions"][0] == {
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": "2027-01-15T08:01:40Z",
        "reason": "TerminationByKubelet",
        "message": status["message"],
    }
    assert {(c["type"], c["status"], c["reason"]) for c in status["conditions"][1:]} == {
        ("Ready", "False", "PodFailed"),
        ("ContainersReady", "False", "PodFailed"),
    }
    assert result["metadata"]["annotations"]["team"] == "a"


def test_event_object() -> None:
    event = event_object(eviction())
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "shop",
        "name": "web",
        "uid": "u1",
    }
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "Evicted", 1)
    assert event["metadata"]["annotations"] == {"offending_containers": "main", "starved_resource": "memory"}


def test_an_older_eviction_is_never_lost(tmp_path: Path) -> None:
    store = StatusStore(tmp_path)
    paths = [store.write(eviction(number=str(n))) for n in (1, 2, 3)]
    assert [p.name for p in paths] == ["shop_web_u1.json", "shop_web_u1.2.json", "shop_web_u1.3.json"]
    # a daemon that is started again counts its evictions from 1
    again = StatusStore(tmp_path).write(eviction(number="1"))
    assert again.name == "shop_web_u1.4.json"
    assert {p.name for p in (tmp_path / "events").iterdir()} == {p.name for p in (*paths, again)}


def test_outcome_goes_into_the_same_file(tmp_path: Path) -> None:
    store = StatusStore(tmp_path)
    first = store.write(eviction())
    assert store.write(eviction()) == first  # tried again after an error elsewhere
    assert store.finish(eviction(), {"freed": 4096, "pids": [7, 8]}) == first
    notes = json.loads(first.read_text())["metadata"]["annotations"]
    assert (notes["outrace/freed-bytes"], notes["outrace/pids"]) == ("4096", "7,8")
    assert [p.name for p in (tmp_path / "pods").iterdir()] == [first.name]


def test_an_error_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("a file where the directory should be")
    store = StatusStore(tmp_path)
    with pytest.raises(OSError, match="exists"):
        store.write(eviction())
    (tmp_path / "events").unlink()
    path = store.write(eviction())
    assert path.name == "shop_web_u1.json"  # the try before did not take the name
    assert sorted(p.name for p in (tmp_path / "pods").iterdir()) == [path.name]


@given(st.text(max_size=300), st.text(max_size=300), st.text(min_size=1, max_size=300))
def test_any_name_is_one_directory_entry(namespace: str, name: str, uid: str) -> None:
    result = stem(Pod(uid=uid, namespace=namespace, name=name))
    assert "/" not in result
    assert "\0" not in result
    assert not result.startswith(".")
    assert 0 < len(f"{result}.999.json".encode(errors="surrogateescape")) <= 255
