"""What we take for granted about an API server and a kubelet, asked of the fake and, with KUBECONFIG, of a real one.

A real cluster needs no scheduler and no controllers for it. Everything is done in a namespace of its own, with pods
that no scheduler takes; it is removed in the end.
"""

import contextlib
import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.kube import errors
from monitor.kube.client import EVENTS, NODES, PODS, ApiClient, Resource
from monitor.kube.cluster import ClusterConfig, Server, fixed
from monitor.kube.decode import ADDED, BOOKMARK, DELETED, MODIFIED
from monitor.kube.kubeconfig import default_paths, load
from monitor.kube.kubelet import KubeletClient
from monitor.settings.config import RunConfig
from monitor.side.cluster.node import NodeReport
from monitor.side.export.log import Log
from tests.kube.fake_apiserver import named
from tests.kube.running import Running

NAMESPACES = Resource("", "v1", "namespaces", namespaced=False)
ACCOUNTS = Resource("", "v1", "serviceaccounts")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets")
Object = dict[str, Any]


@pytest.fixture(params=["fake", pytest.param("cluster", marks=pytest.mark.cluster)])
def target(request: pytest.FixtureRequest) -> ClusterConfig:
    if request.param == "cluster":
        return load(default_paths())
    request.getfixturevalue("api")
    return request.getfixturevalue("config")


@pytest.fixture
def client(target: ClusterConfig, connect: Callable[..., ApiClient]) -> ApiClient:
    return connect(target)


@pytest.fixture
def namespace(client: ApiClient) -> Iterator[str]:
    name = f"outrace-contract-{uuid.uuid4().hex[:8]}"
    client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:  # a controller may be faster
        client.create(ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, name)
    except errors.AlreadyExists:
        pass
    yield name
    for one in client.list(PODS, named, namespace=name).items:
        client.delete(PODS, one, name, grace_period_s=0)
    client.delete(NAMESPACES, name)


def a_pod(name: str, **labels: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "schedulerName": "outrace-nobody",
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "registry.invalid/none"}],
        },
    }


def uid(found: Object) -> str:
    return str(found["metadata"]["uid"])


def test_pages_and_the_cache_give_the_same(client: ApiClient, namespace: str) -> None:
    for i in range(5):
        client.create(PODS, a_pod(f"p{i}"), namespace)
    paged = client.list(PODS, uid, namespace=namespace, page_size=2)
    whole = client.list(PODS, uid, namespace=namespace, resource_version=paged.resource_version)
    assert sorted(paged.items) == sorted(whole.items)
    assert len(paged.items) == 5
    one = client.list(PODS, named, namespace=namespace, field_selector="metadata.name=p3,spec.nodeName=")
    assert one.items in (("p3",), ())  # the fake leaves out empty fields
    with pytest.raises(errors.ApiError, match="field label not supported"):
        client.list(PODS, named, namespace=namespace, field_selector="spec.nothing=x")


def test_a_version_that_is_still_to_come_is_a_timeout(client: ApiClient) -> None:
    listed = client.list(PODS, named)
    with pytest.raises(errors.ServerError) as caught:
        client.list(PODS, named, resource_version=str(int(listed.resource_version) + 10**9))
    assert caught.value.has_cause("ResourceVersionTooLarge")


def test_a_watch_reports_what_happens(client: ApiClient, namespace: str) -> None:
    start = client.list(PODS, named, namespace=namespace).resource_version
    with client.watch(PODS, start, namespace=namespace, watch_s=30, silence_s=20) as events:
        made = client.create(PODS, a_pod("a"), namespace)
        client.patch(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, namespace)
        client.delete(PODS, "a", namespace, grace_period_s=0)
        again = client.create(PODS, a_pod("a"), namespace)
        heard = []
        for event in events:
            if event.kind != BOOKMARK:
                heard.append((event.kind, uid(event.object)))
                assert event.resource_version == event.object["metadata"]["resourceVersion"]
            if heard and heard[-1] == (ADDED, uid(again)):
                break
    kinds = [kind for kind, _ in heard]
    assert kinds[0] == kinds[-1] == ADDED
    assert MODIFIED in kinds
    assert heard[-2] == (DELETED, uid(made))
    assert uid(made) != uid(again)


