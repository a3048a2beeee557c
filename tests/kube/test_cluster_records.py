"""Events and statuses of evictions at the API server: once each, however long it is away, and none holds up another."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.kernel.cgroupfs import Hierarchy
from monitor.kube.cluster import ClusterConfig
from monitor.policy.pods import Pod
from monitor.settings.config import RunConfig
from monitor.side.cluster.cluster import Cluster, Place
from monitor.side.cluster.record import Record, Records, record_of
from monitor.side.cluster.reports import AWAY, TAKEN
from monitor.side.worker import Worker
from tests.kube import faults
from tests.kube.fake_apiserver import FakeApiServer, pod, relist
from tests.kube.test_status_writer import Writer, evicted, record
from tests.kube.test_status_writer import writer as writer
from tests.log_lines import ignored
from tests.side.parts import Parts
from tests.waiting import until as wait_until


def until(condition: Callable[[], object]) -> None:
    wait_until(condition, "what the API server is sent")


@pytest.fixture
def events(writer: Writer) -> Writer:
    writer.turn = writer.reports.send_events
    return writer


def reasons(api: FakeApiServer) -> list[tuple[str, str]]:
    found = api.store.all("events")
    return sorted((one["involvedObject"]["kind"], one["reason"]) for one in found)


BOTH = [("Node", "EvictionThresholdMet"), ("Pod", "Evicted")]


def test_an_eviction_is_an_event_on_the_pod_and_one_on_the_node(events: Writer, api: FakeApiServer) -> None:
    made = record(api)
    events.reports.add(made, None)
    assert events.turn() is None
    assert reasons(api) == BOTH
    assert events.waiting == []
    event = next(one for one in api.store.all("events") if one["reason"] == "Evicted")
    assert event["involvedObject"]["uid"] == made.uid
    assert event["metadata"]["annotations"] == {"starved_resource": "memory"}
    assert (event["type"], event["count"]) == ("Warning", 1)
    assert event["source"] == {"component": "outrace", "host": "node-1"}


def test_an_event_that_is_there_is_not_made_twice(events: Writer, api: FakeApiServer) -> None:
    """Its answer was lost, or the daemon was killed before it knew."""
    events.reports.add(record(api), None)
    events.after(1)
    events.reports.add(record(api), None)
    events.after(1)
    assert reasons(api) == BOTH
    assert events.waiting == []


def test_a_server_that_is_away_for_minutes_gets_every_event_once(events: Writer, api: FakeApiServer) -> None:
    api.refuse()
    made = record(api)
    events.reports.add(made, 11.0)
    events.reports.write_statuses()
    events.after(600)
    assert events.waiting == [made.id]
    api.listen()
    events.after(60)
    assert reasons(api) == BOTH
    assert events.waiting == []
    event = next(one for one in api.store.all("events") if one["reason"] == "Evicted")
    assert event["firstTimestamp"] == "2027-01-15T08:01:40Z"  # of the eviction


def test_a_server_that_fails_and_throttles(events: Writer, api: FakeApiServer) -> None:
    api.fail(faults.status(500, "InternalError"), path="/events", times=2)
    api.fail(faults.status(429, "TooManyRequests", Retry_After="7"), path="/events")
    events.reports.add(record(api), None)
    events.after(6)
    assert reasons(api) == []
    events.after(7)
    assert reasons(api) == BOTH


def test_of_too_many_the_oldest_are_dropped(
    events: Writer, api: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.side.cluster.reports.KEEP", 1)
    for number in range(3):
        events.reports.add(replace(record(api), id=str(number)), None)
    assert (events.waiting, events.reports.events_dropped) == (["2"], 4)
    dying = replace(record(api), id="in its grace", in_grace=True, uid="u")
    for one in (dying, replace(record(api), id="3")):  # which is newer, and has no status
        events.reports.add(one, None)
    assert events.reports._in_grace("u") is not None


def test_any_name_of_a_pod_makes_a_name_of_an_event(api: FakeApiServer) -> None:
    api.store.create("pods", pod("a" * 253))
    made = record_of(evicted(api, "a" * 253), 0.0)
    assert all(len(one["metadata"]["name"]) <= 253 for one in made.events)


# in the state dir


def test_records_outlive_the_daemon(tmp_path: Path, api: FakeApiServer) -> None:
    api.store.create("pods", pod("web"))
    pending, made, problems = Records(tmp_path), record(api), list[str]()
    pending.write(made)
    (tmp_path / "cluster" / "broken.json").write_text('{"id": ')
    assert Records(tmp_path).load(problems.append) == [made]
    assert len(problems) == 1
    pending.remove(made.id)
    assert Records(tmp_path).load(problems.append) == []


def test_the_newest_records_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.side.cluster.record.KEEP", 2)
    pending = Records(tmp_path)
    for number in range(6):
        pending.write(Record(str(number), "default", "web", "u", 0.0, {}, ()))
        if number == 4:
            pending.remove("4")  # which makes room
    assert [one.id for one in pending.load(ignored)] == ["3", "5"]


# the two threads


@pytest.fixture
def in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No status is late or too late, however busy this machine is, and what the kubelet has taken it keeps."""
    for name, seconds in (("HOLD_S", 0.0), ("LATE_S", 600.0), ("WINDOW_S", 600.0), ("TIMEOUT_S", 60.0)):
        monkeypatch.setattr(f"monitor.side.cluster.reports.{name}", seconds)


