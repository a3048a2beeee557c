"""Pushed alerts at a real Alertmanager: what tests of the queue take for granted about it."""

import time
from pathlib import Path

from monitor.side.alerts.rules import OOM_KILL, PRESSURE, Alert, rfc3339
from monitor.side.alerts.send import AlertSender
from tests.alerts.services import Alertmanager, sender
from tests.live import until
from tests.log_lines import LogLines


def pressure(now: float) -> Alert:
    labels = {"node": "node1", "signal": "memory.available", "kind": "hard"}
    return Alert(PRESSURE, labels, {"summary": "memory is short"}, now)


def acknowledged(sending: AlertSender) -> bool:
    """Whether the receivers took everything, and the sender knows."""
    return not any(counts["waiting"] for counts in sending.counters.values())


def test_resolved_after_clear_and_firing_again(tmp_path: Path) -> None:
    alertmanager = Alertmanager(tmp_path)
    with alertmanager.running(), sender([alertmanager.url]) as sending:
        for _ in range(2):
            now = time.time()
            sending.update([pressure(now)], now)
            until(lambda: alertmanager.alerts(PRESSURE, node="node1"), "firing")
            # One that is over before its acknowledgement was read counts as late, and is held for minutes.
            until(lambda: acknowledged(sending), "acknowledged")
            sending.update([], time.time(), settle_s=0)
            until(lambda: not alertmanager.alerts(PRESSURE, node="node1"), "resolved")
        until(lambda: acknowledged(sending), "all acknowledged")
        (counts,) = sending.counters.values()
    assert counts == {"sent": 4, "failed": 0, "dropped": 0, "waiting": 0}


def test_what_was_raised_while_it_was_down_or_is_forgotten_arrives(tmp_path: Path) -> None:
    """Pressure that has gone, an event whose hold is over, and one that lasts: all three are firing when it is back. A
    bad one is refused and holds up no other.
    """
    alertmanager, log = Alertmanager(tmp_path), LogLines()
    with sender([alertmanager.url], log=log, resend_s=0.2) as sending:
        now = time.time()
        sending.fire(Alert("OutraceBad", {"no label name": "x"}, {}, now))
        sending.fire(pressure(now))
        sending.update([], now + 0.01, settle_s=0)
        sending.fire(Alert(OOM_KILL, {"pod": "a"}, {}, now - 120, now - 60))
        sending.fire(Alert("OutraceNotReady", {}, {}, now))
        (name,) = sending.counters
        until(lambda: sending.counters[name]["failed"] >= 4, "it was tried several times")
        assert sending.counters[name]["waiting"] == 4
        with alertmanager.running():
            until(lambda: len(alertmanager.alerts()) == 3, "all arrive")
            until(lambda: acknowledged(sending), "all acknowledged")
            assert {alert["startsAt"] for alert in alertmanager.alerts(OOM_KILL)} == {rfc3339(now - 120)[:23] + "Z"}
        assert sending.counters[name]["dropped"] == 1
        with alertmanager.running():  # it keeps no alerts across a restart
            until(lambda: alertmanager.alerts("OutraceNotReady"), "sent again")
    (failure, *_) = log.matching("cannot be delivered")
    assert "refused" in failure["problem"]
    assert log.matching("delivered again")
    (refused,) = log.matching("refused")
    assert refused["alert"] == "OutraceBad"
    assert "HTTP 400" in refused["problem"]
