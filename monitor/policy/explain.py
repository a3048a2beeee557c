"""Why a pod has its place in the order (of `victims.rank_pods`), is critical, has its class and request, as text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from monitor.policy.pods import Pod
from monitor.policy.qos import BEST_EFFORT, BURSTABLE, CRITICAL_PRIORITY, GUARANTEED, is_mirror, is_static
from monitor.policy.quantity import ZERO, Quantity
from monitor.policy.releases import CURRENT, Era
from monitor.policy.resources import containers_request, pod_level_resources_set
from monitor.policy.victims import DECIDING, Ranked

_CLASSES = {
    BEST_EFFORT: "no request or limit of cpu or memory",
    BURSTABLE: "not Guaranteed: a limit of cpu or memory is missing, or is not the request",
    GUARANTEED: "requests and limits of cpu and memory are the same",
}


def comparisons(one: Ranked, era: Era = CURRENT) -> dict[str, str]:
    """What decides about this pod's place for memory, in the order of comparing: name -> how the pod does."""
    c = one.candidate
    usage = "no stats: goes first"
    if c.usage is not None:
        place = "above" if c.usage > c.request else "within"
        usage = f"{_size(c.usage)} (working set), requested {_size(c.request)}: {place} its request"
    if era.name == "kubelet-1.8":
        found = {"QoS class": f"{era.qos_class(one.pod)}: BestEffort goes first, Guaranteed last", "usage": usage}
    else:
        known, last = ("unknown", ", unknown ones last") if c.priority is None else (c.priority, "")
        found = {"usage": usage, "priority": f"{known}: lower ones go first{last}"}
        if c.usage is not None:
            above = c.usage - c.request
            found["excess"] = f"{_size(abs(above))} {'above' if above > 0 else 'below'} its request"
    if c.critical:
        found["critical"] = f"{why_critical(one.pod, era)}: never evicted"
    return found


def _size(count: int) -> str:
    return str(Quantity.of_bytes(count))


def contrast(one: Ranked, other: Ranked, era: Era = CURRENT) -> list[dict[str, Any]]:
    """Both pods, comparison by comparison, and which of these decides. Of equal pods the names decide."""
    mine, theirs = (comparisons(each, era) for each in (one, other))
    names = dict.fromkeys((*mine, *theirs))
    compared = [name for name in names if name != "critical"]
    # The parts of a key are in the order of the comparisons; the last comparison has those that are left.
    part = next((i for i in range(DECIDING) if one.key[i] != other.key[i]), None)
    decisive = "name" if part is None else compared[min(part, len(compared) - 1)]
    if decisive == "name":
        mine["name"], theirs["name"] = (f"{p.namespace}/{p.name}".lstrip("/") for p in (one.pod, other.pod))
        names |= {"name": None}
    return [
        {"name": name, "one": mine.get(name, "-"), "other": theirs.get(name, "-"), "decides": name == decisive}
        for name in names
    ]


def why_critical(pod: Pod, era: Era = CURRENT) -> str:
    """What protects the pod from eviction; empty if nothing does."""
    if pod.taken_critical:
        return pod.taken_critical
    if era.name == "kubelet-1.8":
        return "marked by annotation" if era.is_critical(pod) else ""
    if is_static(pod):
        return "static pod"
    if is_mirror(pod):
        return "mirror pod"
    if (pod.priority or 0) >= CRITICAL_PRIORITY:
        return f"priority {pod.priority}"
    return ""


def why_class(pod: Pod, era: Era = CURRENT) -> str:
    """How the pod's QoS class came about."""
    if pod.written:
        return pod.written["class"]
    if not pod.spec_known:
        return "its cgroup is that of one"
    if pod.qos_class_status:
        return "as its status says (status.qosClass)"
    return _CLASSES[era.qos_class(pod)]


def why_request(pod: Pod, era: Era = CURRENT) -> str:
    """How the request for memory came about, which is compared."""
    total = era.request(pod, "memory")
    if pod.written:
        return f"{total}: {pod.written['request']}"
    if not pod.spec_known:
        return f"{total}: its spec is not known, guessed from its cgroup"
    if era.request is not CURRENT.request:
        regular = sum((c.requests.get("memory", ZERO) for c in pod.containers), ZERO)
        rule = "the containers' together" if total == regular else "the largest init container's"
        return f"{total}: {rule} ({era.name} knows no sidecars, overhead or pod-level requests)"
    if pod_level_resources_set(pod):
        assert pod.resources is not None
        named = pod.resources.requests.get("memory")
        parts = ["spec.resources names none, which hides the containers'" if named is None else f"{named} for the pod"]
        needed = ZERO if named is None else named
    else:
        sidecars = tuple(c for c in pod.init_containers if c.sidecar)
        regular = containers_request(replace(pod, init_containers=()), "memory")
        running = containers_request(replace(pod, init_containers=sidecars), "memory")
        needed = containers_request(pod, "memory")
        if needed > running:
            parts = [f"{needed} at a step of the init containers, more than the {running} of the running ones"]
        else:
            parts = [f"containers {regular}"] + ([f"sidecars {running - regular}"] if running != regular else [])
    if total != needed:
        parts.append(f"overhead {total - needed}")
    return f"{total}: {' + '.join(parts)}"
