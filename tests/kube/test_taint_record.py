"""Taints that a killed daemon left: recorded before they are set, and removed by the next one."""

from pathlib import Path
from typing import Any

import pytest

from monitor.kube.client import ApiClient, Resource
from monitor.kube.cluster import ClusterConfig
from monitor.side.cluster.cluster import Place
from monitor.side.cluster.node import NodeReport, start_removal
from monitor.side.cluster.record import JsonFiles, TaintRecord, taint_records
from monitor.side.worker import Worker
from tests import live
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.test_node_taints import DISK, FOREIGN, MEMORY, seen, taint, tainting, warnings
from tests.kube.test_node_taints import made as made
from tests.log_lines import LogLines
from tests.waiting import until


@pytest.fixture
def records(tmp_path: Path) -> JsonFiles[TaintRecord]:
    return taint_records(tmp_path)


def left(records: JsonFiles[TaintRecord], kubeconfig: Path | str, *keys: str) -> None:
    records.write(TaintRecord("node-1", keys or (MEMORY["key"],), str(kubeconfig), given=True))


def keys_of(records: JsonFiles[TaintRecord]) -> list[tuple[str, ...]]:
    problems: list[str] = []
    found = [one.keys for one in records.load(problems.append)]
    assert problems == []
    return found


def test_a_cluster_writes_it_down_before_it_asks_and_forgets_it_when_it_is_over(
    config: ClusterConfig,
    api: FakeApiServer,
    files: Worker,
    tmp_path: Path,
    records: JsonFiles[TaintRecord],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_the_patch = []

    def look(client: ApiClient, resource: Resource, name: str, body: Any, **options: Any) -> Any:
        if "spec" in body:
            at_the_patch.append(keys_of(records))
        return patch(client, resource, name, body, **options)

    patch = ApiClient.patch
    monkeypatch.setattr(ApiClient, "patch", look)
    for name in ("_END_S", "_END_REQUEST_S"):
        monkeypatch.setattr(f"monitor.side.cluster.cluster.{name}", 60.0)
    known = tainting(tmp_path, LogLines(), "MemoryPressure")
    cluster = known.cluster(Place(config, "node-1", "/etc/kubeconfig"), files)
    cluster.start()
    until(lambda: MEMORY in seen(api), "the taint")
    assert at_the_patch[0] == [(MEMORY["key"],)]
    assert [one.kubeconfig for one in records.load(pytest.fail)] == ["/etc/kubeconfig"]
    known.node.state = tainting(tmp_path, LogLines(), "DiskPressure").node.state
    until(lambda: DISK in seen(api) and keys_of(records) == [(DISK["key"],)], "the other one")
    cluster.close()
    until(lambda: seen(api) == FOREIGN and not list(records.path.glob("*.json")), "none")


def test_a_disk_that_takes_nothing_keeps_no_taint_away(client: ApiClient, api: FakeApiServer) -> None:
    def full(keys: object) -> None:
        raise OSError(28, "No space left on device")

    log = LogLines()
    NodeReport(client, "node-1", lambda: {"DiskPressure"}, log, own_taints=True, note=full).write_taints()
    assert seen(api) == [*FOREIGN, DISK]
    assert "No space left" in str(log.lines[0])


def test_unload_removes_them(api: FakeApiServer, kubeconfig: Path, records: JsonFiles[TaintRecord]) -> None:
    taint(api, MEMORY, *FOREIGN)
    left(records, kubeconfig)
    done = live.outrace("unload", "--state-dir", str(records.path.parent))
    assert (done.returncode, seen(api), keys_of(records)) == (0, FOREIGN, [])
    assert "node node-1 has no taint outrace.io/memory-pressure any more" in done.stderr


@pytest.mark.parametrize("how", ["away", "forbidden", "no credentials"])
def test_unload_names_what_it_leaves(
    how: str, api: FakeApiServer, kubeconfig: Path, records: JsonFiles[TaintRecord]
) -> None:
    taint(api, MEMORY, *FOREIGN)
    left(records, "" if how == "no credentials" else kubeconfig)
    if how == "away":
        api.refuse()
    elif how == "forbidden":
        api.forbidden.add(("patch", "nodes"))
    done = live.outrace("unload", "--state-dir", str(records.path.parent))
    assert (done.returncode, keys_of(records)) == (1, [(MEMORY["key"],)])
    assert "kubectl taint node node-1 outrace.io/memory-pressure-" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_start_without_a_cluster_removes_them_when_the_server_is_back(
    api: FakeApiServer, kubeconfig: Path, records: JsonFiles[TaintRecord]
) -> None:
    taint(api, MEMORY, *FOREIGN)
    left(records, kubeconfig)
    log = LogLines()
    api.refuse()
    thread = start_removal(records.path.parent, log)
    until(lambda: bool(log.matching("trying to remove them")), "a failure")
    api.listen()
    thread.join(60)
    assert (thread.is_alive(), seen(api), keys_of(records)) == (False, FOREIGN, [])
    assert len(warnings(log)) == 1


def test_the_node_of_the_cluster_itself_is_the_clusters_matter(records: JsonFiles[TaintRecord]) -> None:
    left(records, "/nowhere")
    assert start_removal(records.path.parent, LogLines(), but="node-1") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"node": 1}', "\0"])
def test_a_record_that_is_damaged_is_named(text: str, records: JsonFiles[TaintRecord]) -> None:
    records.path.mkdir()
    (records.path / "node-1.json").write_text(text)
    problems: list[Any] = []
    assert records.load(problems.append) == []
    assert "node-1.json" in problems[0]
