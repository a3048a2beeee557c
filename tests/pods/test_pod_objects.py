"""What is kept of a Pod of the API, and what is made of it: requests as a kubelet 1.36 counts them."""

import json
from pathlib import Path
from typing import Any

import pytest

from monitor.actions.oomadj import pod_scores
from monitor.pods.feed import known
from monitor.pods.manifest_files import Manifest, kept
from monitor.pods.model import MOST_CONTAINERS, FoundPod
from monitor.policy.kubelet_pass import is_limited, storage_violation
from monitor.policy.layout import SINGLE_DISK
from monitor.policy.qos import is_critical, qos_class
from monitor.policy.releases import CURRENT
from monitor.policy.stats import PodStats
from tests.pods.cluster import a_pod
from tests.policy import builders

Object = dict[str, Any]
MI = 1 << 20


def read(obj: Object) -> Manifest:
    found = known("test", obj)
    assert found.manifest is not None, found.problem
    assert known("test", json.loads(json.dumps(found.object))) == found  # as it comes from the cache
    return found.manifest


def request(obj: Object) -> float:
    return float(CURRENT.request(read(obj).pod, "memory").value) / MI


def container(name: str, memory: str = "", **more: Any) -> Object:
    return {"name": name, "image": "x", "resources": {"requests": {"memory": memory}} if memory else {}, **more}


def with_spec(**spec: Any) -> Object:
    pod = a_pod("a", "u1")
    pod["spec"] |= spec
    pod["status"] = {"phase": "Running"}
    return pod


def test_what_a_request_is_made_of_is_kept() -> None:
    """tests/policy/test_explain.py has how it is made."""
    init = [container("proxy", "50Mi", restartPolicy="Always"), container("init", "100Mi")]
    pod = with_spec(containers=[container("main", "64Mi")], initContainers=init, overhead={"memory": "10Mi"})
    assert request(pod) == 160
    pod["spec"]["resources"] = {"requests": {"memory": "300Mi"}}
    assert request(pod) == 310


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
    for kind, more in (("container", {}), ("initContainer", {"restartPolicy": "Always"})):
        one = {"name": "one", "resources": {"requests": asked}, **more}
        pod = with_spec(**{"containers": [container("main")], f"{kind}s": [one]})
        pod["status"][f"{kind}Statuses"] = [{"name": "one", "allocatedResources": granted}]
        assert request(pod) == mib


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
    pod = read(obj).pod
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


@pytest.mark.parametrize("key", ["containers", "initContainers"])
def test_of_very_many_containers_the_first_are_kept_with_what_was_granted(key: str) -> None:
    """As if the others requested nothing. The kubelet lists statuses by name: those that are kept are not the first."""
    names = [f"c{i:05}" for i in range(20_000)][::-1]
    more = {"restartPolicy": "Always"} if key == "initContainers" else {}
    listed = [container(name, "1Mi", **more) for name in names]
    obj = with_spec(**{"containers": [container("main")], key: listed})
    obj["status"][f"{key.removesuffix('s')}Statuses"] = [
        {"name": name, "containerID": f"containerd://{name}", "allocatedResources": {"memory": "2Mi"}}
        for name in sorted(names)
    ]
    found = read(obj)
    assert request(obj) == 2 * MOST_CONTAINERS
    assert set(found.container_ids) == set(names[:MOST_CONTAINERS])
    assert len(json.dumps(kept(obj))) < 64 << 10
    # A process of another one would get the score of the container that the kernel's OOM killer spares most.
    assert pod_scores(FoundPod(found.pod, Path("/"), {}), 1 << 30) == {}


LIMIT = {"ephemeral-storage": "1Gi"}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, False),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, False),
        ({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "0"}}]}, False),
        ({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1", "medium": "Memory"}}]}, True),
        ({"initContainers": [builders.container("i", limits=LIMIT)]}, True),
    ],
)
def test_which_pods_have_limits(spec: dict[str, Any], expected: bool) -> None:
    one = builders.pod("a", **spec)
    assert [is_limited(one), is_limited(one)] == [expected] * 2
    assert is_limited(builders.pod("b", builders.container(limits=LIMIT), **spec))
    # A pod that is never measured must be one that can never be in violation.
    if not expected:
        full = {"volume": [{"name": "v", "usedBytes": 2**40}], "ephemeral-storage": {"usedBytes": 2**40}}
        assert storage_violation(one, PodStats(full), SINGLE_DISK) is None
