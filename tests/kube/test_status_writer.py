"""The status of an evicted pod, at an API server and beside a kubelet that are as nasty as real ones."""

from typing import Any

import pytest

from monitor.actions.status import EvictedPod, events_of, status_patch
from monitor.kube.client import ApiClient
from monitor.policy.pods import Pod
from monitor.side.cluster.reports import AWAY, GONE, REFUSED, TAKEN, UNCONFIRMED, Report, Reports
from monitor.side.export.log import Log
from tests.kube import faults
from tests.kube.clock import WaitedClock
from tests.kube.fake_apiserver import FakeApiServer, pod, relist
from tests.kube.fake_http import Asked, Reply

KEY = ("pods", "default", "web")
STATUS = "/pods/web/status"


class Writer:
    """A writer, its clock, and what became of what it was given. ``turn`` writes statuses, or sends events."""

    def __init__(self, client: ApiClient, api: FakeApiServer) -> None:
        self.clock = WaitedClock(1000.0)
        self.api = api
        self.reports = Reports(client, Log(), clock=self.clock)
        self.turn = self.reports.write_statuses

    @property
    def fates(self) -> list[str]:
        return [fate for fate, count in self.reports.fates.items() for _ in range(count)]

    def kill(self, report: Report, age_s: float = 0.0) -> None:
        self.reports.add(report, age_s)
        self.turn()

    def after(self, seconds: float) -> None:
        """Let time pass, in small steps."""
        until = self.clock.now + seconds
        while (wait_s := self.turn()) is not None and self.clock.now + wait_s <= until:
            self.clock.now += wait_s
        self.clock.now = max(self.clock.now, until)

    @property
    def waiting(self) -> list[str]:
        """The pods whose events are not sent."""
        return [one.name for one in self.reports._with_events()]

    @property
    def status(self) -> Any:
        return self.api.store.get(KEY)["status"]


@pytest.fixture
def writer(client: ApiClient, api: FakeApiServer) -> Writer:
    api.store.create("pods", pod("web", qosClass="Burstable"))
    return Writer(client, api)


def evicted(api: FakeApiServer, name: str = "web", namespace: str = "default") -> EvictedPod:
    found = api.store.get(("pods", namespace, name))
    return EvictedPod(
        pod=Pod(name=name, namespace=namespace, uid=found["metadata"]["uid"]),
        message="The node was low on resource: memory. ",
        annotations={"starved_resource": "memory"},
        decided=1_800_000_100.25,
        node="node-1",
    )


def report(api: FakeApiServer, *name: str, status: bool = True) -> Report:
    """Of an eviction; without ``status`` only its events are to be sent."""
    found = evicted(api, *name)
    pod = found.pod
    return Report(pod.namespace, pod.name, pod.uid, events_of(found), status_patch(found) if status else None)


def test_what_is_written_is_what_a_kubelet_writes(writer: Writer, api: FakeApiServer) -> None:
    writer.kill(report(api))
    status = writer.status
    message = "The node was low on resource: memory. "
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "Evicted", message)
    conditions = {one["type"]: one for one in status["conditions"]}
    target = conditions["DisruptionTarget"]
    assert (target["status"], target["reason"], target["message"]) == ("True", "TerminationByKubelet", message)
    assert [conditions[name]["status"] for name in ("Ready", "ContainersReady")] == ["False"] * 2
    assert status["qosClass"] == "Burstable"
    assert [one.query for one in api.seen("PATCH")] == [{"fieldManager": "outrace"}]


def test_a_kubelet_that_takes_it(writer: Writer, api: FakeApiServer) -> None:
    writer.kill(report(api))
    writer.after(0.5)
    assert relist(api, "web") == "Failed"
    writer.after(2.5)
    assert writer.fates == []  # it may change its mind
    writer.after(3.0)
    assert writer.fates == [TAKEN]
    assert len(api.seen("PATCH")) == 1
    assert writer.reports.write_statuses() is None


