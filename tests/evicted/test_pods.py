"""Which pods count as evicted and left behind, whose they are, and since when."""

from typing import Any

import pytest

from monitor.evicted.sweep import BY_CONDITION, BY_REASON, EvictedPod, decode, parse_time
from tests.evicted.made import OTHERWISE, decoded, evicted, owned, stamp


def test_an_evicted_pod_of_this_kubelet() -> None:
    pod = decoded(evicted("web-1", "shop", **owned("ReplicaSet", "web-5d9c")))
    assert (pod.key, pod.owner_name, pod.node, pod.stays) == ("shop/web-1", "web-5d9c", "node-1", "")
    assert pod.message.startswith("The node was low on resource: memory.")


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        *(("status", "reason", reason) for reason in (*OTHERWISE, None)),
        *(
            ("status", "phase", phase)
            for phase in ("Running", "Pending", "Succeeded", "Unknown", "failed", "", None, 7)
        ),
        *(("metadata", key, None) for key in ("uid", "resourceVersion")),  # a delete could hit another pod
    ],
)
def test_nothing_else_is_one(part: str, key: str, value: object) -> None:
    made = evicted("web-1", uid="u", resourceVersion="1")
    assert decode(made) is not None
    made[part][key] = value
    assert decode(made) is None


def without_reason(message: str, of_status: str = "", **condition: str) -> dict[str, Any]:
    made = evicted("web-1")
    status = made["status"]
    del status["reason"]
    status["message"] = of_status
    status["conditions"][0] |= {"status": "True", "message": message, **condition}
    return made


@pytest.mark.parametrize(
    "message",
    [
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 97Mi. ",
        "The node was low on resource: ephemeral-storage. ",
        'Container web exceeded its local ephemeral storage limit "1Gi". ',
        "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
        'Usage of EmptyDir volume "cache" exceeds the limit "1Gi". ',
    ],
)
def test_without_a_reason_the_kubelets_condition_and_message_are_evidence(message: str) -> None:
    for made in (without_reason(message), without_reason("", message)):
        found = decoded(made)
        assert (found.evidence, found.message, found.stays) == (BY_CONDITION, " ".join(message.split()), "")
    assert decoded(evicted("web-1")).evidence == BY_REASON
    held = without_reason(message)
    held["metadata"]["deletionTimestamp"] = stamp(1)
    assert decoded(held).stays == "is being deleted"


@pytest.mark.parametrize(
    ("message", "condition"),
    [
        ("Pod was terminated in response to imminent node shutdown.", {}),
        ("Preempted in order to admit critical pod", {}),
        ("", {}),
        ("The node was low on resource: memory. ", {"status": "False"}),
        ("The node was low on resource: memory. ", {"reason": "EvictionByEvictionAPI"}),
        ("The node was low on resource: memory. ", {"type": "Ready"}),
    ],
)
def test_another_condition_or_message_is_no_evidence(message: str, condition: dict[str, str]) -> None:
    made = without_reason(message, **condition)
    assert decoded(made) is None
    made["status"]["reason"] = "Terminated"
    assert decoded(made) is None


@pytest.mark.parametrize("name", ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"])
def test_a_running_container_holds_it(name: str) -> None:
    """Kubelets before 1.22 write Failed at the start of the grace period."""
    made = evicted("web-1")
    made["status"][name] = [{"name": "log", "state": {"running": {"startedAt": stamp(9)}}}]
    assert decoded(made).stays == "container log is still running"
    made["status"][name] = [{"name": "log", "state": {"waiting": {"reason": "ContainerCreating"}}}]
    assert decoded(made).stays == ""
    # test_evicted_contract.py has finalizers and deletions.
    mirror = decoded(evicted("web-1", annotations={"kubernetes.io/config.mirror": "x"}))
    assert mirror.stays.startswith("mirror of a static pod")


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [
        ({}, "none"),
        (owned("StatefulSet", "db"), "StatefulSet/db"),
        (owned("ReplicaSet", "web-5d9c", labels={"pod-template-hash": "5d9c"}), "Deployment/web"),
        (owned("ReplicaSet", "web-5d9c", labels={"pod-template-hash": "other"}), "ReplicaSet/web-5d9c"),
        (owned("ReplicaSet", "web", labels={"pod-template-hash": ""}), "ReplicaSet/web"),
        (owned("Workflow", "w"), "Workflow/w"),
        ({"ownerReferences": [{"kind": "Job", "name": "j", "controller": False}]}, "none"),
        ({"ownerReferences": ["x", {"kind": "Job", "name": "j", "controller": True}]}, "Job/j"),
    ],
)
def test_owners(metadata: dict[str, Any], owner: str) -> None:
    pod = decoded(evicted("web-1", **metadata))
    assert "/".join(filter(None, (pod.owner_kind, pod.owner_name))) == owner


def test_since_is_the_last_thing_that_is_dated() -> None:
    """A pod that ran for months and was evicted a minute ago is a minute old."""
    made = evicted("web-1", ago_s=60.0)
    made["metadata"]["creationTimestamp"] = made["status"]["startTime"] = "2020-01-01T00:00:00Z"
    since = decoded(made).since
    assert stamp(60) >= made["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
    assert since == parse_time(made["status"]["conditions"][0]["lastTransitionTime"])
    del made["status"]["conditions"], made["status"]["containerStatuses"]
    made["metadata"]["managedFields"] = [
        {"manager": "kubelet", "subresource": "status", "time": "2020-03-01T00:00:00Z"},
        {"manager": "kubectl-label", "time": "2021-01-01T00:00:00Z"},
    ]
    assert decoded(made).since == parse_time("2020-03-01T00:00:00Z")


@pytest.mark.parametrize("text", [None, "", 7, "0001-01-01T00:00:00Z", "yesterday", "2026-01-01T00:00:00", "9" * 400])
def test_what_is_no_time(text: object) -> None:
    assert parse_time(text) is None


def test_whatever_a_server_sends_is_decoded() -> None:
    status = {"phase": "Failed", "reason": "Evicted", "conditions": [None, 3], "message": {}}
    status["containerStatuses"] = [None, {"state": []}, {"state": {"terminated": 3}}]
    metadata = {"uid": "u", "resourceVersion": "1", "ownerReferences": {}, "finalizers": "x"}
    metadata["managedFields"] = [None, {"subresource": "status", "time": 5}]
    assert isinstance(decode({"status": status, "metadata": metadata}), EvictedPod)
    for made in ({}, {"status": None, "metadata": []}, {"status": {"phase": "Failed", "reason": ["Evicted"]}}):
        assert decode(made) is None
