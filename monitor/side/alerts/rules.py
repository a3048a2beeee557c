"""Which alerts there are, and when: pure functions from an incident or from the present state to `Alert` values.

An alert is its name and its labels. Both are chosen so that the same trouble is the same alert every time: pods,
domains, signals and verdicts are labels, everything that is a number, a process id or a time is an annotation.
Severities: ``critical`` is worth waking an operator, ``warning`` is for today, ``info`` is for the record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from monitor.errors import MonitorError
from monitor.race.forecast import LEVEL, Forecast
from monitor.side.incidents.reader import unix_time

OOM_KILL = "OutraceOOMKill"
OWN_LIMIT = "OutraceOOMOwnLimit"
EVICTION = "OutraceEviction"
WRONG_VICTIM = "OutraceWrongVictim"
OVER_EVICTION = "OutraceOverEviction"
PRESSURE = "OutracePressure"
EVICTIONS_BRAKED = "OutraceEvictionsBraked"
VICTIM_MISMATCH = "OutraceVictimMismatch"
TIME_TO_OOM = "OutraceTimeToOOM"
EVENTS_LOST = "OutraceEventsLost"
NOT_READY = "OutraceNotReady"
STATUS_NOT_TAKEN = "OutraceStatusNotTaken"
POD_HELD_TOO_LONG = "OutracePodHeldTooLong"
HOLD_UNANSWERED = "OutraceHoldUnanswered"
STALLED = "OutraceStalled"
#: Every alert that is pushed. The rule file has the same, and those that only metrics can say.
NAMES = tuple(name for name in vars().values() if str(name).startswith("Outrace"))

#: How long an event that is a point in time counts as firing, in seconds. Alertmanager looks at a group every 5 min by
#: default (group_interval), and does not notify of an alert that was resolved before: a little longer.
HOLD_S = 330.0
#: A forecast of an OOM kill within fewer seconds than this is an alert.
TIME_TO_OOM_S = 60.0
#: Not ready for this many seconds is an alert; a start takes less.
NOT_READY_S = 30.0
#: A pod that is held for more seconds is an alert. A kubelet decides every 10 s, by figures of pods that are up to 15 s
#: old, and gives a grace: a kubelet that evicts has done so by then.
HELD_TOO_LONG_S = 45.0
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
    """One alert. ``starts_at`` and ``ends_at`` are Unix seconds.

    ``ends_at`` None: it lasts until it is resolved. Set: it is over then, by itself. Labels with an empty value are
    dropped, because Alertmanager treats them as absent, and so are annotations without a value. Raises ValueError for a
    time that is not a Unix time.
    """

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, Any] = field(default_factory=dict)
    starts_at: float = 0.0
    ends_at: float | None = None

    def __post_init__(self) -> None:
        # Copies: the caller may change its own, and a thread sends ours later.
        object.__setattr__(self, "labels", {key: str(value) for key, value in self.labels.items() if value})
        annotations = {key: str(value) for key, value in self.annotations.items() if value not in (None, "")}
        object.__setattr__(self, "annotations", annotations)
        for moment in (self.starts_at, self.ends_at):
            if moment is not None and not 0 <= moment < _YEAR_10000:
                raise ValueError(f"alert {self.name}: {moment!r} is not a Unix time")

    @property
    def fingerprint(self) -> str:
        """16 hex digits that depend on the name and the labels only, in any order."""
        text = json.dumps([self.name, sorted(self.labels.items())], separators=(",", ":"))  # ASCII: it has an encoding
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def rfc3339(seconds: float) -> str:
    """Unix seconds as RFC 3339 in UTC: ``2026-01-31T12:00:00.123456Z``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def alerts_for(incident: Mapping[str, Any], node: str) -> list[Alert]:
    """The alerts of one incident (its JSON object). An incident that is no trouble gives none.

    Each starts with the incident and is over `HOLD_S` seconds after its end, so judging an incident again, when more
    of it is known, raises the same alerts. Raises MonitorError when the object is not an incident.
    """
    try:
        return list(_of_incident(incident, node))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise MonitorError(f"no alert can be made of incident {incident.get('id')!r}: {problem}") from error


def _of_incident(incident: Mapping[str, Any], node: str) -> Iterator[Alert]:
    domain: str = incident["domain"]
    starts_at = unix_time(incident["start"])
    ends_at = max(starts_at, unix_time(incident["end"])) + HOLD_S
    for name, severity, pods, labels in (*_of_verdict(incident), *_of_flags(incident)):
        for pod in pods:
            namespace, _, short = pod.rpartition("/")
            # A container has another cgroup after every restart: the label names a cgroup only where it is in no pod.
            where = {"domain": domain} if domain in _DOMAINS else {"cgroup": "" if pod else domain}
            identity = {"severity": severity, "node": node, **where, "namespace": namespace, "pod": short, **labels}
            yield Alert(name, identity, _annotations(incident), starts_at, ends_at)


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


def alert_for_status(node: str, namespace: str, pod: str, outcome: str, text: str, killed: float, now: float) -> Alert:
    """An evicted pod (killed at ``killed``) whose status is not, or may not stay, in the API server at ``now``."""
    labels = {"severity": "warning", "node": node, "namespace": namespace, "pod": pod, "outcome": outcome}
    return Alert(STATUS_NOT_TAKEN, labels, {"summary": f"{namespace}/{pod}: {text}"}, killed, now + HOLD_S)


