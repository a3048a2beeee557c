"""The kubelet's own endpoints: https on 10250 with a token.

A kubelet's serving certificate often has no known CA: the kubelet makes its own. Ways to verify it, safest first:

* `pinned`: it shows the very certificate that lies in its directory on this node, where only root can write.
  The default on the node; names and dates in the certificate do not matter.
* `ca`: a CA file; the cluster's with `serverTLSBootstrap` and approved requests. The name is the node's.

The port is above 1023: while the kubelet is down any local user can listen there. So nothing is sent before the
certificate is checked, and there is no plain http (`readOnlyPort`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from monitor.errors import ConfigError
from monitor.kube.cluster import ClusterConfig, Credentials, Pem, TlsSettings, fixed, parse_server
from monitor.kube.decode import ItemDecoder, Object, parse_object
from monitor.kube.errors import KubeError
from monitor.kube.transport import Transport

T = TypeVar("T")

PORT = 10250
#: Bytes of configz.
_MAX_ANSWER = 1 << 20


def pinned(given: Sequence[Path], own: Sequence[Path], where: str = "kubelet") -> TlsSettings:
    """By the certificates themselves: the kubelet's `tlsCertFile`, and those of its ``own`` that are there. Raises
    ConfigError where there is none.
    """
    found = (*given, *filter(os.path.exists, own))
    if not found:
        raise ConfigError(
            f"{where}: no certificate of a kubelet: there is no {' and no '.join(map(str, own))}",
            "mount that directory, or give the CA that signed the kubelet's certificate",
        )
    return TlsSettings(pinned=tuple(Pem(f"{where}: certificate", path) for path in found))


def kubelet_config(
    url: str, tls: TlsSettings, credentials: Credentials | None = None, where: str = "kubelet"
) -> ClusterConfig:
    """The kubelet at ``url``, as `https://127.0.0.1:10250`. Raises ConfigError."""
    server = parse_server(url, where, PORT)
    tls.context()
    return ClusterConfig(server, tls, credentials or fixed())


class KubeletClient(Transport):
    def pods(self, decode: Callable[[Object], T | None]) -> tuple[T, ...]:
        """The node's pods as the kubelet knows them, static ones too; what ``decode`` makes of each, without None."""
        what = "get the kubelet's /pods"
        with self.ask("GET", "/pods", what, _rule("pods")) as answer:
            decoder = ItemDecoder(answer.chunks(), what)
            found = tuple(one for one in map(decode, decoder.items()) if one is not None)
        if "items" not in decoder.envelope:
            raise KubeError(f"{what}: the answer has no items")
        return found

    def configz(self) -> Object:
        """The KubeletConfiguration that is in force, without apiVersion and kind."""
        what = "get the kubelet's /configz"
        with self.ask("GET", "/configz", what, _rule("configz")) as answer:
            found = parse_object(answer.all(_MAX_ANSWER), what).get("kubeletconfig")
        if not isinstance(found, dict):
            raise KubeError(f"{what}: the answer has no kubeletconfig")
        return found


def _rule(right: str) -> str:
    # KubeletFineGrainedAuthz, on by default since 1.33.
    rule = f'{{apiGroups: [""], resources: ["nodes/{right}"], verbs: ["get"]}}'
    return f'{rule} (before Kubernetes 1.33 resources: ["nodes/proxy"])'
