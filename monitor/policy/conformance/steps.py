"""Ops about single steps of a pass."""

from __future__ import annotations

from typing import Any

from monitor.policy.conformance.reading import SECOND, Case, comparable, observation_answer, recorded, threshold
from monitor.policy.eviction_pass import PassConfig, PassState, run_pass
from monitor.policy.layout import NO_OVERLAY
from monitor.policy.notification import notification
from monitor.policy.quantity import Quantity
from monitor.policy.signals import CONDITION, Observation
from monitor.policy.stats import Summary
from monitor.policy.synchronize import State
from monitor.policy.thresholds import Threshold, ThresholdValue

Pair = tuple[Any, Any]
_NOW = 10**9 * SECOND


def observations(given: Case, answer: Any) -> Pair:
    """Every signal that can be observed."""
    return _observed(Summary(given["summary"])), answer


def _observed(summary: Summary) -> dict[str, Any]:
    return {signal: observation_answer(signal, seen) for signal, seen in summary.observations.items()}


def thresholds_met(given: Case, answer: Any) -> Pair:
    """The thresholds met, in the order given, and the conditions they raise, in that of the thresholds."""
    summary = Summary(given["summary"])
    reclaim = bool(given.get("enforceMinReclaim"))
    met = []
    for t in map(threshold, given["thresholds"]):
        seen = summary.observations.get(t.signal)
        if seen is not None and t.met(seen.available, seen.capacity, reclaim):
            met.append(t)
    got = {
        "met": [comparable(t) for t in met],
        "nodeConditions": list(dict.fromkeys(CONDITION[t.signal] for t in met)),
        "observations": _observed(summary),
    }
    want = {
        **answer,
        "met": [recorded(t) for t in answer["met"] or ()],
        "nodeConditions": answer["nodeConditions"] or [],
    }
    return got, want


def grace_period(given: Case, answer: Any) -> Pair:
    """Which thresholds are past their grace; in any order."""
    thresholds = [threshold(t) for t in given["thresholds"]]
    agos = [round(s * SECOND) for s in given["firstObservedSecondsAgo"]]
    found: list[Threshold] = []
    # One by one, so that thresholds which look alike keep their own times.
    for t, ago in zip(thresholds, agos, strict=True):
        state = PassState(State((_NOW - ago,), (), (None,), (None,), frozenset()), True)
        starved = {t.signal: Observation(-(2**63), 0, 0)}
        found += run_pass(PassConfig((t,), SECOND, layout=NO_OVERLAY), state, starved, _NOW, lambda _: ()).outcome.met
    return sorted(map(_text, map(comparable, found))), sorted(_text(recorded(t)) for t in answer["satisfied"] or ())


def _text(t: Any) -> str:
    return repr(t)


def conditions_observed_since(given: Case, answer: Any) -> Pair:
    """The conditions still in force."""
    period = round(given["pressureTransitionPeriodSeconds"] * SECOND)
    one = ThresholdValue(Quantity.of_count(1))
    signal_of = {condition: signal for signal, condition in CONDITION.items()}
    ago = given["lastObservedSecondsAgo"]
    config = PassConfig(tuple(Threshold(signal_of[c], one) for c in ago), period, layout=NO_OVERLAY)
    rules = config.later
    last = tuple(_NOW - round(ago[c] * SECOND) for c in rules.conditions)
    state = State((None,) * len(rules.rules), (), (None,) * len(rules.signals), last, frozenset(ago))
    outcome = run_pass(config, PassState(state, True), {}, _NOW, lambda _: ()).outcome
    return sorted(outcome.conditions), sorted(answer["nodeConditions"] or [])


def memcg_threshold(given: Case, answer: Any) -> Pair:
    """Where a kernel notification is armed."""
    limit = threshold(given["thresholds"][0])
    found = notification(limit, Summary(given["summary"]).memory(limit.signal))
    got: dict[str, Any] = {"description": found.description, "error": found.usage is None}
    if found.usage is not None:
        got |= {"attribute": found.attribute, "threshold": str(found.usage)}
    return got, answer
