"""Pushed alerts at a real Alertmanager: what the sender takes for granted about it."""

import time
from pathlib import Path

import pytest

from monitor.side.alerts import send
from monitor.side.alerts.rules import OOM_KILL, STALLED, Alert, rfc3339
from tests.alerts.services import Alertmanager, sender
from tests.live import until
from tests.log_lines import LogLines


def test_it_resolves_an_alert_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "HOLD_S", 2.0)
    alertmanager = Alertmanager(tmp_path)
    with alertmanager.running(), sender(alertmanager.url) as sending:

        def fires() -> object:  # again, where the two seconds were over before it was looked at
            sending.fire(Alert(OOM_KILL, {"pod": "a"}, {}, time.time()))
            return alertmanager.alerts(OOM_KILL, pod="a")

        for _ in range(2):
            until(fires, "firing")
            until(lambda: not alertmanager.alerts(OOM_KILL, pod="a"), "resolved")
        (counts,) = sending.counters.values()
    assert counts == {"sent": counts["sent"], "failed": 0, "dropped": 0, "waiting": 0}
    assert counts["sent"] >= 2


def test_what_was_raised_while_it_was_down_arrives(tmp_path: Path) -> None:
    """Also what happened longer ago than an alert fires. A bad one is refused and holds up no other."""
    alertmanager, log = Alertmanager(tmp_path), LogLines()
    with sender(alertmanager.url, log=log) as sending:
        now = time.time()
        sending.fire(Alert("OutraceBad", {"no label name": "x"}, {}, now))
        sending.fire(Alert(OOM_KILL, {"pod": "a"}, {}, now - 1200))
        sending.fire(Alert(STALLED, {"pod": "b"}, {}, now))
        (name,) = sending.counters
        until(lambda: sending.counters[name]["failed"] >= 2, "it was tried several times")
        assert sending.counters[name]["waiting"] == 3
        with alertmanager.running():
            until(lambda: len(alertmanager.alerts()) == 2, "both arrive")
            until(lambda: not sending.counters[name]["waiting"], "acknowledged")
            assert {alert["startsAt"] for alert in alertmanager.alerts(OOM_KILL)} == {rfc3339(now - 1200)[:23] + "Z"}
        assert sending.counters[name]["dropped"] == 1
    (failure, *_) = log.matching("cannot be delivered")
    assert "refused" in failure["problem"]
    assert log.matching("delivered again")
    (refused,) = log.matching("refused")
    assert refused["alert"] == "OutraceBad"
    assert "HTTP 400" in refused["problem"]
