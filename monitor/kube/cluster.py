"""Which API server, how it is verified, with which token and certificate, and how to reach it from inside a pod:
`in_cluster`. Files are loaded again when they are rotated. By kubeconfig, and with tokens that a plugin prints:
`monitor.kube.kubeconfig`.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from monitor.documents import read_bytes, shown
from monitor.errors import CannotError, ConfigError
from monitor.kube.errors import CertificateError

#: Where a pod has its token and the cluster's CA.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: (mtime_ns, inode, size); a projected volume swaps a symlink, so the inode changes with every rotation.
Stamp = tuple[int, int, int]
Stamps = tuple[Stamp | None, ...]
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)


def stamp(path: Path) -> Stamp | None:
    """What changes when a file is rotated; None while it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


@dataclass(frozen=True)
class Pem:
    """PEM in a file or in ``data``. ``key`` says where it was named, for errors: file and key of a kubeconfig."""

    key: str
    path: Path | None = None
    data: bytes = b""

    def read(self) -> bytes:
        """Raises ConfigError."""
        if self.path is None:
            return self.data
        try:
            return read_bytes(self.path)
        except OSError as error:
            raise ConfigError(f"{self.key}: {self.path}: {error.strerror or error}", "name a readable file") from None


@dataclass(frozen=True)
class TlsSettings:
    """How a server is verified, and our client certificate with its key.

    Exactly one of: ``ca`` (certificates of it sign the server's, and its name has to be ``server_name`` or the host),
    ``pinned`` (the server shows one of these very certificates, whatever name and dates are in it), ``insecure``.
    With none of them the system's CAs.
    """

    ca: Pem | None = None
    pinned: tuple[Pem, ...] = ()
    insecure: bool = False
    client: tuple[Pem, Pem] | None = None
    server_name: str = ""

    def files(self) -> Iterator[Path]:
        for pem in (self.ca, *self.pinned, *(self.client or ())):
            if pem is not None and pem.path is not None:
                yield pem.path

    def stamps(self) -> Stamps:
        """Differs when a file was rotated."""
        return tuple(stamp(path) for path in self.files())

    def context(self) -> ssl.SSLContext:
        """Made of what is in the files now. Raises ConfigError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        for pem in self.pinned:
            _certificates(pem)  # a file without one is wrong now, not after a handshake
        if self.insecure or self.pinned:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.ca is not None:
            _load_ca(context, self.ca)
        else:
            context.load_default_certs()
        if self.client is not None:
            _load_certificate(context, *self.client)
        return context

    def check_pinned(self, shown: bytes, address: str) -> None:
        """``shown`` is the server's certificate, DER. Raises CertificateError, ConfigError."""
        if self.pinned and not self.insecure:
            known = [der for pem in self.pinned for der in _certificates(pem)]
            if shown not in known:
                names = ", ".join(str(pem.path or pem.key) for pem in self.pinned)
                raise CertificateError(
                    f"{address} shows a certificate that is not in {names}",
                    "another process has the port, or the kubelet's certificate is elsewhere: name its file or its CA",
                )


def _load_ca(context: ssl.SSLContext, ca: Pem) -> None:
    text = ca.read()
    where = f"{ca.key}: {ca.path}" if ca.path else ca.key
    try:
        # Comments may be in any encoding.
        context.load_verify_locations(cadata=text.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:  # ValueError: empty
        raise ConfigError(f"{where}: no certificates in PEM: {error}", "name the file of the cluster's CA") from None


def _load_certificate(context: ssl.SSLContext, certificate: Pem, key: Pem) -> None:
    # load_cert_chain takes only files. Of memory, so that no key is on a disk that was not there before.
    fds = [os.memfd_create(name) for name in ("certificate", "key")]
    try:
        for fd, pem in zip(fds, (certificate, key), strict=True):
            os.write(fd, pem.read())
        # The empty password: an encrypted key is an error, not a question on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{fds[0]}", f"/proc/self/fd/{fds[1]}", password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{certificate.key} and {key.key}: no certificate with its key in PEM: {error}", "name a pair that fits"
        ) from None
    finally:
        for fd in fds:
            os.close(fd)


def _certificates(pem: Pem) -> list[bytes]:
    """DER of every certificate in a PEM, also beside a private key."""
    try:
        found = [base64.b64decode(one) for one in _CERTIFICATE.findall(pem.read())]
    except binascii.Error as error:
        raise ConfigError(f"{pem.key}: {pem.path}: not PEM: {error}", "name the kubelet's certificate") from None
    if not found:
        raise ConfigError(f"{pem.key}: {pem.path or 'data'} has no certificate", "name the kubelet's certificate")
    return found


class Credentials:
    """The bearer token that identifies outrace ("": none), asked for before every request, from any thread. ``read``
    gives it, and what says whether it may still be used; it raises MonitorError, and runs once at a time. ``scheme`` is
    that of the header: of Basic the token is user and password.
    """

    def __init__(self, read: Callable[[], tuple[str, Callable[[], bool]]], scheme: str = "Bearer") -> None:
        self._read, self.scheme = read, scheme
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


def fixed(token: str = "", scheme: str = "Bearer") -> Credentials:
    return Credentials(lambda: (token, lambda: True), scheme)


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

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.https else 'http'}://{self.address}{self.prefix}"


@dataclass(frozen=True)
class ClusterConfig:
    """All that a client needs; client-go's rest.Config."""

    server: Server
    tls: TlsSettings = field(default_factory=TlsSettings)
    credentials: Credentials = field(default_factory=fixed)


def parse_server(url: str, where: str, https_port: int = 443, *, login: bool = False) -> Server:
    """``http(s)://HOST[:PORT][/prefix]``, with ``login`` also ``USER:PASSWORD@``, which no message shows. ``where``
    names file and key. Raises ConfigError.
    """
    remedy = "write https://HOST:PORT"
    named = shown(f"...@{url.rpartition('@')[2]}" if "@" in url else url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        problem = "is no URL" if "@" in url else error  # which may quote a part of a password
        raise ConfigError(f"{where}: {named}: {problem}", remedy) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"{where}: {named} is no http or https URL with a host", remedy)
    if (parts.username is not None and not login) or parts.query or parts.fragment:
        raise ConfigError(f"{where}: user, query and fragment do not belong there", remedy)
    if not (url.isascii() and url.isprintable()) or " " in url:
        raise ConfigError(f"{where}: {named} is not in printable ASCII without spaces", remedy)
    https = parts.scheme == "https"
    default = https_port if https else 80
    return Server(parts.hostname, default if port is None else port, https, parts.path.rstrip("/"))


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
