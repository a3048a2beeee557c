"""Reading the recorded answers in tests/data/policy into the policy's own values."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from monitor.policy.gosyntax import parse_percentage
from monitor.policy.pods import Pod
from monitor.policy.quantity import Quantity
from monitor.policy.ranking import Candidate, memory_candidate, memory_key, memory_order
from monitor.policy.signals import ALLOCATABLE_MEMORY, MEMORY, Observation, observe_available
from monitor.policy.thresholds import Threshold, ThresholdValue

DATA = Path(__file__).parent.parent / "data" / "policy"
SECOND = 10**9
Case = dict[str, Any]


def cases(name: str, op: str) -> list[Case]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        found = [case for case in map(json.loads, file) if case["op"] == op]
    assert found, f"no cases of {op} in {name}"
    return found


def answers(case: Case) -> list[Any]:
    """Every answer that is right."""
    return case["expectedOneOf"] if "expectedOneOf" in case else [case["expected"]]


def config_maps(given: Case) -> tuple[Any, Any, Any, Any, Sequence[str]]:
    """The arguments of parse_thresholds."""
    names = ("evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim")
    hard, soft, grace, reclaim = (given.get(name) for name in names)
    return hard, soft, grace, reclaim, given.get("enforceNodeAllocatable") or ()


def threshold(given: Case) -> Threshold:
    """A threshold as the cases of single steps write it."""
    reclaim = given.get("minReclaim")
    grace = round(given.get("gracePeriodSeconds", 0) * SECOND)
    return Threshold(given["signal"], _value(given), grace, _value(reclaim) if reclaim else None)


def _value(given: Case) -> ThresholdValue:
    if given.get("quantity") is not None:
        return ThresholdValue(Quantity.parse(given["quantity"]))
    return ThresholdValue(percentage=parse_percentage(f"{given.get('percentage', 0) * 100!r}%"))


def shown(t: Threshold) -> str:
    """One of our thresholds as comparable text (numbers as numbers: Go and Python print floats differently)."""

    def value(v: ThresholdValue | None) -> object:
        if v is None:
            return None
        return str(v.quantity) if v.quantity is not None else repr(v.percentage)

    return json.dumps([t.signal, t.operator, t.grace_ns, value(t.value), value(t.min_reclaim)])


def shown_answer(t: Case) -> str:
    """A recorded threshold as the same text."""

    def value(v: Case | None) -> object:
        if v is None:
            return None
        return v["quantity"] if v["quantity"] is not None else repr(float(v["percentage"]))

    grace = int(t["gracePeriodNanoseconds"])
    return json.dumps([t["signal"], t["operator"], grace, value(t["value"]), value(t["minReclaim"])])


def observations(summary: Mapping[str, Any]) -> dict[str, Observation]:
    """The memory observations of a Summary API answer."""
    node = summary["node"]
    found = {MEMORY: node.get("memory"), ALLOCATABLE_MEMORY: pods_memory(node)}
    return {
        signal: observe_available(m["availableBytes"], m["workingSetBytes"], _stamp(m.get("time")))
        for signal, m in found.items()
        if m and "availableBytes" in m and "workingSetBytes" in m
    }


def pods_memory(node: Mapping[str, Any]) -> Any:
    """The memory of the first system container called "pods"."""
    for container in node.get("systemContainers", []):
        if container["name"] == "pods":
            return container.get("memory")
    return None


def _stamp(text: str | None) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * SECOND if text else 0


def usage(stats: Mapping[str, Any] | None) -> int | None:
    """The working set used for ranking: None without stats, 0 if they lack it, 64 bits with a sign."""
    if stats is None:
        return None
    return ((stats.get("memory") or {}).get("workingSetBytes", 0) + 2**63) % 2**64 - 2**63


def ranked(pods: Iterable[tuple[Pod, Mapping[str, Any] | None]], pod_level: bool = True) -> list[Candidate]:
    return memory_order(memory_candidate(pod, usage(stats), pod_level) for pod, stats in pods)


def tie_groups(order: Sequence[Candidate]) -> list[list[str]]:
    groups: list[list[Candidate]] = []
    for candidate in order:
        if groups and memory_key(groups[-1][0])[:4] == memory_key(candidate)[:4]:
            groups[-1].append(candidate)
        else:
            groups.append([candidate])
    return [sorted(c.name for c in group) for group in groups]
