"""Which alerts are pushed: pure functions from what happened to `Alert` values.

They are of moments, with names and figures that no metric has. Of a state, such as pressure, the rules of Prometheus
make the alert (`deploy/prometheus`).

An alert is its name and its labels. Both are chosen so that the same trouble is the same alert every time: pods,
domains and verdicts are labels, everything that is a number, a process id or a time is an annotation.
Severities: ``critical`` is worth waking an operator, ``warning`` is for today, ``info`` is for the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from monitor.errors import MonitorError
from monitor.side.incidents import unix_time

OOM_KILL = "OutraceOOMKill"
OWN_LIMIT = "OutraceOOMOwnLimit"
EVICTION = "OutraceEviction"
WRONG_VICTIM = "OutraceWrongVictim"
OVER_EVICTION = "OutraceOverEviction"
STATUS_NOT_TAKEN = "OutraceStatusNotTaken"
HOLD_UNANSWERED = "OutraceHoldUnanswered"
STALLED = "OutraceStalled"
#: Every alert that is pushed. The rule file has the same, and those about states.
NAMES = tuple(name for name in vars().values() if str(name).startswith("Outrace"))

#: How long an alert fires after it was delivered, in seconds. Alertmanager looks at a group every 5 min by default
#: (group_interval), and does not notify of an alert that was resolved before: a little longer.
HOLD_S = 330.0
#: Pods of one incident that get an alert of their own; a machine-wide OOM may name hundreds of victims.
MAX_PODS = 50
#: The domains that are no cgroup's path.
_DOMAINS = ("node", "kubepods")
#: Victims named in an annotation.
_MAX_NAMED = 10

#: RFC 3339 ends there.
_YEAR_10000 = 253402300800


@dataclass(frozen=True)
class Alert:
    """One alert; ``starts_at`` is Unix seconds.

    Labels with an empty value are dropped, because Alertmanager treats them as absent, and so are annotations without
    a value. Raises ValueError for a time that is not a Unix time.
    """

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, Any] = field(default_factory=dict)
    starts_at: float = 0.0

    def __post_init__(self) -> None:
        # Copies: the caller may change its own, and a thread sends ours later.
        object.__setattr__(self, "labels", {key: str(value) for key, value in self.labels.items() if value})
        annotations = {key: str(value) for key, value in self.annotations.items() if value not in (None, "")}
        object.__setattr__(self, "annotations", annotations)
        if not 0 <= self.starts_at < _YEAR_10000:
            raise ValueError(f"alert {self.name}: {self.starts_at!r} is not a Unix time")

    @property
    def identity(self) -> tuple[str, frozenset[tuple[str, str]]]:
        return self.name, frozenset(self.labels.items())


def rfc3339(seconds: float) -> str:
    """Unix seconds as RFC 3339 in UTC: ``2026-01-31T12:00:00.123456Z``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def alerts_for(incident: Mapping[str, Any], node: str) -> list[Alert]:
    """The alerts of one incident (its JSON object). An incident that is no trouble gives none.

    Each starts with the incident, so judging it again, when more of it is known, raises the same alerts. Raises
    MonitorError when the object is not an incident.
    """
    try:
        return list(_of_incident(incident, node))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise MonitorError(f"no alert can be made of incident {incident.get('id')!r}: {problem}") from error


def _of_incident(incident: Mapping[str, Any], node: str) -> Iterator[Alert]:
    domain: str = incident["domain"]
    starts_at = unix_time(incident["start"])
    for name, severity, pods, labels in (*_of_verdict(incident), *_of_flags(incident)):
        for pod in pods:
            namespace, _, short = pod.rpartition("/")
            # A container has another cgroup after every restart: the label names a cgroup only where it is in no pod.
            where = {"domain": domain} if domain in _DOMAINS else {"cgroup": "" if pod else domain}
            identity = {"severity": severity, "node": node, **where, "namespace": namespace, "pod": short, **labels}
            yield Alert(name, identity, _annotations(incident), starts_at)


