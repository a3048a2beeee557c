"""Pushed alerts at a real Alertmanager."""

import re
import subprocess
import time
from pathlib import Path

import pytest

from monitor.side.alerts.rules import EVICTION, OOM_KILL, PRESSURE, Alert, alerts_for, rfc3339
from monitor.side.alerts.send import AlertSender
from tests.alerts.examples import OOM_DURING_GRACE
from tests.alerts.services import Alertmanager, Child, LogLines, Webhook, binary, fetch, sender
from tests.live import until

SIGNAL = {"signal": "memory.available", "kind": "hard"}


def pressure(now: float) -> Alert:
    return Alert(PRESSURE, {"node": "node1", **SIGNAL}, {"summary": "memory is short"}, now)


def test_an_incident_is_visible_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alertmanager = Alertmanager(tmp_path)
    times = []
    with alertmanager.running(), sender(tmp_path, [alertmanager.url]) as sending:
        for n in range(10):
            pod = f"default/pod-{n}"
            victim = {**OOM_DURING_GRACE["oom_victims"][0], "pod": pod}
            begin = time.monotonic()
            for alert in alerts_for({**OOM_DURING_GRACE, "oom_victims": [victim], "flags": []}, "node1"):
                sending.fire(alert)
            until(lambda n=n: alertmanager.alerts(OOM_KILL, pod=f"pod-{n}"), "the alert arrives")
            times.append(time.monotonic() - begin)
        found = alertmanager.alerts(OOM_KILL, pod="pod-0")[0]
    with capsys.disabled():
        print(
            f"\n  push to visible at /api/v2/alerts: median {sorted(times)[5] * 1e3:.1f} ms, max {max(times) * 1e3:.1f}"
        )
    assert found["labels"] == {
        "alertname": OOM_KILL,
        "source": "push",
        "severity": "critical",
        "node": "node1",
        "domain": "node",
        "namespace": "default",
        "pod": "pod-0",
        "verdict": "oom_during_grace",
    }
    assert found["annotations"]["summary"] == OOM_DURING_GRACE["summary"]
    assert (found["startsAt"], found["status"]["state"]) == ("2026-01-31T12:00:00.250Z", "active")


def acknowledged(sending: AlertSender) -> bool:
    """Whether the receivers took everything, and the sender knows."""
    return not any(counts["waiting"] for counts in sending.counters.values())


def test_resolved_after_clear_and_firing_again(tmp_path: Path) -> None:
    alertmanager = Alertmanager(tmp_path)
    with alertmanager.running(), sender(tmp_path, [alertmanager.url]) as sending:
        now = time.time()
        sending.update([pressure(now)], now)
        until(lambda: alertmanager.alerts(PRESSURE), "firing")
        # One that is over before its acknowledgement was read counts as delivered too late, and is held for minutes.
        until(lambda: acknowledged(sending), "acknowledged")
        sending.update([], time.time(), settle_s=0)
        until(lambda: not alertmanager.alerts(PRESSURE), "resolved")
        sending.update([pressure(time.time())], time.time())
        until(lambda: alertmanager.alerts(PRESSURE), "firing again")
        until(lambda: acknowledged(sending), "acknowledged again")
        sending.update([], time.time(), settle_s=0)
        until(lambda: not alertmanager.alerts(PRESSURE), "resolved again")
        until(lambda: acknowledged(sending), "all acknowledged")
        (counts,) = sending.counters.values()
    assert counts == {"sent": 4, "failed": 0, "dropped": 0, "waiting": 0}


def test_an_event_resolves_by_itself(tmp_path: Path) -> None:
    alertmanager = Alertmanager(tmp_path)
    with alertmanager.running(), sender(tmp_path, [alertmanager.url]) as sending:
        now = time.time()
        sending.fire(Alert(EVICTION, {"pod": "a"}, {}, now, now + 0.5))
        until(lambda: alertmanager.alerts(EVICTION), "firing")
        until(lambda: not alertmanager.alerts(EVICTION), "resolved")


def test_a_silence_is_respected(tmp_path: Path) -> None:
    alertmanager = Alertmanager(tmp_path)
    with alertmanager.running(), sender(tmp_path, [alertmanager.url]) as sending:
        amtool = (binary("amtool"), f"--alertmanager.url={alertmanager.url}", "silence", "add", "--author=test")
        subprocess.run([*amtool, "--comment=test", "--duration=1h", f"alertname={PRESSURE}"], check=True)
        now = time.time()
        sending.fire(pressure(now))
        sending.fire(Alert(EVICTION, {"pod": "a"}, {}, now, now + 60))
        until(lambda: len(alertmanager.alerts()) == 2, "both arrive")
        until(lambda: alertmanager.alerts(PRESSURE)[0]["status"]["state"] == "suppressed", "silenced")
        assert alertmanager.alerts(PRESSURE)[0]["status"]["silencedBy"]
        assert alertmanager.alerts(EVICTION)[0]["status"]["state"] != "suppressed"


