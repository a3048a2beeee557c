"""Many incidents together: races by verdict, their margins, the pods behind them, the advice. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from monitor.race.codec import Record, RecordError
from monitor.race.incident import EVICTION_WON, LOST_RACES, OWN_LIMIT, VERDICTS
from monitor.race.memory import Memory, stored

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OfVerdict(Record):
    """Incidents with one verdict, `observed` of them with outrace only observing. Margins as in an incident: `worst` is
    the incident with the smallest, by time where that is known, else by bytes; None where none has a margin.
    """

    verdict: str
    incidents: int
    observed: int
    median_ms: float | None
    worst_ms: float | None
    median_bytes: int | None
    worst_bytes: int | None
    worst: str | None


@dataclass(frozen=True, slots=True)
class OfPod(Record):
    """What one pod had to do with it, in numbers of incidents: it `grew_most` of all pods before a threshold was
    crossed, ran into its `own_limit`, was `evicted` (`would_be_evicted`: outrace only observed), or was `oom_killed` in
    a race. `grew` bytes in `in_s` seconds was its fastest growth before one, in `incident`; None where not recorded.
    """

    pod: str
    grew_most: int
    own_limit: int
    evicted: int
    would_be_evicted: int
    oom_killed: int
    grew: int | None
    in_s: float | None
    incident: str | None


@dataclass(frozen=True, slots=True)
class OfAdvice(Record):
    """What incidents of one verdict about the same pods advise: the newest one's words, and how many there are."""

    verdict: str
    incidents: int
    newest: str
    advice: str


@dataclass(frozen=True, slots=True)
class Report(Record):
    """`races`: incidents that an eviction could win: `won` by one, `would_have_won` while outrace only observed, `lost`
    to the OOM killer. `flags`: how many incidents have each. `pods`: those that grew or hit a limit most often
    first; of `growth_unknown` incidents nobody's growth is stored. `advice`: what is advised most often first.
    """

    incidents: int
    races: int
    won: int
    would_have_won: int
    lost: int
    verdicts: tuple[OfVerdict, ...]
    flags: dict[str, int]
    pods: tuple[OfPod, ...]
    growth_unknown: int
    advice: tuple[OfAdvice, ...]


def report(incidents: Sequence[Json]) -> Report:
    """``incidents`` newest first, as stored; steps are not needed."""
    by_verdict: dict[str, list[Json]] = {name: [] for name in VERDICTS}
    for one in incidents:
        by_verdict.setdefault(one["verdict"], []).append(one)
    won = by_verdict[EVICTION_WON]
    observed = sum(bool(one.get("observed")) for one in won)
    lost = sum(len(by_verdict[name]) for name in LOST_RACES)
    return Report(
        incidents=len(incidents),
        races=len(won) + lost,
        won=len(won) - observed,
        would_have_won=observed,
        lost=lost,
        verdicts=tuple(_of_verdict(name, found) for name, found in by_verdict.items() if found),
        flags=dict(Counter(flag for one in incidents for flag in one.get("flags", ())).most_common()),
        pods=tuple(_pods(incidents)),
        growth_unknown=sum(_memory(one) is None for one in incidents),
        advice=tuple(_advice(incidents)),
    )


def _of_verdict(verdict: str, found: Sequence[Json]) -> OfVerdict:
    times = [one["margin_ms"] for one in found if one.get("margin_ms") is not None]
    sizes = [one["margin_bytes"] for one in found if one.get("margin_bytes") is not None]
    key = "margin_ms" if times else "margin_bytes"
    known = [one for one in found if one.get(key) is not None]
    return OfVerdict(
        verdict=verdict,
        incidents=len(found),
        observed=sum(bool(one.get("observed")) for one in found),
        median_ms=round(median(times), 3) if times else None,
        worst_ms=min(times, default=None),
        median_bytes=round(median(sizes)) if sizes else None,
        worst_bytes=min(sizes, default=None),
        worst=min(known, key=lambda one: float(one[key]))["id"] if known else None,
    )


def _memory(incident: Json) -> Memory | None:
    """None too where another version stored it."""
    try:
        return stored(incident)
    except RecordError:
        return None


def _pods(incidents: Iterable[Json]) -> list[OfPod]:
    counts: dict[str, Counter[str]] = {}
    fastest: dict[str, tuple[float, int, float, str]] = {}  # pod -> bytes/s, bytes, seconds, incident

    def count(what: str, pods: Iterable[str | None]) -> None:
        for pod in dict.fromkeys(pods):
            if pod:
                counts.setdefault(pod, Counter())[what] += 1

    for one in incidents:
        own = one["verdict"] == OWN_LIMIT
        memory = _memory(one)
        grown = [] if memory is None else [c for c in memory.curves if c.pod and c.grew > 0 and c.in_s > 0]
        for curve in grown:
            now = (curve.grew / curve.in_s, curve.grew, curve.in_s, str(one["id"]))
            fastest[str(curve.pod)] = max(now, fastest.get(str(curve.pod), now))
        if grown and not own:
            count("grew_most", [max(grown, key=lambda c: c.grew).pod])
        count("own_limit" if own else "oom_killed", [who.get("pod") for who in one.get("oom_victims", ())])
        evicted = [who.get("pod") for who in one.get("evicted", ())]
        count("would_be_evicted" if one.get("observed") else "evicted", evicted)
    made = [
        OfPod(
            pod=pod,
            grew_most=found["grew_most"],
            own_limit=found["own_limit"],
            evicted=found["evicted"],
            would_be_evicted=found["would_be_evicted"],
            oom_killed=found["oom_killed"],
            grew=fastest[pod][1] if pod in fastest else None,
            in_s=fastest[pod][2] if pod in fastest else None,
            incident=fastest[pod][3] if pod in fastest else None,
        )
        for pod, found in counts.items()
    ]
    return sorted(made, key=_most_to_blame)


def _most_to_blame(one: OfPod) -> tuple[int, int, str]:
    """Who grew or hit a limit of its own; being evicted or killed is no blame by itself."""
    return -(one.grew_most + one.own_limit), -(one.evicted + one.would_be_evicted + one.oom_killed), one.pod


def _advice(incidents: Iterable[Json]) -> list[OfAdvice]:
    groups: dict[tuple[str, frozenset[str]], list[Json]] = {}
    for one in incidents:
        if one.get("advice"):
            who = [*one.get("evicted", ()), *one.get("oom_victims", ())]
            groups.setdefault((one["verdict"], frozenset(str(each.get("pod")) for each in who)), []).append(one)
    made = [OfAdvice(verdict, len(found), found[0]["id"], found[0]["advice"]) for (verdict, _), found in groups.items()]
    return sorted(made, key=lambda one: -one.incidents)  # of as many, the newest first
