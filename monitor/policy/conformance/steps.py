"""The ops of a case but for `synchronize`; at the end, reading the parts of a case, and writing ours as recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import groupby
from typing import Any

from monitor.policy import qos
from monitor.policy.compat import INT64_MIN, KUBELET, int64
from monitor.policy.configuration import HARD, THRESHOLDS, Source, in_force
from monitor.policy.errors import PolicyError
from monitor.policy.eviction_pass import PassConfig, run_pass
from monitor.policy.gosyntax import parse_float32
from monitor.policy.layout import NO_OVERLAY, DiskLayout, overlay_containerfs
from monitor.policy.pods import Pod, pod_from_object
from monitor.policy.quantity import Quantity, shown
from monitor.policy.resources import pod_request, with_gate_off
from monitor.policy.signals import ALLOCATABLE_MEMORY, CONDITION, CONTAINERFS, CONTAINERFS_INODES, Observation
from monitor.policy.sizing import EVICTION, KUBE, SYSTEM, Sizing, kubelet_terms
from monitor.policy.stats import PodStats, Summary
from monitor.policy.thresholds import LESS_THAN, Threshold, ThresholdValue, parse_thresholds
from monitor.policy.victims import DECIDING, rank_pods

SECOND = 10**9
Case = Mapping[str, Any]
Pair = tuple[Any, Any]
_NOW = 10**9 * SECOND


def parse_quantity(given: Case, answer: Any) -> Pair:
    """The text of the error, or every figure of the quantity."""
    want = {"error": answer["error"], "quantity": answer.get("quantity")}
    try:
        got = Quantity.parse(given["input"])
    except PolicyError as error:
        return {"error": str(error), "quantity": None}, want
    return {"error": None, "quantity": _figures(got, answer.get("quantity"))}, want


def quantity_math(given: Case, answer: Any) -> Pair:
    a, b = Quantity.parse(given["input"]), Quantity.parse(given["other"])
    got = {
        "cmp": (a > b) - (a < b),
        "add": _figures(a + b, answer["add"]),
        "sub": _figures(a - b, answer["sub"]),
    }
    return got, {key: answer[key] for key in got}


def _figures(q: Quantity, answer: Any) -> dict[str, Any]:
    """The 64-bit figures are binding only where the amount fits 64 bits (a thousand times for milli), and not below
    zero: the kubelet rounds and wraps those by how it holds them, and decides nothing by them.
    """
    figures = {}
    for name, unit in (("value", 10**9), ("milliValue", 10**6)):
        amount = -(-q.nanos // unit)
        binding = q.nanos >= 0 and amount == int64(amount)
        figures[name] = str(amount) if binding or answer is None else answer[name]
    is_exact = answer is not None and Fraction(answer["asDec"]) == Fraction(q.nanos, 10**9)
    return {
        **figures,
        "string": q.kubelet_text(),
        "asDec": answer["asDec"] if is_exact else str(q),
        "sign": (q.nanos > 0) - (q.nanos < 0),
        "isZero": q.is_zero,
        "format": q.format,
    }


def parse_threshold_config(given: Case, answer: Any) -> Pair:
    """The thresholds in any order, or the text of the error."""
    want = {"error": answer["error"], "thresholds": sorted(recorded(answer["thresholds"]))}
    try:
        found = parse_thresholds(*config_maps(given))
    except PolicyError as error:
        return {"error": str(error), "thresholds": []}, want
    return {"error": None, "thresholds": sorted(map(repr, found))}, want


def update_container_fs_thresholds(given: Case, answer: Any) -> Pair:
    """The thresholds in any order, and the complaint: the kubelet's last, of soft thresholds if there are any."""
    thresholds = parse_thresholds(*config_maps(given), in_order=True)
    overlaid = overlay_containerfs(thresholds, layout(given))
    replaced = [t for t in thresholds if t.signal in (CONTAINERFS, CONTAINERFS_INODES)]
    kind, these = ("soft", soft) if (soft := [t for t in replaced if not t.hard]) else ("hard", replaced)
    last = [f"found {t.signal} for {kind} eviction. ignoring" for t in these]
    error = answer["error"] if answer["error"] in last else (last[-1] if last else None)
    got = {"error": error, "thresholds": sorted(map(repr, overlaid))}
    return got, {"error": answer["error"], "thresholds": sorted(recorded(answer["thresholds"]))}


