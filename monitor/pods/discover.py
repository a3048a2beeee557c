"""``--pods auto``: where this machine's pods come from, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from monitor.errors import MonitorError
from monitor.kube.client import ApiClient
from monitor.kube.decode import Object
from monitor.kube.errors import Forbidden, Unauthorized
from monitor.kube.kubelet import KubeletClient
from monitor.kube.resources import PODS
from monitor.pods.access import Access
from monitor.pods.spec import APISERVER, KUBELET, MANIFEST_DIR, Choice, without_cluster

#: Seconds that one server may take to answer, at the start.
_TIMEOUT_S = 3.0
#: Spec, name, and a server that may have the pods with the question to it.
_Tried = tuple[str, str, ApiClient | KubeletClient, Callable[[], object]]


def choose(access: Access, manifest_dir: Path = MANIFEST_DIR) -> Choice:
    """The first of: the kubelet's pods, the API server's for this node, manifests, cgroups. (The kubelet's read-only
    port is without authentication: `--pods kubelet:http://...` takes it.)

    On a node of a cluster whose servers do not answer yet (it is booting, say) it is the cluster all the same: what was
    known before the restart is stored, and a guess would rank wrongly.
    """
    tried = [access.kubelet.refused] if access.kubelet.refused else []
    waiting = ""
    for spec, name, client, ask in list(_servers(access, tried)):
        try:
            with closing(client):
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


def _servers(access: Access, tried: list[str]) -> Iterator[_Tried]:
    """What may have the pods, best first; ``tried`` gets why one cannot be asked."""
    kubelet = access.kubelet
    try:
        cluster, credentials = access.api_server()
    except MonitorError as error:
        if kubelet.is_there:
            tried.append(str(error))
        return
    name = f"the kubelet at {kubelet.url}"
    try:
        # The kubelet's own credentials are a client certificate, and it does not let itself in with that.
        if kubelet.is_there and not kubelet.refused and cluster.credentials.current().token:
            own = KubeletClient(access.kubelet_server(credentials=cluster.credentials), timeout_s=_TIMEOUT_S)
            yield f"{KUBELET}:{kubelet.url}", name, own, partial(own.pods, _nothing)
    except MonitorError as error:
        tried.append(f"{name}: {error}")
    try:
        selector = f"spec.nodeName={access.node}"
    except MonitorError as error:
        tried.append(str(error))
        return
    client = ApiClient(cluster, timeout_s=_TIMEOUT_S)
    ask = partial(client.list, PODS, _nothing, field_selector=selector, resource_version="0", timeout_s=_TIMEOUT_S)
    yield APISERVER, f"the API server at {cluster.server} ({credentials})", client, ask


def _nothing(_: Object) -> None:
    """What is kept of a pod while it only has to be seen that there are any."""
