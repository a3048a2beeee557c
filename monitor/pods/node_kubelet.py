"""The kubelet of this node, as its files configure it (`monitor.pods.installations` finds them)."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monitor.kube.kubelet import KubeletTrust


@dataclass(frozen=True)
class NodeKubelet:
    """``installation`` says where it was found, "" is: nowhere. ``config`` is its file, {} if there is none; ``flags``
    are those that its installer gives it.

    ``unread``: why its thresholds are not known from files. ``refused``: which file others can change, and the remedy;
    then nothing of it is believed.
    """

    installation: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)
    config_path: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    kubeconfig: Path | None = None
    drop_ins: tuple[tuple[Path, Mapping[str, Any]], ...] = ()  # of --config-dir, in order
    unread: str = ""
    refused: str = ""

    @property
    def is_there(self) -> bool:
        return bool(self.installation)

    @property
    def node_name(self) -> str:
        """As the kubelet registers itself: ``--hostname-override``, else the host's name in small letters (in a pod
        without hostNetwork that is the pod's name, not the host's: see `Access.node`).
        """
        return (self.flags.get("hostname-override") or socket.gethostname()).strip().lower()

    @property
    def url(self) -> str:
        """Where it serves https, from this node."""
        address = self.setting("address")
        host = "127.0.0.1" if address in ("", "0.0.0.0", "::") else address
        return f"https://{f'[{host}]' if ':' in host else host}:{_port(self.setting('port')) or 10250}"

    @property
    def trust(self) -> KubeletTrust:
        """Its own certificate, as it lies on this node."""
        from monitor.kube.kubelet import (  # ssl takes 20 ms to import, on machines without a kubelet too
            PKI,
            KubeletTrust,
        )

        pinned = self.setting("tlsCertFile", "tls-cert-file")
        certificates = (Path(pinned),) if pinned.startswith("/") else ()
        return KubeletTrust(certificates=certificates, pki=Path(self.flags.get("cert-dir") or PKI))

    def setting(self, key: str, flag: str = "") -> str:
        """What is in force: the flag, else the last drop-in that says something, else the file; "" for nothing."""
        if text := self.flags.get(flag or key):
            return text
        files = (*(content for _, content in reversed(self.drop_ins)), self.config)
        return next((str(content[key]) for content in files if content.get(key) is not None), "")

    def __str__(self) -> str:
        return f"{self.installation}: {self.config_path}" if self.config_path else self.installation


def _port(value: object) -> int:
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65536 else 0
