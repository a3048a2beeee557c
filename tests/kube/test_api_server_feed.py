"""List and watch through everything that ends a watch."""

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monitor.errors import MonitorError
from monitor.kube import errors, transport
from monitor.kube.client import ApiClient
from monitor.kube.retry import BackOff
from monitor.pods.feed import ApiServerFeed
from tests.kube import faults
from tests.kube.fake_apiserver import FakeApiServer, pod
from tests.kube.fake_http import status_object
from tests.kube.running import Running
from tests.waiting import until


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test waits for its thread to stop; `test_transport.py` has the real time. A late status is no silence."""
    patience = transport.Patience
    monkeypatch.setattr(transport, "SLICE_S", 0.05)
    monkeypatch.setattr(transport, "Patience", lambda a, s, idle: patience(a, s, None if s == 60.0 else idle))


@pytest.fixture
def start(client: ApiClient, stop: threading.Event) -> Iterator[Callable[..., Running]]:
    """Starts feeds; each has to end after the stop event."""
    started: list[Running] = []

    def start(silence_s: float = 20.0) -> Running:
        started.append(Running(client, "spec.nodeName=node-1", silence_s))
        return started[-1]

    yield start
    stop.set()
    for one in started:
        one.thread.join(60)
        assert not one.thread.is_alive()
        one.close()


Start = Callable[..., Running]


def phase(api: FakeApiServer, name: str, new: str) -> None:
    def change(found: dict[str, Any]) -> dict[str, Any]:
        found["status"]["phase"] = new
        return found

    api.store.update(("pods", "default", name), change)


def test_what_happens_is_heard_in_order(api: FakeApiServer, start: Start) -> None:
    api.store.create("pods", pod("a"))
    api.store.create("pods", pod("far", node="node-2"))
    running = start()
    running.watched(1)
    api.store.create("pods", pod("b", phase="Pending"))
    phase(api, "b", "Running")
    api.store.create("pods", pod("far-too", node="node-2"))
    api.store.delete(("pods", "default", "a"))
    running.knows("b:Running")
    assert running.changes == ["all a:Running", "new b:Pending", "changed b:Running", "deleted a:Running"]
    asked = [one.query for one in api.seen("GET", "/pods")]
    assert asked[0] == {"fieldSelector": "spec.nodeName=node-1", "resourceVersion": "0"}
    assert asked[1]["allowWatchBookmarks"] == "true"
    assert 300 <= int(asked[1]["timeoutSeconds"]) < 600


def test_watches_of_many_nodes_do_not_stay_in_step(client: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """All begin at once when an API server was restarted; docs/kubernetes.md has what 5,000 ask for."""
    asked: list[float] = []

    @contextlib.contextmanager
    def watch(*_: object, watch_s: float, **__: object) -> Iterator[Iterator[object]]:
        asked.append(watch_s)
        yield iter(())

    monkeypatch.setattr(client, "watch", watch)
    client.stop.set()
    feed = ApiServerFeed(client, "", "test")
    for _ in range(2000):
        feed._watch()
    feed.close()
    assert 300 <= min(asked) < 310
    assert 590 < max(asked) < 600
    assert round(5000 / statistics.mean(asked)) == 11


def test_after_410_all_is_listed_again(api: FakeApiServer, start: Start) -> None:
    api.store.create("pods", pod("a"))
    running = start()
    running.watched(1)
    api.refuse()
    until(lambda: len(running.errors) > 1, running.heard)
    assert all(isinstance(error, errors.TransportError) for error in running.errors)
    assert list(running.now.values()) == ["a:Running"]  # what is known stays
    api.store.create("pods", pod("b"))
    api.store.delete(("pods", "default", "a"))
    anew = api.store.create("pods", pod("a"))["metadata"]["uid"]  # another one under its name
    api.store.compact()
    api.listen()
    running.knows("a:Running", "b:Running")
    assert anew in running.now
    assert isinstance(running.errors[-1], errors.ResourceExpired)
    assert running.lists == 2
    assert api.seen("GET", "/pods")[-2].query["resourceVersion"] not in ("", "0")  # not older than what was seen


@pytest.mark.parametrize(
    ("do", "error", "lists"),
    [
        (faults.status(410, "Expired", "too old"), errors.ResourceExpired, 2),
        (faults.status(429, "TooManyRequests", "x"), errors.TooManyRequests, 1),
        (faults.status(500, "InternalError", "x"), errors.ServerError, 1),
        (faults.status(403, "Forbidden", "x"), errors.Forbidden, 2),
        (faults.hang_up, None, 1),  # on a connection that was idle: asked once more
        (faults.no_http(), errors.TransportError, 1),
        (faults.stream(b'{"type": "ADDED", "object": {'), None, 1),
        (faults.stream(b"garbage\n"), errors.InvalidResponse, 2),
        (faults.stream({"type": "ADDED"}), errors.InvalidResponse, 2),
        (faults.stream({"type": "ADDED", "object": {"metadata": {"uid": "x"}}}), errors.InvalidResponse, 2),
        (faults.stream({"type": "CHANGED", "object": {}}), errors.InvalidResponse, 2),
        (faults.stream({"type": "BOOKMARK", "object": {"metadata": {}}}), errors.InvalidResponse, 2),
        (faults.stream(b"x" * (17 << 20)), errors.ResponseTooLarge, 2),
        (faults.error_event(), errors.ResourceExpired, 2),
        (faults.error_event(status_object(410, "Gone", "gone")), errors.ResourceExpired, 2),
        (faults.error_event({"status": "410", "message": "a string where Failure stands"}), errors.ResourceExpired, 2),
        (faults.error_event({"kind": "Status", "code": "410"}), errors.ResourceExpired, 2),
        (faults.error_event({"status": "Failure", "reason": "Expired"}), errors.ResourceExpired, 2),
        (faults.error_event({}), errors.ApiError, 2),
        (faults.error_event("text"), errors.ApiError, 2),
        (faults.error_event({"status": ["?"], "code": {}, "reason": 7, "message": None}), errors.ApiError, 2),
        (faults.error_event(status_object(504, "Timeout", "slow")), errors.ServerError, 1),
        (faults.error_event({"code": "504", "message": "x"}), errors.ServerError, 1),
    ],
)
def test_a_watch_that_fails_is_begun_again(
    api: FakeApiServer, start: Start, do: faults.Do, error: type[MonitorError] | None, lists: int
) -> None:
    api.fail(do, watching=True)
    running = start()
    running.watched(1)
    until(lambda: len(api.seen("GET", "/pods")) >= 2 + lists, running.heard)
    api.store.create("pods", pod("a"))
    running.knows("a:Running")
    assert [type(one) for one in running.errors] == ([error] if error else [])
    assert running.lists == lists


@pytest.mark.parametrize(
    "do",
    [
        faults.status(403, "Forbidden", "x"),
        faults.cut_off(),
        faults.garbage(b'{"kind": "PodList", "items": []}'),
        faults.garbage(b'{"kind": "PodList", "metadata": {"resourceVersion": 5}, "items": [1]}'),
    ],
)
def test_a_list_that_fails_is_begun_again(api: FakeApiServer, start: Start, do: faults.Do) -> None:
    api.store.create("pods", pod("a"))
    api.fail(do, watching=False, times=2)
    running = start()
    running.knows("a:Running")
    assert running.changes[0] == "all a:Running"
    assert len(running.errors) == 2


def test_a_server_that_is_behind_is_asked_for_what_it_has(api: FakeApiServer, start: Start) -> None:
    """etcd restored from a backup, or an API server whose cache is older than another one's answer."""
    api.store.create("pods", pod("a"))
    running = start()
    running.watched(1)
    api.refuse()
    with api.store.changed:
        api.store.version = 500
        api.store.oldest = 0
        api.store._history.clear()
    api.fail(faults.error_event(), watching=True)
    api.listen()
    until(lambda: running.lists == 2, running.heard)
    assert any(isinstance(one, errors.ServerError) and "Too large" in str(one) for one in running.errors)
    api.store.create("pods", pod("b"))
    running.knows("a:Running", "b:Running")


