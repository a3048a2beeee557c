"""Events and statuses of evictions at the API server: once each, however long it is away, and none holds up another. A
pod in its grace still writes: its status is Failed when it is over; a status that nothing takes is an alert.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kube.cluster import ClusterConfig
from monitor.link.messages import Gone, Signalled
from monitor.pods.model import FoundPod
from monitor.policy.pods import Pod
from monitor.settings.config import RunConfig
from monitor.side.alerts.rules import STATUS_NOT_TAKEN
from monitor.side.cluster.cluster import Cluster
from monitor.side.cluster.reports import AWAY, TAKEN
from tests.alerts.services import StandIn
from tests.daemon.harness import DECISION
from tests.kube import faults
from tests.kube.fake_apiserver import FakeApiServer, pod, relist
from tests.kube.test_status_writer import Writer, evicted, report
from tests.kube.test_status_writer import writer as writer
from tests.side.parts import Parts
from tests.waiting import until


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
    events.reports.add(report(api, status=False))  # its answer was lost, or the helper was killed before it knew
    events.after(1)
    assert (reasons(api), events.waiting) == (BOTH, [])
    assert (events.reports.events_sent, events.reports.events_dropped) == (4, 0)


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
def cluster(config: ClusterConfig, api: FakeApiServer, tmp_path: Path) -> Iterator[Cluster]:
    """With a pod `web`."""
    api.store.create("pods", pod("web"))
    made = Parts(RunConfig(), Hierarchy(2, tmp_path), 1).cluster(config)
    made.start()
    yield made
    made.close()


@pytest.mark.parametrize("how", ["late", "gone", "accepted"])
def test_a_status_holds_up_no_event_once_it_is_accepted_late_or_of_a_pod_that_is_gone(
    how: str, cluster: Cluster, api: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.side.cluster.reports.WINDOW_S", 600.0)  # its end sends them too
    found = evicted(api)
    if how == "gone":
        api.store.delete(("pods", "default", "web"))
    elif how == "late":
        api.fail(faults.status(500, "InternalError", "no leader"), times=1000, method="PATCH", path="/pods/web/status")
    cluster.evicting(found, time.monotonic_ns() - int(1.5e9))
    until(lambda: reasons(api) == BOTH, "the events")


def test_a_static_pod_has_events_alone(cluster: Cluster, api: FakeApiServer) -> None:
    """Its status in the API is its kubelet's picture of it."""
    found = evicted(api)
    object.__setattr__(found.pod, "annotations", {"kubernetes.io/config.mirror": "0123456789abcdef0123456789abcdef"})
    cluster.evicting(found, time.monotonic_ns())
    until(lambda: reasons(api) == BOTH, "the events")
    assert api.seen("PATCH", "/pods/") == []


@pytest.mark.usefixtures("in_time")
def test_the_events_go_at_once_and_the_status_when_it_ended(cluster: Cluster, api: FakeApiServer) -> None:
    cluster.evicting(evicted(api), time.monotonic_ns() - int(25e9), True)  # asked to end so long ago, and it writes
    until(lambda: reasons(api) == BOTH, "the events")
    assert (_phase(api), api.seen("PATCH", "/pods/")) == ("Running", [])
    cluster.ended("of another pod", time.monotonic_ns())
    cluster.ended(evicted(api).pod.uid, time.monotonic_ns())
    until(lambda: _phase(api) == "Failed", "the status")
    cluster.ended(evicted(api).pod.uid, time.monotonic_ns())  # after its SIGKILL it is empty: that is the same end
    [patched] = api.seen("PATCH", "/pods/web/status")
    assert patched.json()["metadata"]["uid"] == evicted(api).pod.uid


@pytest.mark.parametrize("given_s", [0, 30])
def test_what_the_hot_process_reports_of_an_end(given_s: int, tmp_path: Path) -> None:
    known = Parts(RunConfig(enforce=True, state_dir=str(tmp_path)), Hierarchy(2, tmp_path), 512 << 20)
    known.node.pods["uid-a"] = FoundPod(Pod(name="a", namespace="default", uid="uid-a"), tmp_path / "pod", {})
    begun, ended = list[tuple[str, int, bool]](), list[tuple[str, int]]()
    cluster = create_autospec(Cluster, instance=True)
    cluster.name = "node-1"
    cluster.evicting = lambda eviction, ns, in_grace: begun.append((eviction.pod.uid, ns, in_grace))
    cluster.ended = lambda uid, ns: ended.append((uid, ns))
    handler = known.handler(cluster=cluster)
    kind = "soft" if given_s else "hard"
    assert handler.handle(DECISION._replace(observed=False, kind=kind, given_s=given_s, signalled_ns=3))
    assert handler.handle(Signalled(4, "uid-a", "default/a", 9))
    assert handler.handle(Gone(5, "uid-a", "shop/a", id=1))
    assert begun == [("uid-a", 3, given_s > 0)]
    assert ended == [("uid-a", 4), ("uid-a", 5)]


@pytest.mark.usefixtures("in_time")
def test_a_status_that_is_not_taken_is_an_alert_with_the_name_of_its_pod(
    config: ClusterConfig, api: FakeApiServer, tmp_path: Path
) -> None:
    """One that is taken is none."""
    receiver = StandIn()
    settings = RunConfig(state_dir=str(tmp_path / "state"), alertmanagers=(receiver.url,), node_name="node-1")
    known = Parts(settings, cgroupfs.detect(), 1 << 30)
    races = known.races()
    cluster = known.cluster(config, races.status_not_taken)
    with receiver.running():
        cluster.start()
        try:
            api.store.create("pods", pod("web"))
            cluster.evicting(evicted(api), time.monotonic_ns())
            until(lambda: _phase(api) == "Failed", "the status")
            assert relist(api, "web") == "Failed"
            until(lambda: cluster.reports.fates[TAKEN] == 1, "what the kubelet has taken")
            until(lambda: reasons(api) == BOTH, "the events")
            first = next(one.method for one in api.asked if one.method in ("PATCH", "POST"))
            assert first == "PATCH", "the status goes first"
            api.store.create("pods", pod("db"))
            cluster.evicting(evicted(api, "db"), time.monotonic_ns() - int(700e9))  # too long ago for a status
            until(lambda: len(receiver.got()) == 1, "the alert")
        finally:
            cluster.close()
            races.close(10.0, 10.0)
    (alert,) = receiver.got()
    assert alert["labels"]["alertname"] == STATUS_NOT_TAKEN
    labels = {key: alert["labels"][key] for key in ("node", "namespace", "pod", "outcome", "severity")}
    assert labels == {"node": "node-1", "namespace": "default", "pod": "db", "outcome": AWAY, "severity": "warning"}
    assert alert["annotations"]["summary"].startswith("default/db: the API server took no status")


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


def test_a_right_that_one_namespace_lacks_holds_up_no_other(events: Writer, api: FakeApiServer) -> None:
    api.store.create("pods", pod("other", namespace="elsewhere"))
    right = 'events is forbidden: User "outrace" cannot create resource "events" in API group ""'
    api.fail(faults.status(403, "Forbidden", right), path="/namespaces/elsewhere/events", times=10**6)
    events.reports.add(report(api, "other", "elsewhere", status=False))
    events.reports.add(report(api, status=False))
    events.after(600)
    assert (reasons(api), events.waiting, events.reports.events_dropped) == (BOTH, ["other"], 0)


def _phase(api: FakeApiServer) -> str:
    return str(api.store.get(("pods", "default", "web"))["status"]["phase"])
