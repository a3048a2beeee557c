"""The policy against recorded answers of a real kubelet (see tests/data/policy/README.md)."""

import copy
import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from monitor.policy.compat import KUBELET, SANE
from monitor.policy.conformance import OPS, check_case, play
from monitor.policy.qos import oom_score_adj
from monitor.policy.quantity import PolicyError, Quantity
from tests.policy.builders import container, pod

DATA = Path(__file__).parent.parent / "data" / "policy"
FILES = sorted(path.name for path in DATA.glob("*.jsonl.gz"))
Case = dict[str, Any]


@cache
def cases(name: str) -> tuple[Case, ...]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        return tuple(map(json.loads, file))


def of_op(op: str) -> list[Case]:
    return [case for name in FILES for case in cases(name) if case["op"] == op]


@pytest.mark.parametrize("name", FILES)
def test_every_case_is_answered_as_recorded(name: str) -> None:
    failures = []
    for case in cases(name):
        if difference := check_case(case):
            failures.append(f"{case['id']} ({case['op']}): {difference}")
    assert not failures, f"{len(failures)} of {len(cases(name))} differ:\n" + "\n".join(failures[:10])


# What is not binding on its own, and so cannot be what the damaged answers are damaged in.
LOOSE = {"order", "value", "milliValue", "gracePeriod", "quantityValue"}


def damaged(value: Any) -> Any:
    """``value`` with its last binding leaf changed; None if there is nothing to change."""
    if isinstance(value, dict | list):
        made = copy.copy(value)
        for key, inner in reversed([*(value.items() if isinstance(value, dict) else enumerate(value))]):
            if key not in LOOSE and (changed := damaged(inner)) is not None:
                made[key] = changed
                return made
        return None
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return str(int(value) + 1)
    if isinstance(value, str):
        return value + "x"
    return None


@pytest.mark.parametrize("op", OPS)
def test_a_damaged_answer_is_noticed(op: str) -> None:
    noticed = tried = 0
    for case in of_op(op):
        answers = case.get("expectedOneOf") or [case["expected"]]
        if len(answers) > 1:
            continue  # the damaged one may be another right one
        worse = damaged(copy.deepcopy(answers[0]))
        if worse is None:
            continue
        tried += 1
        damaged_case = {key: case[key] for key in ("id", "op", "input")} | {"expected": worse}
        noticed += check_case(damaged_case) != ""
    assert tried > 0
    assert noticed == tried


def test_any_of_several_right_answers_is_right() -> None:
    case = next(c for c in of_op("synchronize") if len(c["expectedOneOf"]) > 1)
    ours = [not check_case({**case, "expectedOneOf": [answer]}) for answer in case["expectedOneOf"]]
    assert ours.count(True) == 1


def decisions(passes: list[Case]) -> list[Case]:
    """What passes did, without which of several thresholds was named for it."""
    kept = ("evictedPods", "gcCalls", "nodeConditions", "nodeConditionsLastObservedAt", "admit", "summaryGetCalls")
    return [{key: one[key] for key in kept} for one in passes]


def test_the_sane_choice_among_memory_thresholds_evicts_the_same_pods() -> None:
    compared = 0
    for case in of_op("synchronize"):
        if "MemoryPressure" not in json.dumps(case["expectedOneOf"]):
            continue
        sane, kubelet = play(case["input"], SANE), play(case["input"], KUBELET)
        if case["deterministic"]:
            assert decisions(sane) == decisions(kubelet), case["id"]
            compared += 1
    assert compared >= 10


# ---- where the sane answer is another


def test_decimal_amounts_beyond_exa_print_sanely() -> None:
    for text, sane, theirs in (("1000000000000000000000", "1000E", "1"), ("5e24", "5e24", "5e24")):
        assert (str(Quantity.parse(text)), Quantity.parse(text).kubelet_text()) == (sane, theirs)
    a_lot = Quantity.parse("500E") + Quantity.parse("500E")
    assert (str(a_lot), a_lot.kubelet_text()) == ("1000E", "1")
    less = Quantity.parse("-2000000E")
    assert (str(less), less.kubelet_text()) == ("-2000000E", "-2")


def test_oom_score_adj_of_an_absurd_request_is_the_floor_not_an_overflow() -> None:
    one = pod("p", container(memory=str(2**63 - 1)))
    assert (oom_score_adj(one, "c", 2**34), oom_score_adj(one, "c", 2**34, compat=KUBELET)) == (3, 999)


def test_no_memory_capacity_is_refused_where_the_kubelet_dies() -> None:
    burstable, best_effort = pod("p", container(memory="1")), pod("p")
    for one, compat in ((burstable, SANE), (burstable, KUBELET), (best_effort, SANE), (best_effort, KUBELET)):
        with pytest.raises(PolicyError, match="capacity 0"):
            oom_score_adj(one, "c", 0, compat=compat)
    died = {"id": "1", "op": "oomScoreAdj", "expected": {"panic": "integer divide by zero"}}
    spec = {"containers": [container(memory="1")]}
    given = {"pod": {"metadata": {"name": "p"}, "spec": spec}, "memoryCapacity": 0}
    assert not check_case({**died, "input": given})
    assert check_case({**died, "input": {**given, "memoryCapacity": 1}})


def test_the_cases_cover_every_op_and_scenario() -> None:
    """A case that is lost is a test that does not fail."""
    assert {case["op"] for name in FILES for case in cases(name)} == set(OPS)
    scenarios = {case["scenario"] for case in of_op("synchronize")}
    assert scenarios >= {"disk", "local", "mem", "memsoft", "min-reclaim-walk", "mixed", "pid", "stale"}
