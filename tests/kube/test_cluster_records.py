"""Events and statuses of evictions at the API server: once each, however long it is away, and none holds up another."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monitor.kernel.cgroupfs import Hierarchy
from monitor.kube.cluster import ClusterConfig
from monitor.settings.config import RunConfig
from monitor.side.cluster.cluster import Cluster, Place
from monitor.side.cluster.reports import TAKEN
from tests.kube import faults
from tests.kube.fake_apiserver import FakeApiServer, pod, relist
from tests.kube.test_status_writer import Writer, evicted, report
from tests.kube.test_status_writer import writer as writer
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
    made = report(api, status=False)
    events.reports.add(made)
    assert events.turn() is None
    assert reasons(api) == BOTH
    assert events.waiting == []
    event = next(one for one in api.store.all("events") if one["reason"] == "Evicted")
    assert event["involvedObject"]["uid"] == made.uid
    assert event["metadata"]["annotations"] == {"starved_resource": "memory"}
    assert (event["type"], event["count"]) == ("Warning", 1)
    assert event["source"] == {"component": "outrace", "host": "node-1"}


def test_an_event_that_is_there_is_not_made_twice(events: Writer, api: FakeApiServer) -> None:
    """Its answer was lost, or the helper was killed before it knew."""
    for _ in range(2):
        events.reports.add(report(api, status=False))
        events.after(1)
    assert reasons(api) == BOTH
    assert events.waiting == []


def test_a_server_that_is_away_for_minutes_gets_every_event_once(events: Writer, api: FakeApiServer) -> None:
    api.refuse()
    events.reports.add(report(api), 11.0)
    events.reports.write_statuses()
    events.after(600)
    assert events.waiting == ["web"]
    api.listen()
    events.after(60)
    assert reasons(api) == BOTH
    assert events.waiting == events.reports._reports == []
    event = next(one for one in api.store.all("events") if one["reason"] == "Evicted")
    assert event["firstTimestamp"] == "2027-01-15T08:01:40Z"  # of the eviction


def test_a_server_that_fails_throttles_or_wants_a_right(
    events: Writer, api: FakeApiServer, capfd: pytest.CaptureFixture[str]
) -> None:
    api.fail(faults.status(500, "InternalError"), path="/events", times=2)
    api.fail(faults.status(429, "TooManyRequests", Retry_After="7"), path="/events")
    events.reports.add(report(api, status=False))
    events.after(6)
    assert reasons(api) == []
    events.after(7)
    assert reasons(api) == BOTH
    capfd.readouterr()
    api.store.create("pods", pod("db"))
    api.forbidden.add(("create", "events"))
    events.reports.add(report(api, "db", status=False))
    events.after(600)
    assert "".join(capfd.readouterr()).count("events wait") == 1
    assert (events.waiting, events.reports.events_dropped) == (["db"], 0)
    api.forbidden.clear()
    events.after(60)
    assert (events.waiting, ("Pod", "Evicted")) == ([], reasons(api)[2])


def test_of_too_many_the_oldest_are_dropped(
    events: Writer, api: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.side.cluster.reports.KEEP", 1)
    for name in ("a", "b", "c"):
        api.store.create("pods", pod(name))
        events.reports.add(report(api, name, status=False))
    assert (events.waiting, events.reports.events_dropped) == (["c"], 4)
    dying = report(api)
    dying.in_grace = True
    for one in (dying, report(api, "a", status=False)):  # which is newer, and has no status
        events.reports.add(one)
    assert events.reports._reports == [dying]


def test_any_name_of_a_pod_makes_a_name_of_an_event(api: FakeApiServer) -> None:
    api.store.create("pods", pod("a" * 253))
    assert all(len(one["metadata"]["name"]) <= 253 for one in report(api, "a" * 253).events)


# the two threads


@pytest.fixture
def in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No status is late or too late, however busy this machine is, and what the kubelet has taken it keeps."""
    for name, seconds in (("HOLD_S", 0.0), ("LATE_S", 600.0), ("WINDOW_S", 600.0), ("TIMEOUT_S", 60.0)):
        monkeypatch.setattr(f"monitor.side.cluster.reports.{name}", seconds)


@pytest.fixture
def open_cluster(config: ClusterConfig, api: FakeApiServer, tmp_path: Path) -> Iterator[Callable[[], Cluster]]:
    """Clusters with a pod `web`."""
    api.store.create("pods", pod("web"))
    made: list[Cluster] = []

    def make() -> Cluster:
        parts = Parts(RunConfig(state_dir=str(tmp_path)), Hierarchy(2, tmp_path), 1)
        made.append(parts.cluster(Place(config, "node-1")))
        made[-1].start()
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


def test_an_eviction_is_written_to_the_cluster(
    open_cluster: Callable[[], Cluster], api: FakeApiServer, in_time: None
) -> None:
    cluster = open_cluster()
    cluster.evicting(evicted(api), time.monotonic_ns())
    until(lambda: _phase(api) == "Failed")
    assert relist(api, "web") == "Failed"
    until(lambda: cluster.reports.fates[TAKEN] == 1)
    until(lambda: reasons(api) == BOTH)
    assert next(one.method for one in api.asked if one.method in ("PATCH", "POST")) == "PATCH", "the status goes first"
    until(lambda: cluster.reports._reports == [])


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
    events.reports.add(report(api, status=False))
    events.reports.add(report(api, "other", "elsewhere", status=False))
    events.after(120)
    assert events.waiting == []
    assert [one["involvedObject"]["name"] for one in api.store.all("events") if one["reason"] == "Evicted"] == ["other"]
    assert len(api.seen("POST", "/namespaces/default/events")) == events.reports.events_dropped
    assert "".join(capfd.readouterr()).count("an event is refused") == events.reports.events_dropped


def _phase(api: FakeApiServer) -> str:
    return str(api.store.get(("pods", "default", "web"))["status"]["phase"])