def test_a_version_of_long_ago_has_expired(client: ApiClient) -> None:
    """An API server knows no change from before it was started. (That of a cluster which was made a moment ago does:
    restart it before this test.)
    """
    with pytest.raises(errors.ResourceExpired, match="too old resource version"), client.watch(PODS, "1") as events:
        next(events)


def test_a_watch_ends_when_it_was_to(client: ApiClient, namespace: str) -> None:
    start = client.list(PODS, named, namespace=namespace).resource_version
    began = time.monotonic()
    with client.watch(PODS, start, namespace=namespace, watch_s=1, silence_s=20) as events:
        assert [one.kind for one in events if one.kind != BOOKMARK] == []
    assert time.monotonic() - began > 0.5


def test_an_evicted_status_is_taken(client: ApiClient, namespace: str) -> None:
    made = client.create(PODS, a_pod("a"), namespace)
    assert made["status"]["phase"] == "Pending"
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
    client.patch(PODS, "a", {"status": ready}, namespace, subresource="status")
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
        "message": "low on memory",
    }
    status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory", "conditions": [target]}
    body = {"metadata": {"uid": uid(made)}, "status": status}
    after = client.patch(PODS, "a", body, namespace, subresource="status")["status"]
    assert (after["phase"], after["reason"]) == ("Failed", "Evicted")
    assert {"Ready", "DisruptionTarget"} <= {one["type"] for one in after["conditions"]}
    seen = client.get(PODS, "a", namespace)
    assert seen["status"]["message"] == "The node was low on memory"
    # Without the subresource a status is ignored.
    client.patch(PODS, "a", {"status": {"phase": "Running"}}, namespace)
    assert client.get(PODS, "a", namespace)["status"]["phase"] == "Failed"


def test_what_a_patch_may_not(client: ApiClient, namespace: str) -> None:
    client.create(PODS, a_pod("a"), namespace)
    with pytest.raises(errors.Invalid, match="qosClass"):
        client.patch(PODS, "a", {"status": {"qosClass": "Guaranteed"}}, namespace, subresource="status")
    other = {"metadata": {"uid": str(uuid.uuid4())}, "status": {"phase": "Failed"}}
    with pytest.raises(errors.Conflict):
        client.patch(PODS, "a", other, namespace, subresource="status")
    older = {"metadata": {"resourceVersion": "1"}, "status": {"phase": "Failed"}}
    with pytest.raises(errors.Conflict):
        client.patch(PODS, "a", older, namespace, subresource="status", merge=True)
    with pytest.raises(errors.NotFound):
        client.patch(PODS, "b", {"status": {}}, namespace, subresource="status")


def test_events_are_created_once_and_where_their_pod_is(client: ApiClient, namespace: str) -> None:
    made: Object = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "a.17", "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": namespace},
        "reason": "Evicted",
        "message": "The node was low on memory",
        "type": "Warning",
    }
    client.create(EVENTS, made, namespace)
    with pytest.raises(errors.AlreadyExists):
        client.create(EVENTS, made, namespace)
    made["metadata"]["name"], made["involvedObject"]["namespace"] = "b.17", "default"
    with pytest.raises(errors.Invalid):
        client.create(EVENTS, made, namespace)


def test_evictions_ask_the_budget(client: ApiClient, namespace: str) -> None:
    made = client.create(PODS, a_pod("a", app="a"), namespace)
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "a"}, "spec": spec}
    client.create(BUDGETS, budget, namespace)
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    client.patch(PODS, "a", {"status": running}, namespace, subresource="status")
    with pytest.raises(errors.TooManyRequests) as caught:
        client.evict("a", namespace, uid=uid(made))
    assert caught.value.budget_blocks
    client.patch(PODS, "a", {"status": {"phase": "Failed"}}, namespace, subresource="status")
    with pytest.raises(errors.Conflict):
        client.evict("a", namespace, uid=str(uuid.uuid4()))
    client.evict("a", namespace, uid=uid(made), grace_period_s=0)
    with pytest.raises(errors.NotFound):
        client.get(PODS, "a", namespace)


