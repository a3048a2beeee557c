"""``--pods auto``: where this machine's pods come from, and why."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from monitor.errors import MonitorError
from monitor.kube.client import ApiClient
from monitor.kube.cluster import ClusterConfig
from monitor.kube.errors import Forbidden, Unauthorized
from monitor.kube.kubelet import KubeletClient
from monitor.kube.resources import PODS
from monitor.pods.access import Access
from monitor.pods.spec import APISERVER, KUBELET, MANIFEST_DIR, Choice, without_cluster

#: Seconds that one server may take to answer, at the start.
_TIMEOUT_S = 3.0
#: Spec, name and a question to a server that may have the pods.
_Tried = tuple[str, str, Callable[[], object]]


def choose(access: Access, manifest_dir: Path = MANIFEST_DIR) -> Choice:
    """The first of: the kubelet's pods, the API server's for this node, manifests, cgroups. (The kubelet's read-only
    port is without authentication: `--pods kubelet:http://...` takes it.)

    On a node of a cluster whose servers do not answer yet (it is booting, say) it is the cluster all the same: what was
    known before the restart is stored, and a guess would rank wrongly.
    """
    tried: list[str] = []
    waiting = ""
    for spec, name, ask in _servers(access, tried):
        try:
            ask()
        except (Forbidden, Unauthorized) as error:
            tried.append(f"{name}: {error}")
        except MonitorError as error:
            tried.append(f"{name}: {error}")
            waiting = waiting or spec
        else:
            here = f" ({access.kubelet})" if access.kubelet.is_there else ""
            return Choice(spec, f"{name} answers{here}", tuple(tried), access.kubelet.is_there)
    if waiting and access.kubelet.is_there:
        why = f"this is a node of a cluster ({access.kubelet}) whose servers do not answer yet"
        return Choice(waiting, why, tuple(tried), True)
    return without_cluster(tried, access.kubelet.is_there, manifest_dir)


def _servers(access: Access, tried: list[str]) -> list[_Tried]:
    """What may have the pods, best first."""
    kubelet, cluster, credentials = access.kubelet, None, ""
    if kubelet.refused:
        tried.append(kubelet.refused)
    try:
        cluster, credentials = access.api_server()
    except MonitorError as error:
        if kubelet.is_there:
            tried.append(str(error))
    found: list[_Tried] = []
    if cluster is not None:
        if kubelet.is_there and not kubelet.refused:
            found += _secure(access, cluster, tried)
        found += _api_server(access, cluster, credentials, tried)
    return found


def _secure(access: Access, cluster: ClusterConfig, tried: list[str]) -> Iterator[_Tried]:
    url = access.kubelet.url
    try:
        # The kubelet's own credentials are a client certificate, and it does not let itself in with that.
        if cluster.credentials.current().token:
            server = access.kubelet_server(credentials=cluster.credentials)
            yield f"{KUBELET}:{url}", f"the kubelet at {url}", _asks(KubeletClient(server, timeout_s=_TIMEOUT_S))
    except MonitorError as error:
        tried.append(f"the kubelet at {url}: {error}")


def _api_server(access: Access, cluster: ClusterConfig, credentials: str, tried: list[str]) -> Iterator[_Tried]:
    try:
        node = access.node
    except MonitorError as error:
        tried.append(str(error))
        return
    client = ApiClient(cluster, threading.Event(), timeout_s=_TIMEOUT_S)

    def ask() -> None:
        selector = f"spec.nodeName={node}"
        try:
            client.list(PODS, lambda _: None, field_selector=selector, resource_version="0", timeout_s=_TIMEOUT_S)
        finally:
            client.close()

    yield APISERVER, f"the API server at {cluster.server} ({credentials})", ask


def _asks(client: KubeletClient) -> Callable[[], object]:
    def ask() -> None:
        try:
            client.pods(lambda _: None)
        finally:
            client.close()

    return ask
