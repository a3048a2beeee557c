"""``--pods auto``: where this machine's pods come from, and why."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from monitor.errors import MonitorError
from monitor.kube.client import ApiClient
from monitor.kube.errors import Forbidden, Unauthorized
from monitor.kube.kubelet import KubeletClient
from monitor.kube.resources import PODS
from monitor.pods.access import Access
from monitor.pods.spec import APISERVER, CGROUPS, KUBELET, MANIFESTS

#: Where a VM has manifests of its own, if nothing else is said.
MANIFEST_DIR = Path("/etc/outrace/pods")
#: Seconds that one server may take to answer, at the start.
_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Choice:
    """``spec`` is what ``--pods`` would say. ``why`` is one line for the log; ``tried``: what did not do, and why."""

    spec: str
    why: str
    tried: list[str] = field(default_factory=list)


def choose(access: Access, manifest_dir: Path = MANIFEST_DIR) -> Choice:
    """The first of: the kubelet's pods, the API server's for this node, manifests, cgroups.

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
            return Choice(
                spec, f"{name} answers ({access.kubelet})" if access.kubelet.is_there else f"{name} answers", tried
            )
    if waiting and access.kubelet.is_there:
        return Choice(waiting, f"this is a node of a cluster ({access.kubelet}) whose servers do not answer yet", tried)
    if manifest_dir.is_dir():
        return Choice(f"{MANIFESTS}:{manifest_dir}", f"{manifest_dir} is there, and no kubelet", tried)
    return Choice(CGROUPS, f"no kubelet here and no {manifest_dir}", tried)


def _servers(access: Access, tried: list[str]) -> list[tuple[str, str, Callable[[], object]]]:
    """Spec, name and a question to each server that may have the pods, best first."""
    found: list[tuple[str, str, Callable[[], object]]] = []
    try:
        cluster, credentials = access.api_server()
    except MonitorError as error:
        cluster = None
        if access.kubelet.is_there:
            tried.append(str(error))
    kubelet = access.kubelet
    if kubelet.is_there and cluster is not None and cluster.credentials.current().token:
        try:
            server = access.kubelet_server(credentials=cluster.credentials)
            asked = _asks(KubeletClient(server, timeout_s=_TIMEOUT_S))
            found.append((f"{KUBELET}:{kubelet.url}", f"the kubelet at {kubelet.url}", asked))
        except MonitorError as error:
            tried.append(str(error))
    if kubelet.read_only_url:
        server = access.kubelet_server(kubelet.read_only_url)
        name = f"the kubelet's read-only port at {kubelet.read_only_url}"
        found.append((f"{KUBELET}:{kubelet.read_only_url}", name, _asks(KubeletClient(server, timeout_s=_TIMEOUT_S))))
    if cluster is not None:
        client = ApiClient(cluster, threading.Event(), timeout_s=_TIMEOUT_S)

        def ask() -> None:
            selector = f"spec.nodeName={access.node}"
            client.list(PODS, lambda _: None, field_selector=selector, resource_version="0", timeout_s=_TIMEOUT_S)
            client.close()

        found.append((APISERVER, f"the API server at {cluster.server} ({credentials})", ask))
    return found


def _asks(client: KubeletClient) -> Callable[[], object]:
    def ask() -> None:
        client.pods(lambda _: None)
        client.close()

    return ask
