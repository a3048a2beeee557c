"""The CAs that outrace trusts and its own certificate, in TLS: files are loaded again when they are rotated."""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from monitor.documents import read_bytes
from monitor.errors import ConfigError
from monitor.kube.errors import CertificateError

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
