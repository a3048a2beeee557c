"""How alerts are sent: an HTTP server on a real socket takes them, or does not."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.side.alerts import send
from monitor.side.alerts.rules import OOM_KILL, Alert
from monitor.side.alerts.send import AlertSender
from tests.alerts.services import StandIn, sender
from tests.kube import faults
from tests.kube.fake_tls import Authority
from tests.live import until
from tests.log_lines import LogLines


def event(n: int, **annotations: str) -> Alert:
    return Alert(OOM_KILL, {"pod": f"pod-{n}"}, {"summary": "killed", **annotations}, time.time())


def counts(sending: AlertSender) -> dict[str, int]:
    (found,) = sending.counters.values()
    return found


@pytest.fixture
def server() -> Iterator[StandIn]:
    made = StandIn()
    with made.running():
        yield made


def test_what_is_judged_anew_is_sent_again_with_what_is_known_then(server: StandIn) -> None:
    with sender(server.url) as sending:
        first = event(0)
        sending.fire(first)
        until(lambda: counts(sending)["sent"] == 1, "at once")
        fired = threading.Event()  # a post is under way until all are: how long that takes is no matter
        server.fail(lambda *_: fired.wait(60) and False)
        for n in range(50):
            sending.fire(replace(first, annotations={"summary": f"{n} killed"}))
        fired.set()
        until(lambda: server.got()[-1]["annotations"]["summary"] == "49 killed", "the last one")
    assert len(server.asked) <= 3  # not one for each
    assert {one["startsAt"] for one in server.got()} == {server.got()[0]["startsAt"]}


def test_what_waits_is_bounded_and_pods_push_out_nothing_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user makes any number of units, each with alerts of its own name."""
    monkeypatch.setattr(send, "MAX_WAITING", 10)
    receiver = send.Receiver("http://127.0.0.1:9", LogLines())  # not started
    receiver.fire(Alert(OOM_KILL, {"domain": "node"}))
    for n in range(25):
        receiver.fire(event(n))
    assert receiver.counts() == {"sent": 0, "failed": 0, "dropped": 16, "waiting": 10}
    waiting = [one.labels.get("pod") for one in receiver._waiting.values()]
    assert waiting == [None, *(f"pod-{n}" for n in range(16, 25))]


def test_one_that_was_down_and_errs_has_the_last_of_each_alert_in_the_end() -> None:
    server, log = StandIn(), LogLines()
    with sender(server.url.replace("//", "//me:s%20cret@"), log=log) as sending:
        for version in ("a", "b"):
            for n in range(100):
                sending.fire(event(n, version=version))
        until(lambda: counts(sending)["failed"] >= 1, "it was tried")
        assert counts(sending)["waiting"] == 100
        with server.running(302):
            for status in (302, 404, 500):
                server.status = status
                until(lambda s=status: f"HTTP {s}" in str(log.matching("cannot be delivered")), "it is tried again")
            server.status = 200
            until(lambda: counts(sending)["sent"] == 100, "all are taken at last")
        assert counts(sending)["dropped"] == counts(sending)["waiting"] == 0
    assert {one.path for one in server.asked} == {"/api/v2/alerts"}  # never /elsewhere
    assert {one.headers["Authorization"] for one in server.asked} == {"Basic bWU6cyBjcmV0"}
    taken = [(one["labels"]["pod"], one["annotations"]["version"]) for one in server.got()[-100:]]
    assert taken == [(f"pod-{n}", "b") for n in range(100)]
    assert len(log.matching("delivered again")) == 1
    assert "s cret" not in str(log.lines)


def test_a_silent_receiver_delays_nobody(server: StandIn) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        dead = f"http://127.0.0.1:{silent.getsockname()[1]}"
        sending = AlertSender([dead, server.url], LogLines())
        for n in range(50):
            sending.fire(event(n))
        until(lambda: len(server.got()) >= 50, "the live one has them all")
        (waiting,) = [found["waiting"] for name, found in sending.counters.items() if str(server.port) not in name]
        assert waiting == 50
        assert not sending.close(0.2)  # it is not waited for


def test_an_answer_that_never_ends_holds_up_nothing(server: StandIn) -> None:
    """The status says enough. A head that never ends is as in tests/kube/test_transport.py."""
    server.fail(faults.drip)
    server.fail(faults.garbage(b"x" * (64 << 20)))
    with sender(server.url) as sending:
        for sent in (1, 2):
            sending.fire(event(sent))
            until(lambda sent=sent: counts(sending)["sent"] == sent, "delivered")


def test_https_with_an_unknown_certificate_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    server = StandIn(authority.issue("localhost").server_context())
    log = LogLines()
    with server.running(), sender(f"https://localhost:{server.port}/", log=log) as sending:
        sending.fire(event(0))
        until(lambda: log.matching("cannot be delivered"), "refused")
        assert server.asked == []
    assert "certificate is not trusted" in log.matching("cannot be delivered")[0]["problem"]
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    with server.running(), sender(f"https://localhost:{server.port}/") as sending:
        sending.fire(event(0))
        until(lambda: counts(sending)["sent"] == 1, "delivered")
