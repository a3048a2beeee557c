"""How a cluster is reached: which credentials, which kubelet, which API server; the feed of its pods; and, for ``--pods
auto``, whether one of its servers answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from monitor.errors import ConfigError, MonitorError
from monitor.kube import kubeconfig
from monitor.kube.client import PODS, ApiClient
from monitor.kube.cluster import ClusterConfig, Credentials, Pem, TlsSettings, in_cluster
from monitor.kube.errors import Forbidden, Unauthorized
from monitor.kube.kubelet import KubeletClient, kubelet_config, pinned
from monitor.owner import distrust_file
from monitor.pods.feed import ApiServerFeed, KubeletFeed, PodCache, PodFeed
from monitor.pods.installations import NodeKubelet, find_kubelet
from monitor.pods.model import Ends
from monitor.pods.spec import APISERVER, KUBELET, Choice, without_cluster

#: Seconds that one server may take to answer, at the start.
_TIMEOUT_S = 3.0
#: Spec, name, and a server that may have the pods with the question to it.
_Tried = tuple[str, str, ApiClient | KubeletClient, Callable[[], object]]


@dataclass(frozen=True)
class Access:
    """What the user gave; "" is: as found. ``kubelet`` is the one of this node."""

    kubeconfig: str = ""
    node_name: str = ""
    kubelet_ca: str = ""
    kubelet: NodeKubelet = field(default_factory=NodeKubelet)

    @classmethod
    def found(cls, config: object, kubelet: NodeKubelet | None = None) -> Access:
        """With the options of a configuration, on this machine. What `outrace run` found at its start is in the
        configuration (`settled`), and not looked for again: the kubelet may be away by then, and its flags with it.
        """
        given = {name: getattr(config, name) for name in ("kubeconfig", "node_name", "kubelet_ca")}
        if kubelet is None and (flags := dict(config.kubelet_flags)):  # type: ignore[attr-defined]
            found = Path(flags["kubeconfig"]) if "kubeconfig" in flags else None
            kubelet = NodeKubelet(flags=flags, kubeconfig=found)
        return cls(**given, kubelet=kubelet or find_kubelet())

    def settled(self) -> dict[str, Any]:
        """Fields of a configuration with what was found; the service account of a pod is found by its environment."""
        flags = {"cert-dir": str(self.kubelet.pki), "hostname-override": self.node}
        if self.kubelet.certificates:
            flags["tls-cert-file"] = str(self.kubelet.certificates[0])
        flags |= {key: value for key in ("address", "port") if (value := self.kubelet.setting(key))}
        if self.kubelet.kubeconfig is not None:
            flags["kubeconfig"] = str(self.kubelet.kubeconfig)  # no --kubeconfig: its exec plugin may not run
        return {"node_name": self.node, "kubelet_flags": flags}

    @property
    def node(self) -> str:
        """Raises ConfigError where it cannot be known: another name has no pods, and nothing would be reported."""
        if self.node_name or self.kubelet.flags.get("hostname-override"):
            return self.node_name or self.kubelet.node_name
        if self._in_pod:
            raise ConfigError(
                "the name of the node is not known in a pod", "give --node-name, in a DaemonSet from spec.nodeName"
            )
        return self.kubelet.node_name

    @property
    def _in_pod(self) -> bool:
        return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))

    def api_server(self) -> tuple[ClusterConfig, str]:
        """The API server, and where its credentials come from: as given, a pod's, the kubelet's own. ConfigError.

        Only of a kubeconfig that was given does an exec plugin run.
        """
        if self.kubeconfig:
            return self._given, f"--kubeconfig {self.kubeconfig}"
        if self._in_pod:
            return in_cluster(os.environ), "the service account of this pod"
        if self.kubelet.kubeconfig is not None:
            found = kubeconfig.load((self.kubelet.kubeconfig,), plugins=False)
            return found, f"the kubelet's own {self.kubelet.kubeconfig}"
        raise ConfigError(
            "no credentials for an API server: not in a pod, and no kubeconfig of a kubelet here",
            "give --kubeconfig FILE",
        )

    @cached_property
    def _given(self) -> ClusterConfig:
        """Of the kubeconfig that was given. Its plugin runs once for all requests that go out from here."""
        return kubeconfig.load((Path(self.kubeconfig),))

    def kubelet_server(self, url: str = "", credentials: Credentials | None = None) -> ClusterConfig:
        """The kubelet at ``url`` ("": of this node). ConfigError."""
        where, kubelet = "--pods kubelet", self.kubelet
        if not self.kubelet_ca and kubelet.refused:
            raise ConfigError(kubelet.refused)
        ca = Path(self.kubelet_ca)
        paths = (ca,) if self.kubelet_ca else (*kubelet.certificates, kubelet.pki, *kubelet.serving)
        for problem in filter(None, map(distrust_file, paths)):
            raise ConfigError(f"the kubelet's certificate is not believed: {problem}")
        if self.kubelet_ca:
            tls = TlsSettings(ca=Pem(f"{where}: CA", ca), server_name=self.node)
        else:
            tls = pinned(kubelet.certificates, kubelet.serving, where)
        return kubelet_config(url or kubelet.url, tls, credentials, where)

    def server(self, kind: str, argument: str) -> ClusterConfig:
        """What ``--pods kubelet[:URL]`` or ``apiserver`` names. ConfigError."""
        api_server, _ = self.api_server()
        return api_server if kind == APISERVER else self.kubelet_server(argument, api_server.credentials)

    def feed(self, kind: str, argument: str, state_dir: Path | None, ends: Ends | None = None) -> PodFeed:
        """The feed of ``--pods kubelet[:URL]`` or ``apiserver``. ConfigError."""
        cache = PodCache(state_dir, self.node) if state_dir is not None else None
        server = self.server(kind, argument)
        if kind == APISERVER:
            where, selector = f"pods of {self.node} at {server.server}", f"spec.nodeName={self.node}"
            return ApiServerFeed(ApiClient(server), selector, where, cache, ends)
        return KubeletFeed(KubeletClient(server), f"pods of the kubelet at {server.server}", cache, ends)


# ---- ``--pods auto``


def choose(access: Access) -> Choice:
    """The first of: the kubelet's pods, the API server's for this node, manifests, cgroups.

    On a node of a cluster whose servers do not answer yet (it is booting, say) the choice is still the cluster: what
    was known before the restart is stored, and a guess would rank wrongly.
    """
    tried = [access.kubelet.refused] if access.kubelet.refused else []
    waiting = ""
    for spec, name, client, ask in list(_servers(access, tried)):
        try:
            with closing(client):
                ask()
        except MonitorError as error:
            tried.append(f"{name}: {error}")
            if not isinstance(error, Forbidden | Unauthorized):
                waiting = waiting or spec
        else:
            here = f" ({access.kubelet})" if access.kubelet.is_there else ""
            return Choice(spec, f"{name} answers{here}", tuple(tried), access.kubelet.is_there)
    if waiting and access.kubelet.is_there:
        why = f"this is a node of a cluster ({access.kubelet}) whose servers do not answer yet"
        return Choice(waiting, why, tuple(tried), True)
    return without_cluster(tried, access.kubelet.is_there)


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
        if kubelet.is_there and not kubelet.refused and cluster.credentials.current():
            own = KubeletClient(access.kubelet_server(credentials=cluster.credentials), timeout_s=_TIMEOUT_S)
            yield f"{KUBELET}:{kubelet.url}", name, own, partial(own.pods, lambda _: None)
    except MonitorError as error:
        tried.append(f"{name}: {error}")
    try:
        selector = f"spec.nodeName={access.node}"
    except MonitorError as error:
        tried.append(str(error))
        return
    client = ApiClient(cluster, timeout_s=_TIMEOUT_S)
    ask = partial(
        client.list, PODS, lambda _: None, field_selector=selector, resource_version="0", timeout_s=_TIMEOUT_S
    )
    yield APISERVER, f"the API server at {cluster.server} ({credentials})", client, ask
