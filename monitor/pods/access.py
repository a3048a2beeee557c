"""How a cluster is reached: which credentials, which kubelet, which API server; and the feed of its pods."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from monitor.errors import ConfigError
from monitor.kube import kubeconfig
from monitor.kube.auth import Credentials
from monitor.kube.client import ApiClient
from monitor.kube.cluster import ClusterConfig, in_cluster
from monitor.kube.kubelet import KubeletClient, KubeletTrust, kubelet_config
from monitor.kube.reflector import ListWatch
from monitor.kube.resources import PODS
from monitor.pods.cache import PodCache
from monitor.pods.feed import ApiServerFeed, KubeletFeed, PodFeed
from monitor.pods.kubelet_process import KubeletProcess, find_kubelet


@dataclass(frozen=True)
class Access:
    """What the user gave; "" is: as found. ``kubelet`` is the one of this node."""

    kubeconfig: str = ""
    node_name: str = ""
    kubelet_ca: str = ""
    kubelet_insecure: bool = False
    kubelet: KubeletProcess = field(default_factory=KubeletProcess)

    @classmethod
    def found(cls, config: object) -> Access:
        """With the options of a configuration, on this machine."""
        given = {name: getattr(config, name) for name in ("kubeconfig", "node_name", "kubelet_ca", "kubelet_insecure")}
        return cls(**given, kubelet=find_kubelet())

    @property
    def node(self) -> str:
        return self.node_name or self.kubelet.node_name

    def api_server(self, env: Mapping[str, str] = os.environ) -> tuple[ClusterConfig, str]:
        """The API server, and where its credentials come from: as given, a pod's, the kubelet's own. ConfigError."""
        if self.kubeconfig:
            return kubeconfig.load((Path(self.kubeconfig),)), f"--kubeconfig {self.kubeconfig}"
        if env.get("KUBERNETES_SERVICE_HOST"):
            return in_cluster(env), "the service account of this pod"
        if self.kubelet.kubeconfig is not None:
            return kubeconfig.load((self.kubelet.kubeconfig,)), f"the kubelet's own {self.kubelet.kubeconfig}"
        raise ConfigError(
            "no credentials for an API server: not in a pod, and no kubeconfig of a kubelet here",
            "give --kubeconfig FILE",
        )

    def kubelet_server(self, url: str = "", credentials: Credentials | None = None) -> ClusterConfig:
        """The kubelet at ``url`` ("": of this node). ConfigError."""
        ca = Path(self.kubelet_ca) if self.kubelet_ca else None
        if ca is not None or self.kubelet_insecure:
            trust = KubeletTrust(ca=ca, insecure=self.kubelet_insecure, node_name=self.node if ca else "")
        else:
            trust = self.kubelet.trust
        return kubelet_config(url or self.kubelet.url, trust, credentials, "--pods kubelet")

    def feed(self, kind: str, argument: str, state_dir: Path | None) -> PodFeed:
        """The feed of ``--pods kubelet[:URL]`` or ``apiserver``. ConfigError."""
        cache = PodCache(state_dir, self.node) if state_dir is not None else None
        stop = threading.Event()
        if kind == "apiserver":
            config, _ = self.api_server()
            watch = ListWatch(ApiClient(config, stop), PODS, field_selector=f"spec.nodeName={self.node}")
            return ApiServerFeed(watch, f"pods of {self.node} at {config.server}", cache, stop)
        credentials = None
        if not argument.startswith("http://"):
            credentials = self.api_server()[0].credentials
        server = self.kubelet_server(argument, credentials)
        return KubeletFeed(KubeletClient(server, stop), f"pods of the kubelet at {server.server}", cache, stop)
