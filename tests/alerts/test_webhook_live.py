"""Webhooks: an HTTP server on a real socket takes what is sent, or does not."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.side.alerts import send
from monitor.side.alerts.rules import EVICTION, OOM_KILL, PRESSURE, Alert, alerts_for, rfc3339
from monitor.side.alerts.send import AlertSender
from tests.alerts.services import Webhook, sender
from tests.kube import faults
from tests.kube.fake_http import Asked, Reply
from tests.kube.fake_tls import Authority
from tests.live import until
from tests.log_lines import LogLines
from tests.side.incident_samples import EVICTION_WON


def event(n: int, now: float) -> Alert:
    return Alert(OOM_KILL, {"pod": f"pod-{n}"}, {"summary": "killed"}, now, now + 600)


def counts(sending: AlertSender) -> dict[str, int]:
    (found,) = sending.counters.values()
    return found


@pytest.fixture
def hook() -> Iterator[Webhook]:
    made = Webhook()
    with made.running():
        yield made


def test_one_object_for_each_change(hook: Webhook) -> None:
    times = {"start": "2026-01-31T12:00:00.250Z", "end": "2026-01-31T12:00:03.500Z"}
    (alert,) = alerts_for({**EVICTION_WON, **times}, "node1")
    with sender(webhooks=[hook.hook]) as sending:
        sending.fire(alert)
        sending.fire(alert)  # the same event: no change
        until(lambda: len(hook.got()) == 2, "raised and, long past its hold time, resolved")
    fired, resolved = hook.got()
    assert fired == {
        "version": 1,
        "id": f"{alert.fingerprint}-1769860800250-firing",
        "status": "firing",
        "fingerprint": alert.fingerprint,
        "name": EVICTION,
        "node": "node1",
        "labels": {
            "severity": "warning",
            "node": "node1",
            "domain": "node",
            "namespace": "shop",
            "pod": "cart",
            "mode": "enforced",
        },
        "annotations": {
            "summary": EVICTION_WON["summary"],
            "description": EVICTION_WON["advice"],
            "incident": EVICTION_WON["id"],
            "where": "node",
            "margin_bytes": "22020096",
            "margin_ms": "8.73",
            "by": "outrace",
            "runbook_url": "docs/runbooks/OutraceEviction.md",
        },
        "starts_at": "2026-01-31T12:00:00.250000Z",
        "ends_at": None,
    }
    assert resolved == {**fired, "id": fired["id"].replace("firing", "resolved"), "status": "resolved"} | {
        "ends_at": "2026-01-31T12:05:33.500000Z"
    }
    assert {one.path for one in hook.asked} == {"/hook/secret"}


def test_a_link_to_the_page_about_an_alert(hook: Webhook) -> None:
    (alert,) = alerts_for(EVICTION_WON, "node1")
    with sender(webhooks=[hook.hook], runbooks="https://wiki.example/runbooks") as sending:
        sending.fire(alert)
        sending.update([Alert(PRESSURE, {"node": "node1"}, {}, time.time())], time.time())
        until(lambda: {one["name"] for one in hook.got()} == {EVICTION, PRESSURE}, "two alerts")
    links = {one["name"]: one["annotations"]["runbook_url"] for one in hook.got()}
    assert links == {name: f"https://wiki.example/runbooks/{name}.md" for name in (EVICTION, PRESSURE)}


def test_every_change_in_order_after_it_was_down() -> None:
    hook = Webhook()
    now = time.time()
    with sender(webhooks=[hook.hook]) as sending:
        for n in range(20):
            sending.fire(event(n, now))
        pressure = Alert(PRESSURE, {"signal": "memory.available"}, {}, now)
        for n in range(3):
            sending.fire(Alert(PRESSURE, pressure.labels, {}, now + n))
            sending.update([], now + n, settle_s=0)
            until(lambda n=n: counts(sending)["waiting"] == 20 + 2 * (n + 1), "the change waits")
        until(lambda: counts(sending)["failed"] >= 3, "it was tried several times")
        with hook.running():
            until(lambda: counts(sending)["sent"] == 26, "all arrive")
        assert counts(sending)["dropped"] == counts(sending)["waiting"] == 0
    assert [m["labels"].get("pod") for m in hook.got()[:20]] == [f"pod-{n}" for n in range(20)]
    assert [m["status"] for m in hook.got()[20:]] == ["firing", "resolved"] * 3
    assert [m["ends_at"] for m in hook.got()[21::2]] == [rfc3339(now + n) for n in range(3)]
    assert len({m["id"] for m in hook.got()}) == 26


def test_a_receiver_that_errs_is_tried_again() -> None:
    hook = Webhook()
    log = LogLines()
    with sender(webhooks=[hook.hook], log=log) as sending:
        sending.fire(event(0, time.time()))
        for status, expected in ((500, "HTTP 500"), (404, "HTTP 404"), (302, "redirects are not followed")):
            with hook.running(status):
                until(
                    lambda expected=expected: any(
                        expected in f["problem"] for f in log.matching("cannot be delivered")
                    ),
                    expected,
                )
        assert {one.path for one in hook.asked} == {"/hook/secret"}  # never /elsewhere
        with hook.running():
            until(lambda: counts(sending)["sent"] == 1, "taken at last")
    assert "secret" not in str(log.lines)


def test_what_is_refused_does_not_block_the_rest() -> None:
    hook = Webhook()
    log = LogLines()
    with sender(webhooks=[hook.hook], log=log) as sending:
        with hook.running(422):
            sending.fire(event(0, time.time()))
            until(lambda: counts(sending)["dropped"] == 1, "given up")
        with hook.running():
            sending.fire(event(1, time.time()))
            until(lambda: counts(sending)["sent"] == 1, "the next one is taken")
    assert log.matching("refused")[0]["problem"] == "HTTP 422"


def test_a_silent_receiver_delays_nobody(hook: Webhook) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        dead = f"http://127.0.0.1:{silent.getsockname()[1]}"
        sending = AlertSender([dead], [f"{dead}/x", hook.hook], LogLines(), "node1")
        for n in range(50):
            sending.fire(event(n, time.time()))
        until(lambda: len(hook.got()) == 50, "the live one has them all")
        waiting = [found["waiting"] for name, found in sending.counters.items() if str(hook.port) not in name]
        assert waiting == [50, 50]
        assert not sending.close(0.2)  # it is not waited for


def test_an_answer_that_never_ends_is_cut(hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps every single read in time, so the whole post has a limit too."""
    monkeypatch.setattr(send, "TOTAL_TIMEOUT_S", 0.3)

    def drip(_: Asked, reply: Reply) -> None:
        while not reply.wait(0.02):
            reply.raw(b"a")

    hook.fail(drip)
    with pytest.raises(send.PostError):
        send.post(hook.hook, b"{}")


def test_a_huge_answer_is_not_read(hook: Webhook) -> None:
    hook.fail(faults.garbage(b"x" * (64 << 20)))
    status, text = send.post(hook.hook, b"{}")
    assert (status, len(text)) == (200, send.MAX_ANSWER)


def test_login_in_the_url_becomes_basic_authentication(hook: Webhook) -> None:
    assert send.post(f"http://me:s%20cret@127.0.0.1:{hook.port}/a?b=c", b"{}")[0] == 200
    (asked,) = hook.asked
    assert (asked.method, asked.path, asked.query) == ("POST", "/a", {"b": "c"})
    expected = {
        "Authorization": "Basic bWU6cyBjcmV0",
        "Host": f"127.0.0.1:{hook.port}",
        "Content-Type": "application/json",
    }
    assert expected.items() <= asked.headers.items()


def test_https_with_an_unknown_certificate_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    hook = Webhook(authority.issue("localhost").server_context())
    url = f"https://localhost:{hook.port}/"
    with hook.running():
        with pytest.raises(send.PostError, match=r"(?i)certificate"):
            send.post(url, b"{}")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        assert send.post(url, b"{}")[0] == 200