def threshold_quantity(given: Case, answer: Any) -> Pair:
    """What each threshold amounts to for a capacity."""
    capacity = Quantity.parse(given["input"]).int64()
    found = [threshold(t).value.shown(capacity) for t in given["thresholds"]]
    return [{"quantity": q.kubelet_text(), "value": str(q.int64())} for q in found], answer


def node_allocatable(given: Case, answer: Any) -> Pair:
    """The limit of kubepods and the reservation, in thousandths; whether more is reserved than there is."""
    settings = in_force(Source("", {key: given.get(key) or {} for key in (SYSTEM, KUBE, HARD)}))
    sizings = []
    for name, text in given["capacity"].items():
        capacity = Quantity.parse(text)
        terms = kubelet_terms(name, capacity.value, settings, unit=10**6)
        sizings.append(Sizing(name, "milli", capacity.int64(3), tuple(terms)))
    kept = {sizing: sizing.of(SYSTEM, KUBE, EVICTION) for sizing in sizings}
    got = {
        "podsCgroupLimitMilli": {sizing.resource: str(int64(max(0, sizing.pods_limit))) for sizing in sizings},
        "reservationMilli": {sizing.resource: str(int64(amount)) for sizing, amount in kept.items() if amount},
        "validationError": any(amount > sizing.capacity for sizing, amount in kept.items()),
    }
    return got, {**answer, "validationError": bool(answer["validationError"])}


def pod_qos(given: Case, answer: Any) -> Pair:
    pod = pod_of(given, given["pod"])
    got = {
        "qosClass": qos.qos_class_1_36(pod),
        "computedQOSClass": qos.compute_qos_class(pod, empty_counts=True),
        "isCriticalPod": qos.is_critical(pod),
        "isNodeCriticalPod": qos.is_node_critical(pod),
        "isStaticPod": qos.is_static(pod),
        "isMirrorPod": qos.is_mirror(pod),
    }
    return got, answer


def oom_scores(given: Case, answer: Any) -> Pair:
    """The value of every container. Where the kubelet dies, ours must refuse."""
    pod = pod_of(given, given["pod"])
    containers = (*pod.containers, *pod.init_containers)
    try:
        capacity = given["memoryCapacity"]
        scores = {c.name: qos.oom_score_adj(pod, c.name, capacity, KUBELET, qos.qos_class_1_36) for c in containers}
    except PolicyError as error:
        return answer if "panic" in answer else {"refused": str(error)}, answer
    return {"oomScoreAdj": scores, "qosClass": qos.qos_class_1_36(pod)}, answer


def rank(given: Case, answer: Any) -> Pair:
    """Groups of equal pods in order, and every pod's request. The order within a group is not binding."""
    pods = [pod_of(given, entry["pod"]) for entry in given["pods"]]
    entries = zip(pods, given["pods"], strict=True)
    stats = {pod.uid: PodStats(entry["stats"]) for pod, entry in entries if entry["stats"] is not None}
    ranked = rank_pods(given["signal"], pods, stats, layout(given))
    got = {
        "tieGroups": [
            sorted(one.pod.name for one in group) for _, group in groupby(ranked, lambda one: one.key[:DECIDING])
        ],
        "requests": {
            pod.name: {
                resource: str(pod_request(pod, resource).int64()) for resource in answer["requests"].get(pod.name, {})
            }
            for pod in pods
        },
    }
    return got, {"tieGroups": answer["tieGroups"], "requests": answer["requests"]}


def observations(given: Case, answer: Any) -> Pair:
    return _observed(Summary(given["summary"])), answer


def _observed(summary: Summary) -> dict[str, Any]:
    """The observations, shaped like recorded ones."""
    return {
        signal: {
            "available": shown(signal, seen.available),
            "availableValue": str(seen.available),
            "capacity": shown(signal, seen.capacity),
            "capacityValue": str(seen.capacity),
        }
        for signal, seen in summary.observations.items()
    }


def thresholds_met(given: Case, answer: Any) -> Pair:
    """The thresholds met, in the order given, and the conditions they raise, in that of the thresholds."""
    summary = Summary(given["summary"])
    reclaim = bool(given.get("enforceMinReclaim"))
    known = [(t, summary.observations.get(t.signal)) for t in map(threshold, given["thresholds"])]
    met = [t for t, seen in known if seen is not None and t.met(seen.available, seen.capacity, reclaim)]
    got = {
        "met": list(map(repr, met)),
        "nodeConditions": list(dict.fromkeys(CONDITION[t.signal] for t in met)),
        "observations": _observed(summary),
    }
    return got, {**answer, "met": recorded(answer["met"]), "nodeConditions": answer["nodeConditions"] or []}


