"""Recorded answers of a kubelet, asked of this policy: `{"id", "op", "input", "expected" | "expectedOneOf"}`.

The policy runs with compat "kubelet-1.36": it repeats the kubelet's defects too (docs/differences.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any

from monitor.policy.compat import KUBELET
from monitor.policy.conformance import steps
from monitor.policy.conformance.steps import SECOND, Case, config_maps, layout, pod_of, recorded
from monitor.policy.errors import PolicyError
from monitor.policy.eviction_pass import PassConfig, State
from monitor.policy.kubelet_pass import NODE_REASON, REASON, Eviction, KubeletResult, admit, kubelet_pass
from monitor.policy.layout import DELETE_CONTAINERS, DELETE_IMAGES
from monitor.policy.pods import Pod
from monitor.policy.releases import KUBELET_1_36
from monitor.policy.stats import Summary
from monitor.policy.thresholds import parse_thresholds


class CaseError(PolicyError):
    """The case itself is not in the format."""


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
    """Where the policy's answer differs from the (first) recorded one, "": nowhere. Raises CaseError for no case."""
    op, answers = _of_case(case)
    wanted = []
    got: Any = None
    for answer in answers:
        try:
            got, want = op(case["input"], answer)
        except PolicyError as error:
            got, want = {"refused": str(error)}, answer
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            got, want = {"unreadable": f"{type(error).__name__}: {error}"}, answer
        if got == want:
            return ""
        wanted.append(want)
    return _first_difference(got, wanted[0])


def _of_case(case: Any) -> tuple[Op, Sequence[Any]]:
    """The op of a case, and the answers that are right. Raises CaseError."""
    if not isinstance(case, Mapping):
        raise CaseError("not a map with id, op, input and expected")
    if missing := {"id", "op", "input"} - case.keys():
        raise CaseError(f"no {min(missing)!r}")
    op = OPS.get(str(case["op"]))
    if op is None:
        raise CaseError(f"op {case['op']!r} is not known; ops are {', '.join(OPS)}")
    if not isinstance(case["input"], Mapping):
        raise CaseError("'input' is not a map")
    answers = [case["expected"]] if "expected" in case else case.get("expectedOneOf")
    if not isinstance(answers, list) or not answers:
        raise CaseError("no 'expected' and no 'expectedOneOf' with an answer in it")
    return op, answers


# ---- the op `synchronize`: a time line of passes, every answer of which must be as recorded


def synchronize_answer(given: Case, answer: Any) -> tuple[Any, Any]:
    """All passes. An answer of one element with `configError` is a configuration that was refused."""
    want = [step if "configError" in step else _recorded_step(step) for step in answer]
    return play(given), want


def play(given: Case, compat: str = KUBELET) -> list[dict[str, Any]]:
    """The passes of a time line, each in the shape of its recorded answer."""
    try:
        thresholds = parse_thresholds(*config_maps(given), in_order=True)
    except PolicyError as error:
        return [{"configError": str(error)}]
    config = PassConfig(
        thresholds=thresholds,
        transition_period_ns=round(given["pressureTransitionPeriodSeconds"] * SECOND),
        max_pod_grace_s=given["evictionMaxPodGracePeriod"],
        layout=layout(given),
        local_storage=given["localStorageCapacityIsolation"],
        compat=compat,
        era=KUBELET_1_36,
    )
    as_pod = partial(pod_of, given)
    state, now = State(), 0
    gone: set[str] = set()
    answers = []
    for by, step in zip(chain([config.before_layout()], repeat(config)), given["steps"], strict=False):
        now += round(step["advanceSeconds"] * SECOND)
        pods = [p for p in map(as_pod, step.get("pods") or ()) if p.uid not in gone]
        result = kubelet_pass(by, state, pods, partial(_read, step), now, partial(_after, step))
        state = result.state
        if given.get("removeEvictedPods"):
            gone |= {eviction.pod.uid for eviction in result.evictions}
        admitted = [_admitted(pod, state.conditions) for pod in map(as_pod, step.get("admitPods") or ())]
        answers.append({"admit": admitted, **_answer(config, result, now)})
    return answers


def _read(step: Case) -> Summary | None:
    return None if step.get("summaryError") or step.get("summary") is None else Summary(step["summary"])


def _after(step: Case, actions: tuple[str, ...]) -> Summary | None:
    """The stats after a clean-up: those of the last call that has its own."""
    after = step["summary"]
    for action, key in ((DELETE_CONTAINERS, "summaryAfterContainerGC"), (DELETE_IMAGES, "summaryAfterImageGC")):
        if action in actions and step.get(key) is not None:
            after = step[key]
    return Summary(after)


def _answer(config: PassConfig, result: KubeletResult, now: int) -> dict[str, Any]:
    state = result.state
    events = [_event("node/node", NODE_REASON, result.warning, None)] if result.warning else []
    events += [_event(f"pod/{e.pod.name}", REASON, e.message, e.annotations) for e in result.evictions]
    return {
        "error": None,
        "events": events,
        "evictedPods": [e.pod.name for e in result.evictions],
        "gcCalls": list(result.reclaimed),
        "kills": [_kill(e) for e in result.evictions],
        "nodeConditions": sorted(state.conditions),
        "nodeConditionsLastObservedAt": {
            c: when / SECOND for c, when in zip(config.conditions, state.last, strict=False) if when is not None
        },
        "secondsSinceStart": now / SECOND,
        "summaryGetCalls": result.summary_reads,
        "thresholdsFirstObservedAt": sorted(
            (repr(rule.threshold), since / SECOND)
            for rule, since in zip(config.rules, state.first, strict=False)
            if since is not None
        ),
        "thresholdsMet": sorted(repr(config.rules[i].threshold) for i in state.met),
    }


def _event(about: str, reason: str, message: str, annotations: Mapping[str, str] | None) -> dict[str, Any]:
    return {"annotations": annotations, "message": message, "object": about, "reason": reason, "type": "Warning"}


def _kill(eviction: Eviction) -> dict[str, Any]:
    condition = {
        "message": eviction.message,
        "reason": "TerminationByKubelet",
        "status": "True",
        "type": "DisruptionTarget",
    }
    return {
        "conditions": [condition] if eviction.disrupted else [],
        "gracePeriodOverride": eviction.grace_s,
        "isEvicted": True,
        "message": eviction.message,
        "phase": "Failed",
        "pod": eviction.pod.name,
        "reason": REASON,
    }


def _admitted(pod: Pod, conditions: frozenset[str]) -> dict[str, Any]:
    answer = admit(pod, conditions, KUBELET_1_36.qos_class)
    return {"admit": answer.admitted, "message": answer.message, "pod": pod.name, "reason": answer.reason}


def _recorded_step(step: Case) -> dict[str, Any]:
    firsts = step["thresholdsFirstObservedAt"] or ()
    since = [float(first["secondsSinceStart"]) for first in firsts]
    return {
        **step,
        **{key: step[key] or [] for key in ("admit", "events", "evictedPods", "gcCalls")},
        "kills": [{**kill, "conditions": kill["conditions"] or []} for kill in step["kills"] or ()],
        "nodeConditions": sorted(step["nodeConditions"] or ()),
        "nodeConditionsLastObservedAt": step["nodeConditionsLastObservedAt"] or {},
        "thresholdsFirstObservedAt": sorted(zip(recorded(first["threshold"] for first in firsts), since, strict=True)),
        "thresholdsMet": sorted(recorded(step["thresholdsMet"])),
    }


#: op -> (our answer, the recorded one in the same shape). Parts of it that are not binding are copied from it.
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
    "synchronize": synchronize_answer,
}