def test_the_taints_of_others_stay(client: ApiClient) -> None:
    """A real server adds its own to a new node (not-ready), and a patch from an older version is a Conflict."""
    name = f"outrace-contract-{uuid.uuid4().hex[:8]}"
    theirs = {"key": "team", "value": "a", "effect": "NoSchedule"}
    client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": [theirs]}})
    try:
        before = client.get(NODES, name)
        config = RunConfig(node_taints="own")
        state: Any = SimpleNamespace(state=True, conditions={"MemoryPressure"}, config=config)
        report = NodeReport(client, name, state, Log())
        report.write_taints()
        after = client.get(NODES, name)["spec"]["taints"]
        assert after == [*before["spec"]["taints"], {"key": "outrace.io/memory-pressure", "effect": "NoSchedule"}]
        stale = {"metadata": {"resourceVersion": before["metadata"]["resourceVersion"]}, "spec": {"taints": None}}
        with pytest.raises(errors.Conflict):
            client.patch(NODES, name, stale, merge=True)
        report.make_taints(client, set())
        assert client.get(NODES, name)["spec"]["taints"] == before["spec"]["taints"]
    finally:
        client.delete(NODES, name)


def test_a_missing_right_is_named(
    client: ApiClient, target: ClusterConfig, namespace: str, connect: Callable[..., ApiClient]
) -> None:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    made = client._call("create", ACCOUNTS, namespace, "default", "token", body=request)
    without = dataclasses.replace(target.tls, client=None)
    other = connect(dataclasses.replace(target, tls=without, credentials=fixed(made["status"]["token"])))
    with pytest.raises(errors.Forbidden) as caught:
        other.list(PODS, named, namespace=namespace)
    assert 'resources: ["pods"], verbs: ["list"]' in caught.value.remedy
    with pytest.raises(errors.Forbidden) as caught:
        other.patch(PODS, "a", {"status": {}}, namespace, subresource="status")
    assert 'resources: ["pods/status"], verbs: ["patch"]' in caught.value.remedy
    with pytest.raises(errors.Forbidden) as caught, other.watch(PODS, "0", namespace=namespace):
        pass
    assert 'resources: ["pods"], verbs: ["watch"]' in caught.value.remedy
    stranger = connect(dataclasses.replace(target, tls=without, credentials=fixed("no-token-at-all")))
    with pytest.raises(errors.Unauthorized):
        stranger.list(PODS, named)


def test_a_feed_knows_what_there_is(client: ApiClient, target: ClusterConfig, namespace: str) -> None:
    client.create(PODS, a_pod("a"), namespace)
    stop = threading.Event()
    watching = ApiClient(target, stop)
    running = Running(watching, f"metadata.namespace={namespace}")
    try:
        running.knows("a:Pending")
        client.create(PODS, a_pod("b"), namespace)
        client.patch(PODS, "a", {"status": {"phase": "Failed"}}, namespace, subresource="status")
        running.knows("a:Failed", "b:Pending")
        client.delete(PODS, "a", namespace, grace_period_s=0)
        running.knows("b:Pending")
        assert running.lists == 1
    finally:
        running.close()
        running.thread.join(60)


@pytest.mark.cluster
def test_a_kubelet_and_its_api_server_agree() -> None:
    config = load(default_paths())
    with contextlib.closing(ApiClient(config)) as api:
        nodes = api.list(NODES, lambda found: found).items
        if not nodes:
            pytest.skip("the cluster has no node")
        with contextlib.closing(reachable(config, nodes[0]["status"])) as kubelet:
            known = api.list(PODS, uid, field_selector=f"spec.nodeName={named(nodes[0])}").items
            static = "kubernetes.io/config.mirror"
            own = kubelet.pods(lambda found: found["metadata"].get("annotations", {}).get(static) or uid(found))
            mirrors = api.list(PODS, lambda found: found["metadata"].get("annotations", {}).get(static) and uid(found))
            assert set(known) - set(mirrors.items) <= set(own)
            assert "evictionHard" in kubelet.configz()


def reachable(config: ClusterConfig, status: Object) -> KubeletClient:
    """The kubelet by the address of its node, or on this machine, where that is the node."""
    address = next(one["address"] for one in status["addresses"] if one["type"] == "InternalIP")
    tls = dataclasses.replace(config.tls, ca=None, insecure=True, server_name="")
    tried = []
    for host in (address, "127.0.0.1"):
        server = Server(host, status["daemonEndpoints"]["kubeletEndpoint"]["Port"])
        kubelet = KubeletClient(ClusterConfig(server, tls, config.credentials))
        try:
            kubelet.configz()
        except errors.TransportError as error:
            tried.append(str(error))
            kubelet.close()
        else:
            return kubelet
    pytest.skip(f"the kubelet cannot be reached from here: {'; '.join(tried)}")
