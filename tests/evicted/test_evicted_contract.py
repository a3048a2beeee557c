"""Sweeps against the fake API server and, unchanged, with KUBECONFIG, a real one: what deleting is built on.

No scheduler and no kubelet takes part: the pods have no node, and their status is patched.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from monitor.evicted.sweep import CHANGED, DELETED, GONE, MARKED, EvictedPod, Sweep
from monitor.kube.client import PODS, ApiClient
from tests.evicted.made import evicted, stamp
from tests.kube import test_contract as contract

target, client, namespace = contract.target, contract.client, contract.namespace
Object = dict[str, Any]


class Cluster:
    """A namespace in which pods end as the test wants."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    def put(self, name: str, reason: str = "Evicted", phase: str = "Failed", **metadata: Any) -> str:
        """Its uid."""
        made = contract.a_pod(name, app="x")
        made["metadata"] |= metadata
        made["spec"]["terminationGracePeriodSeconds"] = 600
        uid = contract.uid(self.client.create(PODS, made, self.namespace))
        status = {"phase": phase, "reason": reason, "conditions": evicted(name)["status"]["conditions"][:1]}
        status["conditions"][0] |= {"status": "True", "lastTransitionTime": stamp(0.0)}
        self.client.patch(PODS, name, {"status": status}, self.namespace, subresource="status")
        return uid

    @property
    def sweep(self) -> Sweep:
        return Sweep(self.client, rate=1000.0)

    def find(self) -> list[EvictedPod]:
        return self.sweep.find((self.namespace,))

    @property
    def names(self) -> set[str]:
        return set(self.client.list(PODS, contract.named, namespace=self.namespace).items)

    def patch(self, name: str, body: Object) -> None:
        self.client.patch(PODS, name, body, self.namespace, merge=True)


def outcomes(sweep: Sweep, pods: Sequence[EvictedPod]) -> dict[str, int]:
    return dict([*sweep.delete(pods)][-1].outcomes)


@pytest.fixture
def cluster(client: ApiClient, namespace: str) -> Cluster:
    return Cluster(client, namespace)


def test_the_evicted_go_at_once_and_without_force(cluster: Cluster) -> None:
    for name, reason, phase in (
        ("lost", "NodeLost", "Failed"),
        ("shut", "Terminated", "Failed"),
        ("done", "Evicted", "Succeeded"),
        ("runs", "Evicted", "Running"),
    ):
        cluster.put(name, reason, phase)
    for name in "abc":
        cluster.put(name)
    found = cluster.sweep.find((cluster.namespace,))
    assert sorted(pod.name for pod in found) == ["a", "b", "c"]
    assert outcomes(cluster.sweep, found) == {DELETED: 3}
    assert cluster.names == {"lost", "shut", "done", "runs"}
    assert outcomes(cluster.sweep, found) == {GONE: 3}


def test_what_changed_meanwhile_is_left_to_the_next_sweep(cluster: Cluster) -> None:
    for name in ("touched", "anew", "anew-evicted"):
        cluster.put(name)
    found = cluster.find()
    cluster.patch("touched", {"metadata": {"annotations": {"touched": "yes"}}})
    for name in ("anew", "anew-evicted"):
        cluster.client.delete(PODS, name, cluster.namespace, grace_period_s=0)
    cluster.put("anew", "", "Running")
    cluster.put("anew-evicted")
    assert outcomes(cluster.sweep, found) == {CHANGED: 3}
    assert cluster.names == {"touched", "anew", "anew-evicted"}
    assert outcomes(cluster.sweep, cluster.find()) == {DELETED: 2}
    assert cluster.names == {"anew"}


def test_finalizers_keep_a_pod_that_is_marked(cluster: Cluster) -> None:
    cluster.put("mine", finalizers=["example.com/mine"])
    cluster.put("jobs", finalizers=["batch.kubernetes.io/job-tracking"])
    by_name = {pod.name: pod for pod in cluster.find()}
    assert by_name["jobs"].stays == "its Job has not counted it yet"
    assert outcomes(cluster.sweep, [by_name["mine"]]) == {MARKED: 1}
    again = {pod.name: pod.stays for pod in cluster.find()}
    assert again["mine"] == "is being deleted"
    for name in ("mine", "jobs"):
        cluster.patch(name, {"metadata": {"finalizers": None}})
    assert cluster.names == {"jobs"}