def alerts_for_state(
    node: str,
    now: float,
    *,
    met: Iterable[Mapping[str, Any]] = (),
    braked: Mapping[str, Any] | None = None,
    mismatch: Mapping[str, Any] | None = None,
    oom_ahead: Mapping[str, Forecast] | None = None,
    lost: Mapping[str, int] | None = None,
    not_ready: str = "",
    not_ready_s: float = 0.0,
    held: Iterable[Mapping[str, Any]] = (),
) -> list[Alert]:
    """Every alert that holds at ``now`` (Unix seconds): give all of it to `AlertSender.update`.

    ``met``: the thresholds that are met: ``signal``, ``kind``, and numbers. ``braked``: why evictions are suspended
    (``reason``, ``signal``, and numbers). ``mismatch``: the kernel's likely victim, where it is not the policy's
    (``kernel``, ``policy``, ``reason``). ``oom_ahead``: domain -> the forecast of its OOM kill. ``lost``: where -> how
    many events were lost there since the last call. ``not_ready``: why decisions cannot be made, "" when they can, for
    ``not_ready_s`` seconds. ``held``: pods that are held (`monitor.side.holds.Holds.shown`).
    """
    found = [*_of_pressure(node, met, braked, mismatch), *_of_forecasts(node, oom_ahead or {})]
    for where, n in (lost or {}).items():
        if n > 0:
            text = f"outrace on {node} lost {n} events ({where})"
            found.append((EVENTS_LOST, "warning", text, {"lost": n}, {"where": where}))
    found += _of_holds(node, held)
    if not_ready and not_ready_s >= NOT_READY_S:
        text = f"outrace on {node} cannot decide: {not_ready}"
        found.append((NOT_READY, "critical", text, {"not_ready_s": f"{not_ready_s:.0f}"}, {}))
    return [_made(one, node, now - not_ready_s if one[0] == NOT_READY else now) for one in found]


#: Name, severity, summary, further annotations, and labels of its own.
_OfState = tuple[str, str, str, Mapping[str, Any], dict[str, str]]


def _made(found: _OfState, node: str, starts_at: float) -> Alert:
    name, severity, summary, more, labels = found
    ends_at = starts_at + HOLD_S if name == EVENTS_LOST else None
    return Alert(name, {"severity": severity, "node": node, **labels}, {"summary": summary, **more}, starts_at, ends_at)


def _of_pressure(
    node: str,
    met: Iterable[Mapping[str, Any]],
    braked: Mapping[str, Any] | None,
    mismatch: Mapping[str, Any] | None,
) -> Iterator[_OfState]:
    for entry in met:
        signal, kind = str(entry["signal"]), str(entry["kind"])
        text = f"{signal} on {node} is below its {kind} eviction threshold"
        more = {key: value for key, value in entry.items() if key not in ("signal", "kind")}
        yield PRESSURE, "warning" if kind == "hard" else "info", text, more, {"signal": signal, "kind": kind}
    if braked is not None:
        text = f"{node} is short of memory that no eviction frees: evictions are suspended"
        more = {key: value for key, value in braked.items() if key not in ("reason", "signal", "held_s", "takers")}
        more["takers"] = "; ".join(braked.get("takers", ()))
        labels = {"reason": str(braked["reason"]), "signal": str(braked["signal"])}
        yield EVICTIONS_BRAKED, "critical", text, more, labels
    if mismatch is not None:
        text = f"if memory ran out on {node} now, the kernel would kill another pod than the eviction policy"
        yield VICTIM_MISMATCH, "warning", text, mismatch, {}


def _of_forecasts(node: str, oom_ahead: Mapping[str, Forecast]) -> Iterator[_OfState]:
    for domain, made in oom_ahead.items():
        if made.in_ns is None or made.in_ns >= TIME_TO_OOM_S * 1e9:
            continue
        seconds, soonest, latest = ((ns or 0) / 1e9 for ns in (made.in_ns, made.soonest_ns, made.latest_ns))
        text = (
            f"{domain} on {node} is about {seconds:.0f} s from an OOM kill if it goes on growing so "
            f"({LEVEL:.0%} of such crossings come after {soonest:.0f} to {latest:.0f} s)"
        )
        ends = {"seconds": f"{seconds:.1f}", "soonest_s": f"{soonest:.1f}", "latest_s": f"{latest:.1f}"}
        yield TIME_TO_OOM, "warning", text, {**ends, "interval_holds": LEVEL}, {"domain": domain}


def _of_holds(node: str, held: Iterable[Mapping[str, Any]]) -> Iterator[_OfState]:
    for one in held:
        if one["held_s"] > HELD_TOO_LONG_S:
            namespace, _, pod = str(one["pod"]).rpartition("/")
            text = f"{one['pod']} on {node} has been held for {one['held_s']:.0f} s: its processes stand still or wait"
            more = {key: one[key] for key in ("reason", "brake", "signal", "held_s", "left_s")}
            yield POD_HELD_TOO_LONG, "warning", text, more, {"namespace": namespace, "pod": pod}
