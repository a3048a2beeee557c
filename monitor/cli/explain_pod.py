"""What `outrace explain NS/POD` says about one pod: its rank, class, request, scores and limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from monitor.actions.oomadj import OomScores, pod_scores
from monitor.cli.explain_node import Situation
from monitor.kernel import cgroup_procs
from monitor.pods.model import FoundPod
from monitor.policy.admission import admit
from monitor.policy.eviction_pass import KNOWN_LAYOUT, run_pass
from monitor.policy.explain import contrast
from monitor.policy.kubelet_pass import container_usage
from monitor.policy.layout import NO_OVERLAY
from monitor.policy.local_storage import storage_violation
from monitor.policy.messages import eviction_message
from monitor.policy.pod_reasons import why_class, why_critical, why_request
from monitor.policy.pods import Pod
from monitor.policy.resources import pod_limit
from monitor.policy.signals import MEMORY_SIGNALS, PID, RESOURCE, Observation
from monitor.policy.thresholds import Threshold
from monitor.policy.victims import Ranked

STORAGE = "ephemeral-storage"


def label(pod: Pod) -> str:
    """namespace/name; for a pod known by its cgroup alone its uid."""
    return f"{pod.namespace}/{pod.name}".lstrip("/")


def about(seen: Situation, order: Sequence[Ranked], one: Ranked) -> dict[str, Any]:
    """The facts as data; sizes in bytes."""
    pod, found = one.pod, seen.found[one.pod.uid]
    at = order.index(one)
    victim = next((other for other in order if not other.candidate.critical), None)
    resource = "memory" if seen.signal in MEMORY_SIGNALS else STORAGE
    request = None
    if seen.signal != PID:
        why = why_request(pod, resource, seen.era)
        request = {"resource": resource, "value": seen.era.request(pod, resource).value, "why": why}
    return {
        "pod": label(one.pod),
        "uid": pod.uid,
        "cgroup": str(found.cgroup),
        "rank": at + 1,
        "of": len(order),
        "next": one is victim,
        "qos": {"class": seen.era.qos_class(pod), "why": why_class(pod, seen.era)},
        "request": request,
        "spec_known": pod.spec_known,
        "written": dict(pod.written),
        "critical": {"critical": one.candidate.critical, "why": why_critical(pod, seen.era)},
        "against": _against(seen, order, at, victim),
        "oom_score_adj": _scores(seen, found),
        "local_storage": _storage(seen, one),
        "admission": {"conditions": list(seen.conditions), **admit(pod, seen.conditions)._asdict()},
        "eviction": _eviction(seen, one),
    }


def _against(seen: Situation, order: Sequence[Ranked], at: int, victim: Ranked | None) -> list[dict[str, Any]]:
    """The first victim, the pod before this one and the one behind it: the comparisons.

    Those that are never evicted are left out: to stand before or behind one changes nothing.
    """
    one = order[at]
    evictable = [other for other in order if other is one or not other.candidate.critical]
    n = evictable.index(one)
    before = evictable[n - 1] if n else None
    behind = evictable[n + 1] if n + 1 < len(evictable) else None
    roles = {"first victim": victim, "before it": before, "behind it": behind}
    found: list[dict[str, Any]] = []
    for role, other in roles.items():
        if other is None or other is one or any(row["uid"] == other.pod.uid for row in found):
            continue
        found.append(
            {
                "role": role,
                "pod": label(other.pod),
                "uid": other.pod.uid,
                "rank": order.index(other) + 1,
                "goes_first": other.key < one.key,
                "comparisons": [c._asdict() for c in contrast(one, other, seen.signal, seen.layout, seen.era)],
            }
        )
    return found


def _scores(seen: Situation, found: FoundPod) -> dict[str, Any]:
    """What oom_score_adj each container should have, and what its processes have."""
    mismatches: list[dict[str, Any]] = []

    def note(_level: str, _message: str, /, **fields: object) -> None:
        mismatches.append({key: fields[key] for key in ("container", "pid", "is_now", "should_be")})

    wanted = pod_scores(found, seen.node.capacity, seen.era)
    OomScores(seen.node.hierarchy, seen.node.capacity, None, note, seen.era).set_pod(found)
    containers = [
        {
            "name": c.name,
            "wanted": wanted.get(c.name),
            "processes": len(cgroup_procs.processes(found.containers[c.name])) if c.name in found.containers else None,
        }
        for c in (*found.pod.containers, *found.pod.init_containers)
    ]
    return {"containers": containers, "mismatches": mismatches}


def _storage(seen: Situation, one: Ranked) -> dict[str, Any]:
    """The pod's limits of local storage, and which one it is over."""
    pod = one.pod
    limits = [
        {"of": f"volume {v.name}", "limit": str(v.size_limit)}
        for v in pod.volumes
        if v.source == "emptyDir" and v.size_limit is not None and not v.size_limit.is_zero
    ]
    limits += [
        {"of": f"container {c.name}", "limit": str(c.limits[STORAGE])} for c in pod.containers if STORAGE in c.limits
    ]
    whole = pod_limit(pod, STORAGE)
    if whole is not None:
        limits.append({"of": "the pod", "limit": str(whole)})
    checked = seen.config.local_storage and one.stats is not None
    over = storage_violation(pod, one.stats, seen.layout) if checked and one.stats is not None else None
    return {"limits": limits, "enforced": seen.config.local_storage, "over": over}


def _eviction(seen: Situation, one: Ranked) -> dict[str, Any] | None:
    """The message of an eviction now for this signal; None for a pod that is never evicted."""
    if one.candidate.critical:
        return None
    threshold = _threshold(seen)
    observed = seen.summary.observations.get(seen.signal)
    resource = RESOURCE[seen.signal]
    message, annotations = eviction_message(
        one.pod,
        resource,
        None if threshold is None or observed is None else threshold.value.shown(observed.capacity),
        None if observed is None else observed.available,
        None if one.stats is None else container_usage(one.stats, resource),
        None if one.stats is None else one.stats.memory(),
    )
    grace_s = None if threshold is None else _grace_s(seen, threshold, one)
    return {"grace_s": grace_s, "message": message, "annotations": annotations}


def _threshold(seen: Situation) -> Threshold | None:
    """The one the pod would be evicted for: the starved one, else the first of the signal, hard before soft."""
    outcome = seen.result.outcome
    if outcome is not None and outcome.starved is not None and outcome.starved.signal == seen.signal:
        return outcome.starved
    of_signal = [t for t in seen.config.thresholds() if t.signal == seen.signal]
    return next((t for t in of_signal if t.hard), next(iter(of_signal), None))


def _grace_s(seen: Situation, threshold: Threshold, one: Ranked) -> int:
    """The grace of an eviction for ``threshold``, asked of a pass in which it is met and past its own grace."""
    rules = dataclasses.replace(seen.rules, thresholds=(threshold,), layout=NO_OVERLAY)
    starved = {threshold.signal: Observation(-(2**62), 1, 0)}
    before = run_pass(rules, KNOWN_LAYOUT, starved, 0, lambda _: ())
    return run_pass(rules, before.state, starved, threshold.grace_ns, lambda _: [one.candidate]).grace_s