#: Name, severity, pods ("": of none), and labels of its own.
_OfPods = tuple[str, str, Sequence[str], dict[str, str]]


def _of_verdict(incident: Mapping[str, Any]) -> Iterator[_OfPods]:
    verdict: str = incident["verdict"]
    killed = _pods(victim["pod"] for victim in incident["oom_victims"])
    if verdict == "stalled":
        yield STALLED, "warning", [incident["stall"]["pod"]], {}
    elif verdict == "own_limit":
        yield OWN_LIMIT, "info", killed or [""], {}
    elif verdict.startswith("oom_"):
        yield OOM_KILL, "critical", killed or [""], {"verdict": verdict}
    else:
        # No race was lost for all that is known. As bad is a race that is undetermined, or one that outrace only
        # observed and would have won; a warning is for a kill beside an eviction in time.
        as_bad = verdict == "undetermined" or incident.get("observed")
        severity = "critical" if as_bad and incident["domain"] in _DOMAINS else "warning"
        yield OOM_KILL, severity, killed, {"verdict": verdict}
    if verdict == "eviction_won" and not (killed and incident.get("observed")):
        yield EVICTION, *_of_evicted(incident)


def _of_flags(incident: Mapping[str, Any]) -> Iterator[_OfPods]:
    flags = set(incident["flags"])
    if "hold_unanswered" in flags:
        held = (one["pod"] for one in incident["holds"] if one["why"] in ("unanswered", "other_pod"))
        yield HOLD_UNANSWERED, "warning", _pods(held), {}
    if "wrong_victim" in flags:
        yield WRONG_VICTIM, "warning", _pods(one["pod"] for one in incident["oom_victims"]) or [""], {}
    if "over_eviction" in flags:
        yield OVER_EVICTION, *_of_evicted(incident)


def _of_evicted(incident: Mapping[str, Any]) -> tuple[str, Sequence[str], dict[str, str]]:
    """Severity, pods and labels: in observe mode no pod was evicted."""
    evicted = _pods(entry["pod"] for entry in incident["evicted"]) or [""]
    severity, mode = ("info", "observed") if incident.get("observed") else ("warning", "enforced")
    return severity, evicted, {"mode": mode}


def _pods(names: Iterable[str | None]) -> list[str]:
    """Each pod once, in order, "" for what is in no pod; the first `MAX_PODS` of them."""
    return list(dict.fromkeys(name or "" for name in names))[:MAX_PODS]


def _annotations(incident: Mapping[str, Any]) -> dict[str, Any]:
    victims = [
        f"{victim['comm']} (pid {victim['pid']}, {victim['pod'] or 'no pod'}, {victim['rss_bytes']} bytes"
        + (f", rank {victim['policy_rank']})" if victim.get("policy_rank") is not None else ")")
        for victim in incident["oom_victims"]
    ]
    if len(victims) > _MAX_NAMED:
        victims[_MAX_NAMED:] = [f"and {len(victims) - _MAX_NAMED} more"]
    invoker = incident.get("invoker") or {}
    return {
        "summary": incident.get("summary"),
        "description": incident.get("advice"),
        "incident": incident["id"],
        "where": incident["domain"],
        "flags": ",".join(incident["flags"]),
        "margin_bytes": incident.get("margin_bytes"),
        "margin_ms": incident.get("margin_ms"),
        "victims": "; ".join(victims),
        "invoker": f"{invoker['comm']} (pid {invoker['pid']}, {invoker['pod'] or 'no pod'})" if invoker else "",
        "by": incident.get("by"),
    }


def alert_for_status(node: str, namespace: str, pod: str, outcome: str, text: str, killed: float) -> Alert:
    """An evicted pod (killed at ``killed``) whose status is not, or may not stay, in the API server."""
    labels = {"severity": "warning", "node": node, "namespace": namespace, "pod": pod, "outcome": outcome}
    return Alert(STATUS_NOT_TAKEN, labels, {"summary": f"{namespace}/{pod}: {text}"}, killed)