def test_one_that_the_kubelet_writes_over_is_written_again(writer: Writer, api: FakeApiServer) -> None:
    writer.kill(report(api))
    writer.after(0.25)
    assert relist(api, "web", relisted_before=True) == "Running"
    writer.after(0.15)
    assert writer.status["phase"] == "Failed"
    relist(api, "web")
    writer.after(5.0)
    assert writer.fates == [TAKEN]
    assert writer.reports.erased == 1


def test_a_kubelet_that_reports_nothing(writer: Writer, api: FakeApiServer) -> None:
    writer.kill(report(api))
    writer.after(11.0)
    assert writer.fates == [UNCONFIRMED]
    assert len(api.seen("GET", "/pods/web")) < 60
    assert len(api.seen("PATCH")) == 1


@pytest.mark.parametrize(
    ("fault", "times", "after_s"),
    [
        (faults.status(500, ""), 2, 0.4),
        (faults.status(401, "Unauthorized"), 2, 0.4),  # until there is a new token
        (faults.status(409, "", "the object has been modified"), 2, 0.4),
        (faults.status(429, "TooManyRequests", Retry_After="2"), 1, 2.0),
    ],
)
def test_what_passes_is_tried_again(
    writer: Writer, api: FakeApiServer, fault: faults.Do, times: int, after_s: float
) -> None:
    api.fail(fault, path=STATUS, times=times)
    writer.kill(report(api))
    writer.after(after_s - 0.1)
    assert writer.status["phase"] == "Running"
    assert len(api.seen("PATCH")) == times
    writer.after(0.2)
    assert writer.status["reason"] == "Evicted"


def test_a_server_that_is_away_gets_nothing_later(writer: Writer, api: FakeApiServer) -> None:
    """Two minutes: the kubelet has started the pod again long since."""
    api.refuse()
    writer.kill(report(api))
    writer.after(120.0)
    assert writer.fates == [AWAY]
    api.listen()
    writer.after(60.0)
    writer.kill(report(api), age_s=11.0)  # reported by the hot process again, and too old
    assert writer.fates == [AWAY, AWAY]
    assert api.seen("PATCH") == []
    assert writer.status["phase"] == "Running"


@pytest.mark.parametrize("when", ["before", "while it is watched"])
@pytest.mark.parametrize("anew", [False, True])
def test_a_pod_that_is_gone_is_given_up_and_another_of_its_name_left_alone(
    writer: Writer, api: FakeApiServer, when: str, anew: bool
) -> None:
    old = report(api)
    if when != "before":
        writer.kill(old)
    api.store.delete(KEY)
    if anew:
        api.store.create("pods", pod("web"))
    if when == "before":
        writer.kill(old)
    writer.after(1.0)
    assert writer.fates == [GONE]
    if anew:
        assert writer.status["phase"] == "Running"


@pytest.mark.parametrize("what", ["qosClass", "rights"])
def test_what_is_refused_is_not_tried_again(writer: Writer, api: FakeApiServer, what: str) -> None:
    found = report(api)
    if what == "qosClass":
        found.patch = {"status": {"phase": "Failed", "qosClass": "Guaranteed"}}
    else:
        api.forbidden.add(("patch", "pods/status"))
    writer.kill(found)
    assert writer.fates == [REFUSED]
    assert len(api.seen("PATCH")) == 1


def test_a_new_kill_comes_before_looks_at_older_ones(writer: Writer, api: FakeApiServer) -> None:
    writer.kill(report(api))
    api.store.create("pods", pod("db"))
    newer = report(api, "db")
    seen: list[str] = []

    def look(asked: Asked, _: Reply) -> bool:
        if asked.method == "GET" and not seen:
            writer.reports.add(newer)  # while the first one is looked at
        seen.append(f"{asked.method} {asked.path.rpartition('pods/')[2]}")
        return False

    api.fail(look, times=100)
    writer.after(0.1)
    assert seen[:2] == ["GET web", "PATCH db/status"]