def test_what_was_raised_while_it_was_down_arrives(tmp_path: Path) -> None:
    """Pressure that has gone, an event whose hold is over, and one that lasts: all three are firing when it is back."""
    alertmanager = Alertmanager(tmp_path)
    log = LogLines()
    with sender(tmp_path, [alertmanager.url], log=log) as sending:
        now = time.time()
        sending.fire(pressure(now))
        sending.update([], now + 0.01, settle_s=0)
        sending.fire(Alert(OOM_KILL, {"pod": "a"}, {}, now - 120, now - 60))
        sending.fire(Alert("OutraceNotReady", {}, {}, now))
        (name,) = sending.counters
        until(lambda: sending.counters[name]["failed"] >= 4, "it was tried several times")
        assert sending.counters[name]["waiting"] == 3
        with alertmanager.running():
            until(lambda: len(alertmanager.alerts()) == 3, "all arrive")
            until(lambda: sending.counters[name]["waiting"] == 0, "all acknowledged")
            assert {alert["startsAt"] for alert in alertmanager.alerts(OOM_KILL)} == {rfc3339(now - 120)[:23] + "Z"}
    assert (sending.counters[name]["sent"], sending.counters[name]["dropped"]) == (3, 0)
    (failure,) = log.matching("cannot be delivered")  # logged once, not at every try
    assert "refused" in failure["problem"]
    assert log.matching("delivered again")


def written(state: Path) -> int:
    """Alerts in the state file."""
    return sum(len(set(re.findall(r'"name":"(\w+)"', path.read_text()))) for path in state.glob("alerts.json"))


def test_our_own_restart_in_between(tmp_path: Path) -> None:
    """Killed with SIGKILL while the receiver is down: the next process delivers, and knows what it has to resolve."""
    alertmanager = Alertmanager(tmp_path)
    now = time.time()
    child = Child(tmp_path, [alertmanager.url], [])
    child.fire(pressure(now))
    child.fire(Alert(OOM_KILL, {"pod": "a"}, {}, now, now + 60))
    until(lambda: written(tmp_path) >= 2, "both are written down")
    child.kill()
    with alertmanager.running():
        with sender(tmp_path, [alertmanager.url]) as sending:
            until(lambda: len(alertmanager.alerts()) == 2, "both arrive")
            until(lambda: not any(counts["waiting"] for counts in sending.counters.values()), "both acknowledged")
        with sender(tmp_path, [alertmanager.url]) as sending:
            # A third process finds no pressure: what the first one raised is over, and the event is not.
            sending.update([], time.time(), settle_s=0)
            until(lambda: not alertmanager.alerts(PRESSURE), "resolved")
            assert alertmanager.alerts(OOM_KILL)


def test_alertmanager_forgets_and_gets_it_again(tmp_path: Path) -> None:
    alertmanager = Alertmanager(tmp_path)
    with sender(tmp_path, [alertmanager.url], resend_s=0.2) as sending:
        with alertmanager.running():
            sending.fire(pressure(time.time()))
            until(lambda: alertmanager.alerts(PRESSURE), "firing")
        with alertmanager.running():  # it keeps no alerts across a restart
            until(lambda: alertmanager.alerts(PRESSURE), "sent again")


def test_one_bad_alert_does_not_hold_up_the_others(tmp_path: Path) -> None:
    alertmanager = Alertmanager(tmp_path)
    log = LogLines()
    with sender(tmp_path, [alertmanager.url], log=log) as sending:
        sending.fire(Alert("OutraceBad", {"no label name": "x"}, {}, time.time()))
        sending.fire(pressure(time.time()))
        (name,) = sending.counters
        until(lambda: sending.counters[name]["failed"] >= 2, "both wait")
        with alertmanager.running():
            until(lambda: alertmanager.alerts(PRESSURE), "the good one arrives")
            until(lambda: sending.counters[name]["dropped"] == 1, "the bad one is given up")
            until(lambda: sending.counters[name]["waiting"] == 0, "nothing waits")
    (refused,) = log.matching("refused")
    assert refused["alert"] == "OutraceBad"
    assert "HTTP 400" in refused["problem"]


_TO_WEBHOOK = """
route: {{receiver: hook, group_by: [alertname], group_wait: 0s, group_interval: 1s}}
receivers: [{{name: hook, webhook_configs: [{{url: '{url}'}}]}}]
"""


def test_people_are_notified_of_a_late_event(tmp_path: Path) -> None:
    """Alertmanager notifies nobody of what is over when it hears of it; so we keep it firing."""
    people = Webhook(tmp_path, "people")
    alertmanager = Alertmanager(tmp_path, _TO_WEBHOOK.format(url=people.url))
    now = time.time()
    with people.running(), sender(tmp_path, [alertmanager.url]) as sending:
        sending.fire(Alert(OOM_KILL, {"pod": "a"}, {"summary": "killed"}, now - 1000, now - 900))
        (name,) = sending.counters
        until(lambda: sending.counters[name]["failed"] >= 2, "it is down")
        with alertmanager.running():
            until(people.got, "people are notified")
    notified = people.got()[0]
    assert notified["status"] == "firing"
    assert notified["alerts"][0]["annotations"]["summary"] == "killed"


def test_down_for_thirty_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alertmanager = Alertmanager(tmp_path)
    begin = time.monotonic()
    with sender(tmp_path, [alertmanager.url]) as sending:
        fired = 0
        while time.monotonic() - begin < 30:
            now = time.time()
            sending.fire(Alert(OOM_KILL, {"pod": f"pod-{fired}"}, {}, now, now + 60))
            fired += 1
            time.sleep(0.5)  # alerts come while it is down; how many does not matter
        with alertmanager.running():
            back = time.monotonic()
            until(lambda: len(alertmanager.alerts(OOM_KILL)) == fired, "all arrive", 60)
            with capsys.disabled():
                print(f"\n  {fired} alerts of 30 s arrived {time.monotonic() - back:.2f} s after it was back")


def test_the_address_checked_is_the_one_that_answers(tmp_path: Path) -> None:
    """The address `check_url` asks for is the one whose /api/v2/alerts answers."""
    alertmanager = Alertmanager(tmp_path)
    with alertmanager.running():
        assert fetch(f"{alertmanager.url}/api/v2/status")["cluster"]["status"] == "disabled"
