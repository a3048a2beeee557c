"""Which alerts an incident gives; URLs; what is sent."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import ConfigError, MonitorError
from monitor.settings.values import check_url
from monitor.side.alerts import rules
from monitor.side.alerts.rules import HOLD_S, Alert, alerts_for, rfc3339
from monitor.side.alerts.send import RUNBOOK, AlertSender, alertmanager_body
from tests.log_lines import LogLines
from tests.side.incident_samples import DURING_GRACE, EVICTION_WON, OWN_LIMIT, variant

VICTIM = DURING_GRACE["oom_victims"][0]
OUTSIDE = {**VICTIM, "pod": None, "comm": "sshd"}


@pytest.mark.parametrize(
    ("incident", "expected"),
    [
        (EVICTION_WON, [(rules.EVICTION, "warning")]),
        ({**EVICTION_WON, "observed": True}, [(rules.EVICTION, "info")]),
        ({**EVICTION_WON, "flags": ["over_eviction"]}, [(rules.EVICTION, "warning"), (rules.OVER_EVICTION, "warning")]),
        (DURING_GRACE, [(rules.OOM_KILL, "critical"), (rules.WRONG_VICTIM, "warning")]),
        *(
            ({**DURING_GRACE, "flags": [], "verdict": verdict}, [(rules.OOM_KILL, "critical")])
            for verdict in ("oom_unseen", "oom_before_decision", "oom_during_grace", "oom_after_eviction")
        ),
        (OWN_LIMIT, [(rules.OWN_LIMIT, "info")]),
        ({**OWN_LIMIT, "verdict": "relieved", "oom_victims": []}, []),
        ({**OWN_LIMIT, "verdict": "relieved", "oom_victims": [], "flags": ["user_kill"]}, []),
        ({**OWN_LIMIT, "verdict": "relieved", "oom_victims": [], "flags": ["already_exiting"]}, []),
        ({**OWN_LIMIT, "verdict": "undetermined", "oom_victims": [], "flags": ["lost_events"]}, []),
        ({**OWN_LIMIT, "verdict": "undetermined", "flags": ["lost_events"]}, [(rules.OOM_KILL, "warning")]),
        ({**DURING_GRACE, "verdict": "undetermined", "flags": ["lost_events"]}, [(rules.OOM_KILL, "critical")]),
        # At a limit of its own, beside an eviction in time.
        ({**EVICTION_WON, "oom_victims": [VICTIM]}, [(rules.OOM_KILL, "warning"), (rules.EVICTION, "warning")]),
        # Only observed: outrace would have won, and the kernel killed.
        ({**EVICTION_WON, "observed": True, "oom_victims": [VICTIM]}, [(rules.OOM_KILL, "critical")]),
    ],
)
def test_alerts_of_an_incident(incident: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert [(alert.name, alert.labels["severity"]) for alert in alerts_for(incident, "n")] == expected


def test_the_labels_of_an_oom_kill() -> None:
    (alert,) = alerts_for({**DURING_GRACE, "flags": []}, "n")
    where = {"severity": "critical", "node": "n", "domain": "node", "namespace": "prod", "pod": "db-0"}
    assert alert.labels == {**where, "verdict": "oom_during_grace"}
    assert (alert.annotations["summary"], alert.starts_at) == (DURING_GRACE["summary"], 1769832000)


def test_one_alert_for_each_pod_that_lost_somebody() -> None:
    victims = [{**VICTIM, "pid": n, "pod": f"ns/p{n % 3}"} for n in range(9)] + [OUTSIDE]
    found = alerts_for({**DURING_GRACE, "flags": [], "oom_victims": victims}, "n")
    assert [alert.labels.get("pod") for alert in found] == ["p0", "p1", "p2", None]
    assert found[0].annotations["victims"].count("postgres") == 9
    assert "sshd (pid 4312, no pod" in found[0].annotations["victims"]


def test_a_machine_full_of_victims_is_bounded() -> None:
    victims = [{**VICTIM, "pod": f"ns/p{n}"} for n in range(500)]
    found = alerts_for({**DURING_GRACE, "oom_victims": victims}, "n")
    assert len([alert for alert in found if alert.name == rules.OOM_KILL]) == rules.MAX_PODS
    assert found[0].annotations["victims"].endswith("; and 490 more")


def test_the_same_trouble_is_the_same_alert() -> None:
    """Another time, process, size: the same labels. Judged again later: also the same occurrence."""
    (alert,) = alerts_for({**EVICTION_WON, "start": "2026-01-31T12:00:00.250Z", "end": "2026-01-31T12:00:03.500Z"}, "n")
    assert alert.starts_at == 1769860800.25
    first = alerts_for(DURING_GRACE, "n")
    other = {**VICTIM, "pid": 1, "comm": "x", "rss_bytes": 2, "oom_score_adj": 3, "policy_rank": 4, "memcg": "/y"}
    what = {"oom_victims": [other], "invoker": None, "summary": "s", "advice": "a"}
    again = alerts_for(variant(1, DURING_GRACE, **what, margin_ms=1.0, margin_bytes=2), "n")
    assert [alert.identity for alert in again] == [alert.identity for alert in first]
    later = alerts_for({**DURING_GRACE, "end": "2026-01-31T12:10:00Z"}, "n")
    assert [(a.identity, a.starts_at) for a in later] == [(a.identity, a.starts_at) for a in first]


def test_a_stalled_pod_is_one_alert_whatever_caused_it() -> None:
    incident = {**OWN_LIMIT, "verdict": "stalled", "oom_victims": [], "stall": {"pod": "shop/web", "cause": "shop/hog"}}
    (alert,) = alerts_for(incident, "n")
    assert (alert.name, alert.labels["severity"]) == (rules.STALLED, "warning")
    assert (alert.labels["namespace"], alert.labels["pod"], "cgroup" in alert.labels) == ("shop", "web", False)
    (machine,) = alerts_for({**incident, "domain": "node", "stall": {"pod": "machine", "cause": None}}, "n")
    assert (machine.labels["domain"], machine.labels["pod"]) == ("node", "machine")


def test_a_container_s_directory_is_no_label() -> None:
    (alert,) = alerts_for(OWN_LIMIT, "n")
    assert "podapi" not in str(alert.labels)
    assert alert.annotations["where"] == OWN_LIMIT["domain"]
    # Outside every pod the directory is the name of the service.
    service = {**OWN_LIMIT, "domain": "/sys/fs/cgroup/system.slice/db.service", "oom_victims": [OUTSIDE]}
    assert alerts_for(service, "n")[0].labels["cgroup"] == "/sys/fs/cgroup/system.slice/db.service"


@pytest.mark.parametrize("broken", [{"verdict": None}, {"oom_victims": [{}]}, {"start": "soon"}, {"start": 1e300}])
def test_a_malformed_incident_is_one_clear_error(broken: dict[str, Any]) -> None:
    with pytest.raises(MonitorError, match="no alert can be made of incident"):
        alerts_for({**DURING_GRACE, **broken}, "n")


def test_a_hold_that_the_kubelet_did_not_answer() -> None:
    held = [{"pod": "shop/hog", "why": "other_pod"}, {"pod": "shop/cart", "why": "clear"}]
    incident = {**DURING_GRACE, "verdict": "relieved", "oom_victims": [], "flags": ["held", "hold_unanswered"]}
    (alert,) = alerts_for({**incident, "holds": held}, "n")
    assert (alert.name, alert.labels["namespace"], alert.labels["pod"]) == (rules.HOLD_UNANSWERED, "shop", "hog")


def test_an_alert_is_its_name_and_labels() -> None:
    one = Alert("A", {"b": "1", "a": "2", "empty": ""}, {"n": "1"}, 1.0)
    assert one.labels == {"b": "1", "a": "2"}
    assert one.identity == Alert("A", {"a": "2", "b": "1"}).identity
    assert one.identity != Alert("A", {"a": "1", "b": "2"}).identity
    assert Alert("A", {"a": 'b","c'}).identity != Alert("A", {"a": "b", "c": "d"}).identity


@pytest.mark.parametrize("moment", [-1.0, float("nan"), float("inf"), 1e12])
def test_a_time_that_is_none_is_refused(moment: float) -> None:
    with pytest.raises(ValueError, match="not a Unix time"):
        Alert("A", {}, {}, moment)


@given(st.floats(0, 253402300799.9))
def test_rfc3339_keeps_the_moment(seconds: float) -> None:
    from datetime import datetime

    text = rfc3339(seconds)
    assert len(text) == len("2026-01-31T12:00:00.123456Z")
    whole = datetime.fromisoformat(text[:19] + "+00:00").timestamp()
    assert whole + float("0" + text[19:-1]) == pytest.approx(seconds, abs=1e-6)


def test_what_alertmanager_is_sent() -> None:
    """An alert fires for its time after it is sent, however late that is, and ends after it starts."""
    alert = Alert("A", {"node": "n"}, {"summary": "s"}, 1.5)
    (sent,) = json.loads(alertmanager_body([alert], 9.0))
    assert sent == {
        "labels": {"alertname": "A", "source": "push", "node": "n"},
        "annotations": {"summary": "s", "runbook_url": RUNBOOK.format("A")},
        "startsAt": "1970-01-01T00:00:01.500000Z",
        "endsAt": rfc3339(9.0 + HOLD_S),
    }
    (sent,) = json.loads(alertmanager_body([alert], 0.5))
    assert sent["endsAt"] == rfc3339(1.5 + HOLD_S)


def test_any_text_can_be_sent() -> None:
    """A comm is bytes of the process's own choice."""
    body = alertmanager_body([Alert("A", {"pod": "p"}, {"victims": '\udcff\x00\n"\\\u2028'}, 1.0)], 2.0)
    assert body.isascii()
    assert json.loads(body)


