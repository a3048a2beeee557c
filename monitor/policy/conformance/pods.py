"""Ops about pods: QoS class, oom_score_adj, ranking."""

from __future__ import annotations

from typing import Any

from monitor.policy.compat import KUBELET
from monitor.policy.conformance.reading import Case, layout
from monitor.policy.errors import PolicyError
from monitor.policy.oom_score import oom_score_adj
from monitor.policy.pods import pod_from_object
from monitor.policy.qos import compute_qos_class, is_critical, is_mirror, is_node_critical, is_static, qos_class
from monitor.policy.resources import pod_request
from monitor.policy.stats import PodStats
from monitor.policy.victims import rank_pods, tie_groups

Pair = tuple[Any, Any]


def pod_qos(given: Case, answer: Any) -> Pair:
    """QoS class and what kind of pod it is."""
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
        "tieGroups": [sorted(one.pod.name for one in group) for group in tie_groups(ranked)],
        "requests": {
            pod.name: {
                resource: str(pod_request(pod, resource, gate).int64())
                for resource in answer["requests"].get(pod.name, {})
            }
            for pod in pods
        },
    }
    return got, {"tieGroups": answer["tieGroups"], "requests": answer["requests"]}