@pytest.fixture
def open_cluster(
    config: ClusterConfig, api: FakeApiServer, files: Worker, tmp_path: Path
) -> Iterator[Callable[[], Cluster]]:
    """Clusters with a pod `web`."""
    api.store.create("pods", pod("web"))
    made: list[Cluster] = []

    def make() -> Cluster:
        parts = Parts(RunConfig(state_dir=str(tmp_path)), Hierarchy(2, tmp_path), 1)
        made.append(parts.cluster(Place(config, "node-1"), files))
        made[-1].start()
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


def test_an_eviction_is_written_to_the_cluster(
    open_cluster: Callable[[], Cluster], api: FakeApiServer, tmp_path: Path, in_time: None
) -> None:
    cluster = open_cluster()
    cluster.evicting(evicted(api), time.monotonic_ns())
    until(lambda: _phase(api) == "Failed")
    assert relist(api, "web") == "Failed"
    until(lambda: cluster.reports.fates[TAKEN] == 1)
    until(lambda: reasons(api) == BOTH)
    assert next(one.method for one in api.asked if one.method in ("PATCH", "POST")) == "PATCH", "the status goes first"
    until(lambda: stored(tmp_path) == 0)


def test_what_a_daemon_did_not_get_through_the_next_one_writes(
    open_cluster: Callable[[], Cluster], api: FakeApiServer, tmp_path: Path
) -> None:
    api.refuse()
    first = open_cluster()
    first.evicting(evicted(api), time.monotonic_ns() - int(11e9))  # too long ago for a status
    until(lambda: first.reports.fates[AWAY] == 1)
    until(lambda: stored(tmp_path) == 1)
    first.close()
    api.listen()
    open_cluster()
    until(lambda: reasons(api) == BOTH)
    until(lambda: stored(tmp_path) == 0)
    assert api.store.get(("pods", "default", "web"))["status"]["phase"] == "Running"