@pytest.mark.parametrize(
    ("url", "used"),
    [
        ("http://a:9093", "http://a:9093"),
        ("https://a/prefix/", "https://a/prefix"),
        ("http://u:p@[::1]:9093/", "http://u:p@[::1]:9093"),
    ],
)
def test_urls(url: str, used: str) -> None:
    assert (check_url(url), check_url(used)) == (used, used)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("localhost:9093", "is no http or https URL with a host; write https://HOST:PORT"),
        ("", "is no http"), ("ftp://a", "is no http"), ("http://", "is no http"), ("http://:9093", "is no http"),
        ("http://a:0", "is no http"), ("http://a:99999", "Port out of range"), ("http://a:x", "Port could not be"),
        ("http://[::1", "Invalid IPv6 URL"), ("http://a/api/v2/alerts", "give the base URL"),
        ("http://a?x=1", "do not belong"), ("http://a/#x", "do not belong"), ("http://a/b c", "printable ASCII"),
        ("http://a/\r\nX: y", "printable ASCII"), ("http://b\u00fccher.example/", "printable ASCII"),
    ],
)  # fmt: skip
def test_bad_urls(url: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_url(url)
    text = str(caught.value)
    assert text.startswith("--alertmanager: ")
    assert expected in text
    assert "\n" not in text


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        check_url("http://me:s3cret@h:0/")
    assert "s3cret" not in str(caught.value)
    receivers = AlertSender(["https://me:s3cret@h/prefix", "http://[::1]/"], LogLines())
    assert list(receivers.counters) == ["alertmanager h:443", "alertmanager [::1]:80"]
    receivers.close(1.0)
