"""Ops about pods (QoS class, oom_score_adj, ranking) and about single steps of a pass."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from monitor.policy.compat import KUBELET, int64
from monitor.policy.conformance.reading import (
    SECOND,
    Case,
    by_text,
    comparable,
    layout,
    observation_answer,
    recorded,
    threshold,
)
from monitor.policy.errors import PolicyError
from monitor.policy.eviction_pass import PassConfig, PassState, run_pass
from monitor.policy.layout import NO_OVERLAY
from monitor.policy.oom_score import oom_score_adj
from monitor.policy.pods import pod_from_object
from monitor.policy.qos import compute_qos_class, is_critical, is_mirror, is_node_critical, is_static, qos_class
from monitor.policy.quantity import Quantity
from monitor.policy.resources import pod_request
from monitor.policy.signals import ALLOCATABLE_MEMORY, CONDITION, Observation
from monitor.policy.stats import PodStats, Summary
from monitor.policy.synchronize import State
from monitor.policy.thresholds import Threshold, ThresholdValue
from monitor.policy.victims import DECIDING, rank_pods

Pair = tuple[Any, Any]
_NOW = 10**9 * SECOND


def pod_qos(given: Case, answer: Any) -> Pair:
    pod = pod_from_object(given["pod"])
    gate = given.get("podLevelResources", True)
    got = {
        "qosClass": qos_class(pod, gate),
        "computedQOSClass": compute_qos_class(pod, gate),
        "isCriticalPod": is_critical(pod),
        "isNodeCriticalPod": is_node_critical(pod),
        "isStaticPod": is_static(pod),
        "isMirrorPod": is_mirror(pod),
    }
    return got, answer


def oom_scores(given: Case, answer: Any) -> Pair:
    """The value of every container. Where the kubelet dies, ours must refuse."""
    pod = pod_from_object(given["pod"])
    gate = given.get("podLevelResources", True)
    containers = (*pod.containers, *pod.init_containers)
    try:
        scores = {c.name: oom_score_adj(pod, c.name, given["memoryCapacity"], gate, compat=KUBELET) for c in containers}
    except PolicyError as error:
        return answer if "panic" in answer else {"refused": str(error)}, answer
    return {"oomScoreAdj": scores, "qosClass": qos_class(pod, gate)}, answer


def rank(given: Case, answer: Any) -> Pair:
    """Groups of equal pods in order, and every pod's request. The order within a group is not binding."""
    gate = given.get("podLevelResources", True)
    pods, stats = [], {}
    for entry in given["pods"]:
        pod = pod_from_object(entry["pod"])
        pods.append(pod)
        if entry["stats"] is not None:
            stats[pod.uid] = PodStats(entry["stats"], f"stats of {pod.name}")
    ranked = rank_pods(given["signal"], pods, stats, layout(given), gate)
    got = {
        "tieGroups": [
            sorted(one.pod.name for one in group) for _, group in groupby(ranked, lambda one: one.key[:DECIDING])
        ],
        "requests": {
            pod.name: {
                resource: str(pod_request(pod, resource, gate).int64())
                for resource in answer["requests"].get(pod.name, {})
            }
            for pod in pods
        },
    }
    return got, {"tieGroups": answer["tieGroups"], "requests": answer["requests"]}


def observations(given: Case, answer: Any) -> Pair:
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
    return by_text(map(comparable, found)), by_text(recorded(t) for t in answer["satisfied"] or ())


def conditions_observed_since(given: Case, answer: Any) -> Pair:
    period = round(given["pressureTransitionPeriodSeconds"] * SECOND)
    one = ThresholdValue(Quantity.of(1, "pids"))
    signal_of = {condition: signal for signal, condition in CONDITION.items()}
    ago = given["lastObservedSecondsAgo"]
    config = PassConfig(tuple(Threshold(signal_of[c], one) for c in ago), period, layout=NO_OVERLAY)
    rules = config.later
    last = tuple(_NOW - round(ago[c] * SECOND) for c in rules.conditions)
    state = State((None,) * len(rules.rules), (), (None,) * len(rules.signals), last, frozenset(ago))
    outcome = run_pass(config, PassState(state, True), {}, _NOW, lambda _: ()).outcome
    return sorted(outcome.conditions), sorted(answer["nodeConditions"] or [])


def memcg_threshold(given: Case, answer: Any) -> Pair:
    """Where a kernel notification is armed: at the usage that leaves the threshold's value of the capacity, less
    today's inactive cache. Min reclaim plays no part, and it drifts as the cache does.
    """
    limit = threshold(given["thresholds"][0])
    memory = Summary(given["summary"]).memory(limit.signal)
    kind = "hard" if limit.hard else "soft"
    which = "allocatable memory" if limit.signal == ALLOCATABLE_MEMORY else "memory"
    got: dict[str, Any] = {"description": f"{kind} {which} eviction threshold", "error": True}
    if memory is None or memory.available is None or memory.working_set is None or memory.usage is None:
        return got, answer
    capacity = int64(memory.available + memory.working_set)
    inactive = int64(memory.usage - memory.working_set)
    level = Quantity.of_bytes(capacity) - limit.value.shown(capacity) + Quantity.of_bytes(inactive)
    return got | {"error": False, "attribute": "memory.usage_in_bytes", "threshold": str(level.value)}, answer
