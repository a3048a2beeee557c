"""How a cluster is reached: which credentials, which kubelet, which API server; and the feed of its pods."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monitor.errors import ConfigError
from monitor.kube import kubeconfig
from monitor.kube.auth import Credentials
from monitor.kube.client import ApiClient
from monitor.kube.cluster import ClusterConfig, in_cluster
from monitor.kube.kubelet import KubeletClient, KubeletTrust, kubelet_config
from monitor.owner import alone
from monitor.pods.api_server_feed import ApiServerFeed
from monitor.pods.cache import PodCache
from monitor.pods.feed import KubeletFeed, PodFeed
from monitor.pods.installations import find_kubelet
from monitor.pods.node_kubelet import NodeKubelet


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
        trust = self.kubelet.trust
        flags = {"cert-dir": str(trust.pki), "hostname-override": self.node}
        if trust.certificates:
            flags["tls-cert-file"] = str(trust.certificates[0])
        flags |= {key: value for key in ("address", "port") if (value := self.kubelet.setting(key))}
        if self.kubelet.kubeconfig is not None:
            flags["kubeconfig"] = str(self.kubelet.kubeconfig)  # no --kubeconfig: its exec plugin may not run
        return {"node_name": self.node, "kubelet_flags": flags}

    @property
    def kubeconfig_in_use(self) -> str:
        """The file by which the API server is reached; "" is the service account of this pod."""
        if self.kubeconfig or self._in_pod:
            return self.kubeconfig
        return str(self.kubelet.kubeconfig or "")

    @property
    def node(self) -> str:
        """Raises ConfigError where it cannot be known: another name has no pods, and nothing would be reported."""
        if self.node_name or self.kubelet.flags.get("hostname-override"):
            return self.node_name or self.kubelet.node_name
        if self._in_pod and not self._host_network:
            raise ConfigError(
                "the name of the node is not known in a pod", "give --node-name, in a DaemonSet from spec.nodeName"
            )
        return self.kubelet.node_name

    @property
    def _in_pod(self) -> bool:
        return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))

    @property
    def _host_network(self) -> bool:
        """Whether our host name is the machine's: the UTS namespace is that of process 1."""
        try:
            return os.stat("/proc/1/ns/uts").st_ino == os.stat("/proc/self/ns/uts").st_ino
        except OSError:
            return False

    def api_server(self, env: Mapping[str, str] = os.environ) -> tuple[ClusterConfig, str]:
        """The API server, and where its credentials come from: as given, a pod's, the kubelet's own. ConfigError.

        Only of a kubeconfig that was given does an exec plugin run.
        """
        if self.kubeconfig:
            return kubeconfig.load((Path(self.kubeconfig),)), f"--kubeconfig {self.kubeconfig}"
        if env.get("KUBERNETES_SERVICE_HOST"):
            return in_cluster(env), "the service account of this pod"
        if self.kubelet.kubeconfig is not None:
            found = kubeconfig.load((self.kubelet.kubeconfig,), plugins=False)
            return found, f"the kubelet's own {self.kubelet.kubeconfig}"
        raise ConfigError(
            "no credentials for an API server: not in a pod, and no kubeconfig of a kubelet here",
            "give --kubeconfig FILE",
        )

    def kubelet_server(self, url: str = "", credentials: Credentials | None = None) -> ClusterConfig:
        """The kubelet at ``url`` ("": of this node). ConfigError."""
        ca = Path(self.kubelet_ca) if self.kubelet_ca else None
        if ca is not None:
            trust = KubeletTrust(ca=ca, node_name=self.node)
        elif self.kubelet.refused and not url.startswith("http://"):
            raise ConfigError(self.kubelet.refused)
        else:
            trust = self.kubelet.trust
        if (distrust := alone()) is not None:
            for problem in filter(None, map(distrust, trust.paths())):
                raise ConfigError(f"the kubelet's certificate is not believed: {problem}")
        return kubelet_config(url or self.kubelet.url, trust, credentials, "--pods kubelet")

    def kubelet_of(self, argument: str) -> ClusterConfig:
        """The kubelet that ``--pods kubelet:ARGUMENT`` names. ConfigError."""
        if argument.startswith("http://"):
            return self.kubelet_server(argument)
        return self.kubelet_server(argument, self.api_server()[0].credentials)

    def check(self, kind: str, argument: str) -> None:
        """Raises ConfigError where the feed could not be made."""
        if kind == "apiserver":
            self.api_server()
        else:
            self.kubelet_of(argument)
        self.node  # noqa: B018 - raises

    def feed(self, kind: str, argument: str, state_dir: Path | None) -> PodFeed:
        """The feed of ``--pods kubelet[:URL]`` or ``apiserver``. ConfigError."""
        cache = PodCache(state_dir, self.node) if state_dir is not None else None
        if kind == "apiserver":
            config, _ = self.api_server()
            stop = threading.Event()
            client, selector = ApiClient(config, stop), f"spec.nodeName={self.node}"
            return ApiServerFeed(client, selector, f"pods of {self.node} at {config.server}", cache, stop)
        server = self.kubelet_of(argument)
        stop = threading.Event()
        return KubeletFeed(KubeletClient(server, stop), f"pods of the kubelet at {server.server}", cache, stop)
