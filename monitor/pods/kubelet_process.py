"""The kubelet of this node: its process, its flags, the files that it was started with."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from monitor import documents

if TYPE_CHECKING:
    from monitor.kube.kubelet import KubeletTrust

#: Where installers put the kubelet's configuration, and the credentials it has at the API server: kubeadm, EKS and
#: kops, k3s, MicroK8s.
CONFIG = Path("/var/lib/kubelet/config.yaml")
KUBECONFIGS = tuple(
    map(
        Path,
        (
            "/etc/kubernetes/kubelet.conf",
            "/var/lib/kubelet/kubeconfig",
            "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
            "/var/snap/microk8s/current/credentials/kubelet.config",
        ),
    )
)


@dataclass(frozen=True)
class KubeletProcess:
    """``pid`` is 0 where there is none, or it is not running yet; ``config`` is its file, {} if there is none.

    ``config_path`` is where that file was read, in the kubelet's own mount namespace if it has one.
    """

    pid: int = 0
    flags: Mapping[str, str] = field(default_factory=dict)
    config_path: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    kubeconfig: Path | None = None

    @property
    def is_there(self) -> bool:
        return self.pid > 0 or self.config_path is not None

    @property
    def node_name(self) -> str:
        """As the kubelet registers itself: ``--hostname-override``, else the host's name in small letters."""
        return (self.flags.get("hostname-override") or socket.gethostname()).strip().lower()

    @property
    def url(self) -> str:
        """Where it serves https, from this node."""
        address = str(self.config.get("address") or self.flags.get("address") or "")
        host = "127.0.0.1" if address in ("", "0.0.0.0", "::") else address
        return f"https://{f'[{host}]' if ':' in host else host}:{_port(self.config.get('port')) or 10250}"

    @property
    def read_only_url(self) -> str:
        """Where it serves http, "" where it does not: that is the default."""
        port = _port(self.config.get("readOnlyPort") or self.flags.get("read-only-port"))
        return f"http://{self.url.removeprefix('https://').rpartition(':')[0]}:{port}" if port else ""

    @property
    def trust(self) -> KubeletTrust:
        """Its own certificate, as it lies on this node."""
        from monitor.kube.kubelet import (  # ssl takes 20 ms to import, on machines without a kubelet too
            PKI,
            KubeletTrust,
        )

        pinned = self.config.get("tlsCertFile") or self.flags.get("tls-cert-file")
        pki = Path(self.flags.get("cert-dir") or PKI)
        return KubeletTrust(certificates=(Path(str(pinned)),) if pinned else (), pki=pki)

    def __str__(self) -> str:
        found = [f"process {self.pid}"] if self.pid else []
        return ", ".join(found + ([f"configuration {self.config_path}"] if self.config_path else []))


def find_kubelet() -> KubeletProcess:
    """The kubelet that runs in our pid namespace as root, else what its usual files say."""
    pid, arguments = _running()
    flags = _flags(arguments)
    root = Path("/") if not pid else Path(f"/proc/{pid}/root")
    named = flags.get("config", "")
    wanted = Path(named) if named.startswith("/") else CONFIG
    config_path, config = None, {}
    for path in (root / wanted.relative_to("/"), wanted):
        with suppress(OSError, documents.UnreadableError, documents.NotAFileError):
            read = next(iter(documents.from_yaml(documents.decoded(documents.read_bytes(path)))), None)
            if isinstance(read, dict):
                config_path, config = path, read
                break
    candidates = [Path(flags["kubeconfig"])] if flags.get("kubeconfig", "").startswith("/") else list(KUBECONFIGS)
    kubeconfig = next((path for path in candidates if path.is_file()), None)
    return KubeletProcess(pid, flags, config_path, config, kubeconfig)


def _running() -> tuple[int, Sequence[str]]:
    """Pid and arguments of the kubelet; (0, ()) if there is none. One in a container (kind) is another node's."""
    ours = os.stat("/proc/self/ns/pid").st_ino
    for process in psutil.process_iter(["name", "uids"]):
        if process.info["name"] != "kubelet" or process.info["uids"] is None or process.info["uids"].real != 0:
            continue
        with suppress(psutil.Error, OSError):
            if os.stat(f"/proc/{process.pid}/ns/pid").st_ino == ours:
                return process.pid, process.cmdline()[1:]
    return 0, ()


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    """``--name=value`` and ``--name value``, as pflag reads them; a switch has the value "true"."""
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        one = rest.pop(0)
        if not one.startswith("--") or one == "--":
            continue
        name, equals, value = one.removeprefix("--").partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        found[name] = value
    return found


def _port(value: object) -> int:
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65536 else 0
