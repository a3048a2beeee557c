"""A kubelet and its API server, of a real cluster alone (KUBECONFIG): what the one has of pods the other has too."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from monitor.kube.client import ApiClient
from monitor.kube.cluster import ClusterConfig, Server
from monitor.kube.errors import TransportError
from monitor.kube.kubeconfig import default_paths, load
from monitor.kube.kubelet import KubeletClient
from monitor.kube.resources import NODES, PODS
from tests.kube.test_contract import Object, named, uid


@pytest.mark.cluster
def test_a_kubelet_and_its_api_server_agree() -> None:
    """(The certificate is not verified here: how it can be is for each cluster to know.)"""
    config = load(default_paths())
    with contextlib.closing(ApiClient(config)) as api:
        nodes = api.list(NODES, lambda found: found).items
        if not nodes:
            pytest.skip("the cluster has no node")
        with contextlib.closing(reachable(config, nodes[0]["status"])) as kubelet:
            agree(api, kubelet, named(nodes[0]))


def reachable(config: ClusterConfig, status: Object) -> KubeletClient:
    """The kubelet by the address of its node, or on this machine, where that is the node."""
    address = next(one["address"] for one in status["addresses"] if one["type"] == "InternalIP")
    tls = dataclasses.replace(config.tls, ca=None, insecure=True, server_name="")
    tried = []
    for host in (address, "127.0.0.1"):
        server = Server(host, status["daemonEndpoints"]["kubeletEndpoint"]["Port"])
        kubelet = KubeletClient(ClusterConfig(server, tls, config.credentials))
        try:
            kubelet.healthz()
        except TransportError as error:
            tried.append(str(error))
            kubelet.close()
        else:
            return kubelet
    pytest.skip(f"the kubelet cannot be reached from here: {'; '.join(tried)}")


def agree(api: ApiClient, kubelet: KubeletClient, name: str) -> None:
    known = api.list(PODS, uid, field_selector=f"spec.nodeName={name}").items
    static = "kubernetes.io/config.mirror"
    own = kubelet.pods(lambda found: found["metadata"].get("annotations", {}).get(static) or uid(found))
    mirrors = api.list(PODS, lambda found: found["metadata"].get("annotations", {}).get(static) and uid(found))
    assert set(known) - set(mirrors.items) <= set(own)
    assert "evictionHard" in kubelet.configz()
