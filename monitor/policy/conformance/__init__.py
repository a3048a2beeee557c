"""Recorded answers of a kubelet, asked of this policy: inputs and answers as JSON in, passed or not out.

A case is `{"id", "op", "input", "expected" | "expectedOneOf"}`. The policy runs with compat "kubelet-1.36", so that it
repeats the kubelet's defects too (docs/differences.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monitor.policy.conformance import steps, timeline
from monitor.policy.conformance.steps import Case
from monitor.policy.errors import PolicyError


class CaseError(PolicyError):
    """The case itself is not in the format."""


#: op -> (our answer for the input and one recorded answer, that recorded answer in the same shape). The recorded answer
#: goes in because some of its parts are not binding and are then copied from it.
Op = Callable[[Case, Any], tuple[Any, Any]]

OPS: dict[str, Op] = {
    "parseQuantity": steps.parse_quantity,
    "quantityMath": steps.quantity_math,
    "parseThresholdConfig": steps.parse_threshold_config,
    "updateContainerFsThresholds": steps.update_container_fs_thresholds,
    "thresholdQuantity": steps.threshold_quantity,
    "nodeAllocatable": steps.node_allocatable,
    "podQOS": steps.pod_qos,
    "oomScoreAdj": steps.oom_scores,
    "rank": steps.rank,
    "observations": steps.observations,
    "thresholdsMet": steps.thresholds_met,
    "gracePeriod": steps.grace_period,
    "conditionsObservedSince": steps.conditions_observed_since,
    "memcgThreshold": steps.memcg_threshold,
    "synchronize": timeline.synchronize_answer,
}


def _first_difference(got: Any, recorded: Any, path: str = "") -> str:
    """Where two answers part, and how: the first place of it, in one line."""
    if isinstance(got, Mapping) and isinstance(recorded, Mapping):
        for key in (*got, *(k for k in recorded if k not in got)):
            if got.get(key) != recorded.get(key):
                return _first_difference(got.get(key), recorded.get(key), f"{path}.{key}")
    if isinstance(got, list) and isinstance(recorded, list):
        for i, (ours, theirs) in enumerate(zip(got, recorded, strict=False)):
            if ours != theirs:
                return _first_difference(ours, theirs, f"{path}[{i}]")
    return f"{path.lstrip('.') or 'answer'}: {got!r}, recorded {recorded!r}"


def check_case(case: Any) -> str:
    """Where the policy's answer differs from the recorded one (the first of several right ones), "" if it does not.
    Raises CaseError for what is not a case.

    An input the op cannot read is a failure: which inputs it can read is part of what is tried.
    """
    op, answers = _read(case)
    wanted = []
    got: Any = None
    for answer in answers:
        try:
            got, want = op(case["input"], answer)
        except PolicyError as error:
            got, want = {"refused": str(error)}, answer
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            got, want = {"unreadable": f"{type(error).__name__}: {error}"}, answer
        if got == want:
            return ""
        wanted.append(want)
    return _first_difference(got, wanted[0])


def _read(case: Any) -> tuple[Op, Sequence[Any]]:
    """The op of a case, and the answers that are right. Raises CaseError."""
    if not isinstance(case, Mapping):
        raise CaseError("not a map with id, op, input and expected")
    for key in ("id", "op", "input"):
        if key not in case:
            raise CaseError(f"no {key!r}")
    op = OPS.get(case["op"]) if isinstance(case["op"], str) else None
    if op is None:
        raise CaseError(f"op {case['op']!r} is not known; ops are {', '.join(OPS)}")
    if not isinstance(case["input"], Mapping):
        raise CaseError("'input' is not a map")
    if "expected" in case:
        return op, [case["expected"]]
    if isinstance(case.get("expectedOneOf"), list) and case["expectedOneOf"]:
        return op, case["expectedOneOf"]
    raise CaseError("no 'expected' and no 'expectedOneOf' with an answer in it")