def grace_period(given: Case, answer: Any) -> Pair:
    """Which thresholds are past their grace; in any order."""
    thresholds = [threshold(t) for t in given["thresholds"]]
    agos = [round(s * SECOND) for s in given["firstObservedSecondsAgo"]]
    found: list[Threshold] = []
    # One by one, so that thresholds which look alike keep their own times.
    for t, ago in zip(thresholds, agos, strict=True):
        config, starved = PassConfig((t,), SECOND, layout=NO_OVERLAY), {t.signal: Observation(INT64_MIN, 0, 0)}
        found += run_pass(config, config.blank._replace(first=(_NOW - ago,)), starved, _NOW, lambda _: ()).outcome.met
    return sorted(map(repr, found)), sorted(recorded(answer["satisfied"]))


def conditions_observed_since(given: Case, answer: Any) -> Pair:
    period = round(given["pressureTransitionPeriodSeconds"] * SECOND)
    one = ThresholdValue(Quantity.of(1, "pids"))
    signal_of = {condition: signal for signal, condition in CONDITION.items()}
    ago = given["lastObservedSecondsAgo"]
    config = PassConfig(tuple(Threshold(signal_of[c], one) for c in ago), period, layout=NO_OVERLAY)
    last = tuple(_NOW - round(ago[c] * SECOND) for c in config.conditions)
    state = config.blank._replace(last=last, conditions=frozenset(ago))
    outcome = run_pass(config, state, {}, _NOW, lambda _: ()).outcome
    return sorted(outcome.conditions), sorted(answer["nodeConditions"] or [])


def memcg_threshold(given: Case, answer: Any) -> Pair:
    """Where a kernel notification is armed: the usage that leaves the threshold's value, less inactive cache."""
    limit = threshold(given["thresholds"][0])
    summary = Summary(given["summary"])
    seen, usage = summary.observations.get(limit.signal), summary.memory_usage(limit.signal)
    kind = "hard" if limit.hard else "soft"
    which = "allocatable memory" if limit.signal == ALLOCATABLE_MEMORY else "memory"
    got: dict[str, Any] = {"description": f"{kind} {which} eviction threshold", "error": True}
    if seen is None or usage is None:
        return got, answer
    inactive = usage - (seen.capacity - seen.available)
    level = Quantity.of_bytes(seen.capacity) - limit.value.shown(seen.capacity) + Quantity.of_bytes(inactive)
    return got | {"error": False, "attribute": "memory.usage_in_bytes", "threshold": str(level.value)}, answer


# parts of a case


def config_maps(given: Case) -> tuple[Any, Any, Any, Any, Sequence[str]]:
    hard, soft, grace, reclaim = map(given.get, THRESHOLDS)
    return hard, soft, grace, reclaim, given.get("enforceNodeAllocatable") or ()


def pod_of(given: Case, obj: Any) -> Pod:
    """A pod of a case, by the feature gate that the case has for its pod-level resources."""
    pod = pod_from_object(obj)
    return pod if given.get("podLevelResources", True) else with_gate_off(pod)


def layout(given: Case) -> DiskLayout:
    """The disks of a case; a single one unless it says otherwise."""
    return DiskLayout(bool(given.get("dedicatedImageFs")), bool(given.get("dedicatedContainerFs")))


def threshold(given: Case) -> Threshold:
    """A threshold as the cases of single steps write it, or (with "value" and nanoseconds) as it was recorded."""
    reclaim = given.get("minReclaim")
    grace = given.get("gracePeriodNanoseconds", round(given.get("gracePeriodSeconds", 0) * SECOND))
    least, operator = None if reclaim is None else _value(reclaim), given.get("operator", LESS_THAN)
    return Threshold(given["signal"], _value(given.get("value", given)), int(grace), least, operator)


def _value(given: Case) -> ThresholdValue:
    if given.get("quantity") is not None:
        return ThresholdValue(Quantity.parse(given["quantity"]))
    # Already a fraction: rounded to 32 bits once, unlike a percentage in text, which is divided by 100 in 32 bits.
    return ThresholdValue(percentage=parse_float32(repr(float(given.get("percentage", 0)))))


def recorded(thresholds: Iterable[Case] | None) -> list[str]:
    """Recorded thresholds as texts, to compare with those of ours."""
    return [repr(threshold(t)) for t in thresholds or ()]
