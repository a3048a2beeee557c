"""What is kept of a Pod of the API, and what is made of it: requests as a kubelet 1.36 counts them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monitor.pods.feed import known
from monitor.pods.pod_objects import kept, owner
from monitor.policy.pods import Pod
from monitor.policy.qos import is_critical, qos_class
from monitor.policy.releases import CURRENT
from tests.pods.cluster import a_pod

Object = dict[str, Any]
MI = 1 << 20


def of(obj: Object) -> Pod:
    found = known("test", obj)
    assert found is not None
    assert found.manifest is not None, found.problem
    # What was stored reads as what came.
    again = known("test", json.loads(json.dumps(found.object)))
    assert again is not None
    assert again.manifest == found.manifest
    return found.manifest.pod


def request(obj: Object) -> float:
    return float(CURRENT.request(of(obj), "memory").value) / MI


def container(name: str, memory: str = "", **more: Any) -> Object:
    return {"name": name, "image": "x", "resources": {"requests": {"memory": memory}} if memory else {}, **more}


def with_spec(**spec: Any) -> Object:
    pod = a_pod("a", "u1")
    pod["spec"] |= spec
    pod["status"] = {"phase": "Running"}
    return pod


def test_init_containers_count_one_at_a_time_and_sidecars_on() -> None:
    main = container("main", "64Mi")
    assert request(with_spec(containers=[main, container("other", "20Mi")])) == 84
    assert request(with_spec(containers=[main], initContainers=[container("init", "100Mi")])) == 100
    sidecar = container("proxy", "50Mi", restartPolicy="Always")
    assert request(with_spec(containers=[main], initContainers=[sidecar])) == 114
    # A sidecar runs beside the init container that comes after it.
    assert request(with_spec(containers=[main], initContainers=[sidecar, container("init", "100Mi")])) == 150


def test_pod_level_resources_and_overhead() -> None:
    pod = with_spec(containers=[container("main", "64Mi")], resources={"requests": {"memory": "300Mi"}})
    assert request(pod) == 300
    pod["spec"]["overhead"] = {"memory": "10Mi"}
    assert request(pod) == 310
    assert request(with_spec(containers=[container("main", "64Mi")], overhead={"memory": "10Mi"})) == 74
    assert request(with_spec(containers=[container("main")], overhead={"memory": "10Mi"})) == 0  # as the kubelet does


@pytest.mark.parametrize(
    ("asked", "granted", "mib"),
    [
        ({"memory": "128Mi"}, {"memory": "64Mi"}, 64),  # not granted yet
        ({"memory": "64Mi"}, {"memory": "128Mi"}, 128),  # a decrease, not done yet
        ({"memory": "64Mi"}, {}, 64),  # before Kubernetes 1.33
        ({"memory": "64Mi"}, None, 64),
        ({"memory": "64Mi", "cpu": "1"}, {"cpu": "500m"}, 0),  # a request that was added, and is not granted
        ({"cpu": "1"}, {"cpu": "1", "memory": "32Mi"}, 32),  # one that was taken away, and still stands
    ],
)
def test_the_request_that_was_granted_counts(asked: Object, granted: Object | None, mib: int) -> None:
    pod = with_spec(containers=[{"name": "main", "resources": {"requests": asked}}])
    pod["status"]["containerStatuses"] = [{"name": "main", "allocatedResources": granted}]
    assert request(pod) == mib
    sidecar = with_spec(
        containers=[container("main")],
        initContainers=[{"name": "proxy", "restartPolicy": "Always", "resources": {"requests": asked}}],
    )
    sidecar["status"]["initContainerStatuses"] = [{"name": "proxy", "allocatedResources": granted}]
    assert request(sidecar) == mib


@pytest.mark.parametrize(
    ("asked", "status", "mib"),
    [
        ({"memory": "1Ti"}, {"allocatedResources": {"memory": "64Mi"}}, 64),  # PodResizePending, Infeasible
        ({"memory": "64Mi"}, {"allocatedResources": {"memory": "128Mi"}}, 128),  # a decrease, not done yet
        ({"memory": "1Ti"}, {"resources": {"requests": {"memory": "64Mi"}}}, 64),  # what is in force, and nothing else
        ({"memory": "64Mi"}, {"allocatedResources": {}}, 64),  # KEP-5419 is off
        ({"memory": "64Mi", "cpu": "1"}, {"allocatedResources": {"cpu": "1"}}, 0),  # was added, and is not granted
        (None, {"allocatedResources": {"memory": "1Ti"}}, 32),  # no resources of its own: the sum of the containers
    ],
)
def test_the_request_that_the_whole_pod_was_granted_counts(asked: Object | None, status: Object, mib: int) -> None:
    own = {} if asked is None else {"resources": {"requests": asked}}
    pod = with_spec(containers=[container("main", "32Mi")], **own)
    pod["status"] |= status
    assert request(pod) == mib


def test_what_the_policy_asks_for_is_kept() -> None:
    obj = with_spec(
        containers=[container("main", "64Mi")],
        priority=2_000_001_000,
        priorityClassName="system-node-critical",
        terminationGracePeriodSeconds=7,
        tolerations=[{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}],
        volumes=[
            {"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "conf", "configMap": {"name": "c", "items": [{"key": "k", "path": "p"}] * 1000}},
        ],
    )
    obj["status"]["qosClass"] = "Burstable"
    pod = of(obj)
    assert is_critical(pod)
    assert (pod.priority_class_name, pod.grace_period_s, qos_class(pod)) == ("system-node-critical", 7, "Burstable")
    assert pod.tolerations[0].key == "node.kubernetes.io/memory-pressure"
    assert [(one.source, one.medium, one.local) for one in pod.volumes] == [
        ("emptyDir", "", True),
        ("emptyDir", "Memory", False),
        ("configMap", "", True),
    ]
    assert pod.volumes[0].size_limit is not None
    assert len(json.dumps(kept(obj))) < 2000


def test_a_pod_as_large_as_it_may_be_keeps_little() -> None:
    """1.5 MB of a tenant's own labels, annotations and volumes, in each of 110 pods."""
    obj = with_spec(
        containers=[container("main", "64Mi")],
        volumes=[{"name": f"v{i}", "secret": {"secretName": "x" * 200}} for i in range(2000)],
        tolerations=[{"key": f"k{i}"} for i in range(5000)],
    )
    obj["metadata"] |= {
        "labels": {f"label{i}": "x" * 63 for i in range(5000)},
        "annotations": {"kubernetes.io/config.hash": "f" * 250_000, "big": "x" * 250_000},
        "ownerReferences": [{"kind": "ReplicaSet", "name": f"r{i}"} for i in range(2000)],
    }
    obj["metadata"]["ownerReferences"][0]["name"] = "x" * 500_000
    obj["spec"]["containers"][0]["resources"]["requests"] |= {f"example.com/r{i}": "1" for i in range(50_000)}
    assert len(json.dumps(kept(obj))) < 32 << 10
    assert request(obj) == 64


def test_owner() -> None:
    obj = a_pod("a", "u1")
    assert owner(kept(obj)) == ""
    obj["metadata"]["ownerReferences"] = [
        {"kind": "Other", "name": "x"},
        {"kind": "Job", "name": "j", "controller": True},
    ]
    assert owner(kept(obj)) == "Job/j"
    del obj["metadata"]["ownerReferences"][1]
    assert owner(kept(obj)) == "Other/x"
