"""Which API server, with which token, and how to reach it from inside a pod: `in_cluster`. By kubeconfig, and with
tokens that a plugin prints: `monitor.kube.kubeconfig`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from monitor.documents import read_bytes, shown
from monitor.errors import CannotError, ConfigError
from monitor.kube.peer import Peer
from monitor.kube.tls import Pem, Stamp, TlsSettings, stamp

#: Where a pod has its token and the cluster's CA.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Credentials(Protocol):
    """Where the bearer token comes from that identifies outrace ("": none); called before every request, from any
    thread.
    """

    def current(self) -> str:
        """Raises MonitorError."""

    def refresh(self) -> str:
        """The same, read anew: the server answered 401 to the current one."""


class Fixed:
    """A token that does not change, or none."""

    def __init__(self, token: str = "") -> None:
        self._token = token

    def current(self) -> str:
        return self._token

    refresh = current


class TokenFile:
    """A token in a file, read again when it is rotated, and when the server refuses it.

    The kubelet renews a service account's after 80 % of its life; 2 us a look. While the file is away the last one is
    used on. ``key`` says where the file was named.
    """

    def __init__(self, path: Path, key: str = "token file") -> None:
        self._path = path
        self._key = key
        self._lock = threading.Lock()
        self._stamp: Stamp | None = None
        self._token = ""

    def current(self) -> str:
        now = stamp(self._path)
        with self._lock:
            if self._token and now in (self._stamp, None):
                return self._token
        return self.refresh()

    def refresh(self) -> str:
        now = stamp(self._path)  # before it is read: a rotation in between is seen at the next look
        try:
            token = read_bytes(self._path).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ConfigError(f"{self._key}: {self._path}: {why}", "name a readable file with a token") from None
        check_token(token, f"{self._key}: {self._path}")
        with self._lock:
            self._stamp, self._token = now, token
            return token


def check_token(token: str, where: str) -> None:
    """A token goes into a header as it is. Raises ConfigError, without the token."""
    if not token or not all("!" <= c <= "~" for c in token):
        raise ConfigError(f"{where}: {'empty' if not token else 'no token: it has spaces or control characters'}")


@dataclass(frozen=True)
class Server:
    """The address of a server: ``prefix`` comes before every path ("/k8s/clusters/c-1"), or is empty."""

    host: str
    port: int
    https: bool = True
    prefix: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.https else 'http'}://{host}:{self.port}{self.prefix}"


@dataclass(frozen=True)
class ClusterConfig:
    """All that a client needs; client-go's rest.Config. ``peer``: which user's process may serve it."""

    server: Server
    tls: TlsSettings = field(default_factory=TlsSettings)
    credentials: Credentials = field(default_factory=Fixed)
    peer: Peer = Peer.ANYBODY


def parse_server(url: str, where: str, ports: tuple[int, int] = (80, 443)) -> Server:
    """``http(s)://HOST[:PORT][/prefix]``; ``where`` names file and key. Raises ConfigError."""
    remedy = "write https://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{where}: {shown(url)}: {error}", remedy) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{where}: {shown(url)} is no http or https URL with a host", remedy)
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(f"{where}: user, query and fragment do not belong there", remedy)
    if not (url.isascii() and url.isprintable()) or " " in url:
        raise ConfigError(f"{where}: {shown(url)} is not in printable ASCII without spaces", remedy)
    https = parts.scheme == "https"
    return Server(parts.hostname, ports[https] if port is None else port, https, parts.path.rstrip("/"))


def in_cluster(env: Mapping[str, str] = os.environ, root: Path = SERVICE_ACCOUNT) -> ClusterConfig:
    """The API server of the cluster whose pod we are. Raises CannotError outside of one, ConfigError."""
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise CannotError(
            "not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set", "give a kubeconfig"
        )
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise ConfigError(f"KUBERNETES_SERVICE_PORT: {shown(port)} is no port")
    token = TokenFile(root / "token", "service account token")
    token.current()
    ca = Pem("service account CA", root / "ca.crt")
    tls = TlsSettings(ca=ca)
    tls.context()
    return ClusterConfig(Server(host.strip("[]"), int(port)), tls, token)
