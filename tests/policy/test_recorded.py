"""The policy against recorded answers of a real kubelet (see tests/data/policy/README.md)."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import pytest

from monitor.policy.messages import NODE_MESSAGE, eviction_message
from monitor.policy.oom_score import oom_score_adj
from monitor.policy.pods import pod_from_object
from monitor.policy.qos import compute_qos_class, is_critical, is_mirror, is_node_critical, is_static, qos_class
from monitor.policy.quantity import PolicyError, Quantity
from monitor.policy.resources import pod_request
from monitor.policy.signals import CONDITION, MEMORY, Observation, notification_level
from monitor.policy.synchronize import EvictionConfig, State, condition_times, first_observed, synchronize
from monitor.policy.thresholds import Threshold, ThresholdValue, parse_thresholds
from tests.policy.recorded import (
    SECOND,
    Case,
    answers,
    cases,
    config_maps,
    observations,
    pods_memory,
    ranked,
    shown,
    shown_answer,
    threshold,
    tie_groups,
)

# Where we differ on purpose, and what we answer instead.
SANE_TEXT = {"1000000000000000000000": "1000E"}  # v1.36 drops an exponent above E and prints "1"
SANE_SCORE = {"oom_score_adj-00672": {"c0": 3}}  # 1000 * (2^63 - 1) overflows; the real answer is 999


def check(failures: list[str]) -> None:
    assert not failures, f"{len(failures)} cases differ:\n" + "\n".join(failures[:5])


def same_quantity(got: Quantity, want: Case, text: str) -> bool:
    with localcontext() as context:
        context.prec = 1000
        exact = Decimal(got.nanos) / 10**9 == Decimal(want["asDec"])
    return (
        exact
        and str(got) == text
        and got.format == want["format"]
        and got.is_zero == want["isZero"]
        and str(got.int64()) == want["value"]
        and str(got.int64(3)) == want["milliValue"]
    )


def test_quantities_parse_as_recorded() -> None:
    failures = []
    for case in cases("quantity", "parseQuantity"):
        text, want = case["input"]["input"], case["expected"]
        try:
            got = Quantity.parse(text)
        except PolicyError as error:
            if str(error) != want["error"]:
                failures.append(f"{text!r}: {error}; recorded {want}")
            continue
        spelling = SANE_TEXT.get(text, want["quantity"]["string"] if want["quantity"] else "")
        if want["error"] or not same_quantity(got, want["quantity"], spelling):
            failures.append(f"{text!r}: {got} {got.int64()} {got.int64(3)}; recorded {want}")
    check(failures)


def test_quantities_add_subtract_and_compare_as_recorded() -> None:
    failures = []
    for case in cases("quantity", "quantityMath"):
        a, b = (Quantity.parse(case["input"][k]) for k in ("input", "other"))
        want = case["expected"]
        right = (a > b) - (a < b) == want["cmp"]
        for got, key in ((a + b, "add"), (a - b, "sub")):
            right = right and same_quantity(got, want[key], want[key]["string"])
        if not right:
            failures.append(f"{case['input']}: {a + b}, {a - b}; recorded {want}")
    check(failures)


def test_configurations_parse_as_recorded() -> None:
    failures = []
    for case in cases("thresholds", "parseThresholdConfig"):
        try:
            got: Any = sorted(shown(t) for t in parse_thresholds(*config_maps(case["input"])))
        except PolicyError as error:
            got = str(error)
        right = [w["error"] or sorted(shown_answer(t) for t in w["thresholds"] or ()) for w in answers(case)]
        if got not in right:
            failures.append(f"{case['input']}: {got}; recorded {right}")
    check(failures)


def test_percentages_of_a_capacity_are_as_recorded() -> None:
    failures = []
    for case in cases("thresholds", "thresholdQuantity"):
        capacity = Quantity.parse(case["input"]["input"]).int64()
        thresholds = [threshold(t) for t in case["input"]["thresholds"]]
        got = [(str(t.value.shown(capacity)), str(t.quantity(capacity))) for t in thresholds]
        if got != [(w["quantity"], w["value"]) for w in case["expected"]]:
            failures.append(f"{case['input']}: {got}; recorded {case['expected']}")
    check(failures)


def test_qos_and_criticality_are_as_recorded() -> None:
    failures = []
    for case in cases("pod_qos", "podQOS"):
        pod = pod_from_object(case["input"]["pod"])
        gate = case["input"].get("podLevelResources", True)
        got = {
            "qosClass": qos_class(pod, gate),
            "computedQOSClass": compute_qos_class(pod, gate),
            "isCriticalPod": is_critical(pod),
            "isNodeCriticalPod": is_node_critical(pod),
            "isStaticPod": is_static(pod),
            "isMirrorPod": is_mirror(pod),
        }
        if got != case["expected"]:
            failures.append(f"{case}: {got}")
    check(failures)


def test_oom_score_adj_is_as_recorded() -> None:
    failures = []
    for case in cases("oom_score_adj", "oomScoreAdj"):
        given, want = case["input"], case["expected"]
        pod = pod_from_object(given["pod"])
        gate = given.get("podLevelResources", True)
        if given["memoryCapacity"] == 0:  # the real one divides by it and dies; ours refuses
            with pytest.raises(PolicyError, match="capacity"):
                oom_score_adj(pod, pod.containers[0].name, 0, gate)
            continue
        containers = (*pod.containers, *pod.init_containers)
        got = {c.name: oom_score_adj(pod, c.name, given["memoryCapacity"], gate) for c in containers}
        if got != SANE_SCORE.get(case["id"], want["oomScoreAdj"]) or qos_class(pod, gate) != want["qosClass"]:
            failures.append(f"{case}: {got}")
    check(failures)


def test_requests_and_memory_ranking_are_as_recorded() -> None:
    failures = []
    for case in cases("ranking", "rank"):
        gate = case["input"].get("podLevelResources", True)
        pods = [(pod_from_object(entry["pod"]), entry["stats"]) for entry in case["input"]["pods"]]
        got = tie_groups(ranked(pods, gate))
        if got != case["expected"]["tieGroups"]:
            failures.append(f"{case['id']}: order {got}; recorded {case['expected']['tieGroups']}")
        for pod, _ in pods:
            want = case["expected"]["requests"][pod.name]
            asked = {r: str(pod_request(pod, r, gate).value) for r in ("memory", "ephemeral-storage")}
            if asked != {r: want[r] for r in asked}:
                failures.append(f"{case['id']}: {pod.name} requests {asked}; recorded {want}")
    check(failures)


def test_memory_observations_are_as_recorded() -> None:
    failures = []
    for case in cases("predicates", "observations"):
        got = observations(case["input"]["summary"])
        want = {s: w for s, w in case["expected"].items() if CONDITION[s] == "MemoryPressure"}
        numbers = {
            signal: {
                "available": str(Quantity.of_bytes(seen.available)),
                "availableValue": str(seen.available),
                "capacity": str(Quantity.of_bytes(seen.capacity)),
                "capacityValue": str(seen.capacity),
            }
            for signal, seen in got.items()
        }
        if numbers != want:
            failures.append(f"{case['id']}: {numbers}; recorded {want}")
    check(failures)


def test_memory_thresholds_met_are_as_recorded() -> None:
    failures = []
    for case in cases("predicates", "thresholdsMet"):
        given = case["input"]
        thresholds = tuple(threshold(t) for t in given["thresholds"])
        config = EvictionConfig(tuple(t for t in thresholds if CONDITION[t.signal] == "MemoryPressure"), SECOND)
        n = len(config.rules)
        state = State.initial()
        if given.get("enforceMinReclaim") and n:  # min reclaim holds what was met and past its grace before
            state = State((0,) * n, tuple(range(n)), (None,) * len(config.signals), (None,), frozenset())
        _, outcome = synchronize(config, state, observations(given["summary"]), SECOND, lambda _: ())
        met = [t for t in case["expected"]["met"] or () if CONDITION[t["signal"]] == "MemoryPressure"]
        if sorted(map(shown, outcome.observed)) != sorted(map(shown_answer, met)):
            failures.append(f"{case['id']}: {outcome.observed}; recorded {met}")
    check(failures)


def test_graces_are_over_as_recorded() -> None:
    failures = []
    now = 10**6 * SECOND
    for case in cases("predicates", "gracePeriod"):
        thresholds = [threshold(t) for t in case["input"]["thresholds"]]
        config = EvictionConfig(tuple(thresholds), SECOND)
        ago = {
            id(t): round(s * SECOND) for t, s in zip(thresholds, case["input"]["firstObservedSecondsAgo"], strict=True)
        }
        state = State(
            tuple(now - ago[id(rule.threshold)] for rule in config.rules),
            (),
            (None,) * len(config.signals),
            (None,) * len(config.conditions),
            frozenset(),
        )
        met = {t.signal: Observation(-1, 0, 0) for t in thresholds}
        _, outcome = synchronize(config, state, met, now, lambda _: ())
        want = sorted(map(shown_answer, case["expected"]["satisfied"]))
        if sorted(map(shown, outcome.met)) != want:
            failures.append(f"{case}: {outcome.met}")
    check(failures)


def test_conditions_last_as_recorded() -> None:
    failures = []
    now = 10**6 * SECOND
    one = ThresholdValue(Quantity.of_count(1))
    for case in cases("predicates", "conditionsObservedSince"):
        period = round(case["input"]["pressureTransitionPeriodSeconds"] * SECOND)
        thresholds = tuple(Threshold(s, one) for s in ("memory.available", "nodefs.available", "pid.available"))
        config = EvictionConfig(thresholds, period)
        ago = case["input"]["lastObservedSecondsAgo"]
        last = tuple(now - round(ago[c] * SECOND) if c in ago else None for c in config.conditions)
        state = State((None,) * 3, (), (None,) * 3, last, frozenset(ago))
        _, outcome = synchronize(config, state, {}, now, lambda _: ())
        if sorted(outcome.conditions) != (case["expected"]["nodeConditions"] or []):
            failures.append(f"{case}: {outcome.conditions}")
    check(failures)


def test_notification_levels_are_as_recorded() -> None:
    failures = []
    for case in cases("predicates", "memcgThreshold"):
        limit = threshold(case["input"]["thresholds"][0])
        node = case["input"]["summary"]["node"]
        memory = (node.get("memory") if limit.signal == MEMORY else pods_memory(node)) or {}
        want = case["expected"]
        if not {"availableBytes", "workingSetBytes", "usageBytes"} <= memory.keys():
            assert want["error"], case["id"]
            continue
        available, working_set = memory["availableBytes"], memory["workingSetBytes"]
        value = limit.quantity(available + working_set)
        if str(notification_level(value, available, working_set, memory["usageBytes"])) != want.get("threshold"):
            failures.append(str(case))
    check(failures)


def test_time_lines_are_as_recorded() -> None:
    failures = []
    for case in cases("synchronize", "synchronize"):
        got = play(case["input"])
        right = [refused(a) or [step_answer(step) for step in a] for a in answers(case)]
        if got not in right:
            failures.append(f"{case['id']} ({case['scenario']}): {got}\nrecorded {right}")
    check(failures)


def refused(answer: list[Case]) -> str:
    return answer[0].get("configError", "") if answer else ""


def step_answer(step: Case) -> Case:
    """A recorded pass in the shape `play` gives."""
    events = step["events"]
    return {
        "evicted": [name.split("/")[-1] for name in step["evictedPods"]],
        "grace": [kill["gracePeriodOverride"] for kill in step["kills"]],
        "messages": [kill["message"] for kill in step["kills"]],
        "annotations": [e["annotations"] for e in events if e["reason"] == "Evicted"],
        "node": [e["message"] for e in events if e["reason"] == "EvictionThresholdMet"],
        "conditions": step["nodeConditions"] or [],
        "met": sorted(map(shown_answer, step["thresholdsMet"] or ())),
        "first": sorted(
            (shown_answer(t["threshold"]), t["secondsSinceStart"]) for t in step["thresholdsFirstObservedAt"] or ()
        ),
        "last": step["nodeConditionsLastObservedAt"] or {},
    }


def play(given: Case) -> Any:
    """The passes of a time line through our policy; the error if the configuration is refused."""
    try:
        thresholds = parse_thresholds(*config_maps(given))
    except PolicyError as error:
        return str(error)
    period = round(given["pressureTransitionPeriodSeconds"] * SECOND)
    config = EvictionConfig(thresholds, period, given["evictionMaxPodGracePeriod"])
    state, now, gone = State.initial(), 0, set[str]()
    passes = []
    for step in given["steps"]:
        now += round(step["advanceSeconds"] * SECOND)
        pods = {p.uid: p for p in map(pod_from_object, step["pods"]) if p.uid not in gone}
        summary = step.get("summary")
        outcome = None
        if summary is not None and not step.get("summaryError"):
            seen = observations(summary)
            stats = {s["podRef"]["uid"]: s for s in summary["pods"]}
            order = ranked([(p, stats.get(p.uid)) for p in pods.values()], given.get("podLevelResources", True))
            state, outcome = synchronize(config, state, seen, now, lambda _, order=order: order)
        got: Case = {key: [] for key in ("evicted", "grace", "messages", "annotations", "node")}
        if outcome is not None and outcome.starved is not None:
            got["node"] = [NODE_MESSAGE % "memory"]
        if outcome is not None and outcome.starved is not None and outcome.victim is not None:
            pod, own = pods[outcome.victim.uid], stats.get(outcome.victim.uid)
            at = seen[outcome.starved.signal]
            value = outcome.starved.value.shown(at.capacity)
            message, annotations = eviction_message(pod, "memory", value, at.available, *_usages(own))
            got |= {"evicted": [pod.name], "grace": [outcome.grace_s]}
            got |= {"messages": [message], "annotations": [annotations]}
            if given["removeEvictedPods"]:
                gone.add(pod.uid)
        got["conditions"] = sorted(state.conditions)
        got["met"] = sorted(shown(config.rules[i].threshold) for i in state.met)
        got["first"] = sorted((shown(t), since / SECOND) for t, since in first_observed(config, state).items())
        got["last"] = {c: when / SECOND for c, when in condition_times(config, state).items()}
        passes.append(got)
    return passes


def _usages(stats: Any) -> tuple[dict[str, int] | None, int | None]:
    """Container usage in the order of the stats, and the pod's own."""
    if stats is None:
        return None, None
    memories = {c["name"]: c.get("memory") or {} for c in stats.get("containers", [])}
    containers = {name: m["workingSetBytes"] for name, m in memories.items() if "workingSetBytes" in m}
    own = stats.get("memory")
    return containers, None if own is None else own.get("workingSetBytes", 0)
