"""Events that the API server refuses: they go, or wait for a right, and never hold up the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.policy.pods import Pod
from monitor.side.cluster.event_writer import STATUS_NOTE
from monitor.side.cluster.record import Record, record_of
from monitor.side.cluster.status_writer import AWAY
from tests.kube import faults
from tests.kube.fake_apiserver import FakeApiServer, pod
from tests.kube.test_cluster_records import Events
from tests.kube.test_cluster_records import events as events
from tests.kube.test_status_writer import evicted, record

QUOTA = 'events "web.1" is forbidden: exceeded quota: few, requested: count/events=1, used: 9, limited: 9'


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        (403, "Forbidden", QUOTA),
        (403, "Forbidden", 'admission webhook "e.example" denied the request: no'),
        (400, "BadRequest", 'admission webhook "e.example" denied the request: no'),
        (413, "RequestEntityTooLarge", "limit is 3145728"),
        (422, "Invalid", "Event is invalid"),
    ],
)
def test_a_refused_event_does_not_hold_up_the_others(
    code: int, reason: str, message: str, events: Events, api: FakeApiServer
) -> None:
    api.store.create("pods", pod("other", namespace="elsewhere"))
    api.fail(faults.status(code, reason, message), path="/namespaces/default/events", times=10**6)
    first, second = record(api), _record_in(api, "elsewhere", "other")
    events.writer.submit(first)
    events.writer.submit(second)
    events.after(120)
    assert events.over == [first.id, second.id]
    assert [one["involvedObject"]["name"] for one in api.store.all("events") if one["reason"] == "Evicted"] == ["other"]
    assert events.writer.waiting == 0
    assert len(api.seen("POST", "/namespaces/default/events")) == events.writer.dropped


def test_a_right_that_is_missing_in_one_namespace(
    events: Events, api: FakeApiServer, capfd: pytest.CaptureFixture[str]
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
    events.writer.submit(waits)
    events.writer.submit(goes)
    events.writer.turn()
    assert events.over == [goes.id]
    events.after(300)
    assert (events.over, events.writer.dropped, events.writer.waiting) == ([goes.id], 0, 1)
    asked = len(api.seen("POST", "/namespaces/elsewhere/events"))
    assert 10 < asked < 30  # it is asked every 30 s at the end
    assert "".join(capfd.readouterr()).count("events wait for a right") == 1
    denied["now"] = False
    events.after(60)
    assert (events.over, events.writer.waiting) == ([goes.id, waits.id], 0)


def _record_in(api: FakeApiServer, namespace: str, name: str) -> Record:
    found = evicted(api)
    uid = api.store.get(("pods", namespace, name))["metadata"]["uid"]
    return record_of(replace(found, id="2", pod=Pod(name=name, namespace=namespace, uid=uid)), 1_800_000_100.25)


def test_the_note_on_a_lost_status_is_never_on_the_event_of_the_node(events: Events, api: FakeApiServer) -> None:
    api.store.create("pods", pod("other", namespace="elsewhere"))
    made = _record_in(api, "elsewhere", "other")
    api.fail(faults.status(500, "InternalError"), path="/namespaces/default/events")
    events.writer.submit(made)
    events.writer.turn()
    events.writer.note_status_outcome(made, AWAY)
    events.after(60)
    assert [STATUS_NOTE in one["metadata"].get("annotations", {}) for one in api.store.all("events")] == [False] * 2