def test_a_list_whose_version_has_expired_takes_any(api: FakeApiServer, start: Start) -> None:
    running = start()
    running.watched(1)
    api.fail(faults.error_event(), watching=True)
    api.fail(faults.status(410, "Expired", "too old"), watching=False)
    api.drop_connections()
    until(lambda: running.lists == 2, running.heard)
    assert "resourceVersion" not in [one for one in api.seen("GET", "/pods") if not one.watching][-1].query


def test_a_watch_that_is_silent_is_begun_again(api: FakeApiServer, start: Start) -> None:
    api.fail(faults.stream(end=False), watching=True)
    running = start(silence_s=0.3)
    running.watched(2)
    api.store.create("pods", pod("a"))
    running.knows("a:Running")
    assert running.errors == []
    assert running.lists == 1


def test_bookmarks_move_the_version_on(api: FakeApiServer, start: Start) -> None:
    api.bookmark_s = 0.05
    running = start(silence_s=1.0)
    running.watched(1)
    for i in range(5):
        api.store.create("nodes", {"kind": "Node", "metadata": {"name": f"n{i}"}})
    until(lambda: running._version == str(api.store.version), running.heard)
    api.store.oldest = api.store.version  # all history before the last change is gone
    api.drop_connections()
    running.watched(2)
    api.store.create("pods", pod("a"))
    running.knows("a:Running")
    assert running.lists == 1
    assert "all a:Running" not in running.changes


def test_watches_that_end_at_once_have_pauses_between_them(api: FakeApiServer, start: Start) -> None:
    api.fail(faults.stream(), watching=True, times=1000)
    began = time.monotonic()
    start().watched(6)
    assert time.monotonic() - began >= 0.34  # 0.02, 0.04, 0.08, 0.1, 0.1 s


def test_the_pause_that_a_server_names_is_made(
    api: FakeApiServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, next_s = list[float](), BackOff.next_s
    monkeypatch.setattr(BackOff, "next_s", lambda *of: given.append(next_s(*of)) or given[-1])
    api.fail(faults.status(503, "ServiceUnavailable", "x", Retry_After="600"), times=100)
    running = start()
    until(lambda: given[:1] == [1.0], running.heard)  # ten times the cap