@pytest.mark.parametrize("how", ["late", "gone", "accepted"])
def test_a_status_holds_up_no_event_once_it_is_accepted_late_or_of_a_pod_that_is_gone(
    how: str, open_cluster: Callable[[], Cluster], api: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.side.cluster.reports.WINDOW_S", 600.0)  # its end sends them too
    found = evicted(api)
    if how == "gone":
        api.store.delete(("pods", "default", "web"))
    elif how == "late":
        api.fail(faults.status(500, "InternalError", "no leader"), times=1000, method="PATCH", path="/pods/web/status")
    open_cluster().evicting(found, time.monotonic_ns() - int(1.5e9))
    until(lambda: reasons(api) == BOTH)


def test_a_static_pod_has_events_alone(open_cluster: Callable[[], Cluster], api: FakeApiServer) -> None:
    """Its status in the API is its kubelet's picture of it."""
    found = evicted(api)
    object.__setattr__(found.pod, "annotations", {"kubernetes.io/config.mirror": "0123456789abcdef0123456789abcdef"})
    open_cluster().evicting(found, time.monotonic_ns())
    until(lambda: reasons(api) == BOTH)
    assert api.seen("PATCH", "/pods/") == []


def test_stop_ends_the_threads(open_cluster: Callable[[], Cluster]) -> None:
    cluster = open_cluster()
    cluster.close()
    until(lambda: not any(one.name in ("statuses", "cluster") for one in threading.enumerate()))


QUOTA = 'events "web.1" is forbidden: exceeded quota: few, requested: count/events=1, used: 9, limited: 9'


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        (404, "NotFound", "the namespace is gone"),
        (403, "Forbidden", QUOTA),
        (403, "Forbidden", 'admission webhook "e.example" denied the request: no'),
        (400, "BadRequest", 'admission webhook "e.example" denied the request: no'),
        (413, "RequestEntityTooLarge", "limit is 3145728"),
        (422, "Invalid", "Event is invalid"),
    ],
)
def test_a_refused_event_does_not_hold_up_the_others(
    code: int, reason: str, message: str, events: Writer, api: FakeApiServer, capfd: pytest.CaptureFixture[str]
) -> None:
    api.store.create("pods", pod("other", namespace="elsewhere"))
    api.fail(faults.status(code, reason, message), path="/namespaces/default/events", times=10**6)
    first, second = record(api), _record_in(api, "elsewhere", "other")
    events.reports.add(first, None)
    events.reports.add(second, None)
    events.after(120)
    assert events.waiting == []
    assert [one["involvedObject"]["name"] for one in api.store.all("events") if one["reason"] == "Evicted"] == ["other"]
    assert len(api.seen("POST", "/namespaces/default/events")) == events.reports.events_dropped
    assert "".join(capfd.readouterr()).count("an event is refused") == events.reports.events_dropped


def test_a_right_that_is_missing_in_one_namespace(
    events: Writer, api: FakeApiServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """A Role instead of a ClusterRole: the others' events go first, and it is logged once."""
    api.store.create("pods", pod("other", namespace="elsewhere"))
    message = 'events is forbidden: User "system:serviceaccount:o:o" cannot create resource "events" in API group ""'
    refuse = faults.status(403, "Forbidden", message)
    denied = {"now": True}
    api.fail(
        lambda asked, reply: refuse(asked, reply) if denied["now"] else api.answer(asked, reply),
        path="/namespaces/elsewhere/events",
        times=10**6,
    )
    waits, goes = _record_in(api, "elsewhere", "other"), record(api)
    events.reports.add(waits, None)
    events.reports.add(goes, None)
    events.turn()
    assert events.waiting == [waits.id]
    events.after(300)
    assert (events.waiting, events.reports.events_dropped) == ([waits.id], 0)
    asked = len(api.seen("POST", "/namespaces/elsewhere/events"))
    assert 10 < asked < 30  # a request every 30 s at the end
    assert "".join(capfd.readouterr()).count("events wait for a right") == 1
    denied["now"] = False
    events.after(60)
    assert events.waiting == []


def _record_in(api: FakeApiServer, namespace: str, name: str) -> Record:
    found = evicted(api)
    uid = api.store.get(("pods", namespace, name))["metadata"]["uid"]
    return record_of(replace(found, pod=Pod(name=name, namespace=namespace, uid=uid)), 1_800_000_100.25)


def stored(directory: Path) -> int:
    """How many records are in this state dir."""
    return len(list((directory / "cluster").glob("*.json")))


def _phase(api: FakeApiServer) -> str:
    return str(api.store.get(("pods", "default", "web"))["status"]["phase"])
