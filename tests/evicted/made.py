"""Pods as API servers have them after evictions, by kubelets of several ages, and what only looks like one."""

from datetime import UTC, datetime, timedelta
from typing import Any

from monitor.evicted.sweep import EvictedPod, decode
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_apiserver import pod as running

Object = dict[str, Any]
#: Every other reason of a Failed pod that Kubernetes writes, and none.
OTHERWISE = (
    *("", "NodeLost", "Shutdown", "NodeShutdown", "NodeAffinity", "Terminated", "UnexpectedAdmissionError"),
    *("OOMKilled", "DeadlineExceeded", "OutOfcpu", "OutOfmemory", "Preempting", "evicted", "Evicted "),
)


def stamp(ago_s: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def owned(kind: str, name: str, **metadata: Any) -> Object:
    return {"ownerReferences": [{"kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}], **metadata}


def evicted(name: str, namespace: str = "default", ago_s: float = 3600.0, **metadata: Any) -> Object:
    """As a kubelet 1.36 leaves it; ``metadata`` is added."""
    made = running(name, namespace=namespace, phase="Failed", reason="Evicted")
    made["metadata"] |= metadata
    made["status"] |= {
        "message": "The node was low on resource: memory. Threshold quantity: 100Mi, available: 97Mi. ",
        "startTime": stamp(ago_s + 100),
        "containerStatuses": [  # before the condition, however long this takes
            {"name": "main", "state": {"terminated": {"exitCode": 137, "finishedAt": stamp(ago_s + 1)}}}
        ],
        "conditions": [
            {"type": "DisruptionTarget", "reason": "TerminationByKubelet", "lastTransitionTime": stamp(ago_s)},
            {"type": "Ready", "status": "False", "lastTransitionTime": stamp(ago_s + 50)},
        ],
    }
    return made


def put(api: FakeApiServer, *pods: Object) -> None:
    """In the store, with creation times of before their evictions."""
    for pod in pods:
        made = api.store.create("pods", pod)
        made["metadata"]["creationTimestamp"] = made["status"].get("startTime") or stamp(7200)
        key = ("pods", made["metadata"]["namespace"], made["metadata"]["name"])
        api.store.update(key, lambda _, made=made: made)


def names(api: FakeApiServer) -> set[str]:
    return {f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in api.store.all("pods")}


def decoded(made: Object) -> EvictedPod:
    metadata = {"uid": f"u-{made['metadata']['name']}", "resourceVersion": "1", **made["metadata"]}
    return decode({**made, "metadata": metadata})
