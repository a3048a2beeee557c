"""Which API server, with which token, and how to reach it from inside a pod: `in_cluster`. By kubeconfig, and with
tokens that a plugin prints: `monitor.kube.kubeconfig`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from monitor.documents import read_bytes, shown
from monitor.errors import CannotError, ConfigError
from monitor.kube.peer import Peer
from monitor.kube.tls import Pem, TlsSettings, stamp

#: Where a pod has its token and the cluster's CA.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Credentials:
    """The bearer token that identifies outrace ("": none), asked for before every request, from any thread. ``read``
    gives it, and what says whether it may still be used; it raises MonitorError, and runs once at a time.
    """

    def __init__(self, read: Callable[[], tuple[str, Callable[[], bool]]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._token = ""
        self._is_good: Callable[[], bool] = lambda: False

    def current(self) -> str:
        with self._lock:
            return self._token if self._is_good() else self._renewed()

    def refresh(self) -> str:
        """The same, read anew: the server answered 401 to the current one."""
        with self._lock:
            return self._renewed()

    def _renewed(self) -> str:
        self._token, self._is_good = self._read()
        return self._token


def fixed(token: str = "") -> Credentials:
    """A token that does not change, or none."""
    return Credentials(lambda: (token, lambda: True))


def token_file(path: Path, key: str = "token file") -> Credentials:
    """A token in a file, read again when it is rotated, and when the server refuses it.

    The kubelet renews a service account's after 80 % of its life; 2 us a look. While the file is away the last one is
    used on. ``key`` says where the file was named. Raises ConfigError.
    """

    def read() -> tuple[str, Callable[[], bool]]:
        now = stamp(path)  # before it is read: a rotation in between is seen at the next look
        try:
            token = read_bytes(path).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ConfigError(f"{key}: {path}: {why}", "name a readable file with a token") from None
        check_token(token, f"{key}: {path}")
        return token, lambda: stamp(path) in (now, None)

    made = Credentials(read)
    made.current()  # what is wrong with it is wrong now, not at the first request
    return made


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
    credentials: Credentials = field(default_factory=fixed)
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
    token = token_file(root / "token", "service account token")
    ca = Pem("service account CA", root / "ca.crt")
    tls = TlsSettings(ca=ca)
    tls.context()
    return ClusterConfig(Server(host.strip("[]"), int(port)), tls, token)
