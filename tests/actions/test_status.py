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


def test_an_older_eviction_is_never_lost(tmp_path: Path) -> None:
    store = StatusStore(tmp_path)
    paths = [store.write(eviction(number=str(n))) for n in (1, 2, 3)]
    assert [p.name for p in paths] == ["shop_web_u1.json", "shop_web_u1.2.json", "shop_web_u1.3.json"]
    # a daemon that is started again counts its evictions from 1
    again = StatusStore(tmp_path).write(eviction(number="1"))
    assert again.name == "shop_web_u1.4.json"
    for kind in ("events", "node-events"):
        assert {p.name for p in (tmp_path / kind).iterdir()} == {p.name for p in (*paths, again)}


def test_outcome_goes_into_the_same_file(tmp_path: Path) -> None:
    store = StatusStore(tmp_path)
    first = store.write(eviction())
    assert store.write(eviction()) == first  # tried again after an error elsewhere
    assert store.finish(eviction(), {"freed": 4096, "pids": [7, 8]}) == first
    notes = json.loads(first.read_text())["metadata"]["annotations"]
    assert (notes["outrace/freed-bytes"], notes["outrace/pids"]) == ("4096", "7,8")
    assert [p.name for p in (tmp_path / "pods").iterdir()] == [first.name]
    # The first pids of many are written with their number.
    for total, noted in ((2, None), (900, "900")):
        made = pod_object(eviction(), {"pids": [7, 8], "pids_total": total})["metadata"]["annotations"]
        assert (made["outrace/pids"], made.get("outrace/pids-total")) == ("7,8", noted)


def test_the_newest_are_kept(tmp_path: Path) -> None:
    store = StatusStore(tmp_path, keep=3)
    names = [store.write(eviction(number=str(n), of=pod(name=f"p{n}"))).name for n in range(5)]
    for directory in (tmp_path / "pods", tmp_path / "events"):
        assert sorted(entry.name for entry in directory.iterdir()) == names[2:]
        for age, name in enumerate(reversed(names[2:])):
            os.utime(directory / name, ns=(10**18 - age, 10**18 - age))
    # A daemon that is started again knows which are the oldest, and a removed file does no harm; what it writes itself
    # stays also where the clock was set back.
    (tmp_path / "pods" / names[2]).unlink()
    again = StatusStore(tmp_path, keep=3)
    last = [again.write(eviction(number=str(n), of=pod(name=f"q{n}"))).name for n in range(2)]
    assert sorted(entry.name for entry in (tmp_path / "pods").iterdir()) == [names[4], *last]
    assert sorted(entry.name for entry in (tmp_path / "events").iterdir()) == [names[4], *last]
    for name in last:
        os.utime(tmp_path / "pods" / name, ns=(3 * 10**18, 3 * 10**18))
    os.utime(tmp_path / "pods" / names[4], ns=(3 * 10**18, 3 * 10**18))
    assert StatusStore(tmp_path, keep=3).write(eviction(of=pod(name="r"))).exists()


def test_the_next_free_name_is_found_without_trying_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pods").mkdir()
    for number in ("", *(f".{n}" for n in range(2, 400))):
        (tmp_path / "pods" / f"shop_web_u1{number}.json").touch()
    tries: list[str] = []
    link = os.link
    monkeypatch.setattr(os, "link", lambda source, target: (tries.append(Path(target).name), link(source, target)))
    store = StatusStore(tmp_path)
    assert store.write(eviction()).name == "shop_web_u1.400.json"
    (tmp_path / "pods" / "shop_web_u1.401.json").touch()  # by another process
    assert store.write(eviction(number="2")).name == "shop_web_u1.402.json"
    assert tries == ["shop_web_u1.400.json", "shop_web_u1.402.json"]
    assert store.write(eviction(of=pod(uid="u1.2"), number="3")).name == "shop_web_u1.2.2.json"  # one pod, not two


def test_nothing_that_lies_there_is_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("important")
    for kind in ("pods", "events"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / ".shop_web_u1.tmp").symlink_to(precious)
    path = StatusStore(tmp_path).write(eviction())
    assert precious.read_text() == "important"
    assert not path.is_symlink()
    assert json.loads(path.read_text())["kind"] == "Pod"


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
