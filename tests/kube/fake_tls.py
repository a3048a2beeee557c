"""A certificate authority of the test's own, made by the openssl command."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path

    def server_context(self, client_ca: Path | None = None) -> ssl.SSLContext:
        """For a server; with ``client_ca`` it asks for a client certificate, without insisting."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


class Authority:
    """A CA; ``certificate`` is its file."""

    def __init__(self, directory: Path, name: str = "test-ca") -> None:
        self._directory = directory
        self._pair = Pair(directory / f"{name}.crt", directory / f"{name}.key")
        self.certificate = self._pair.certificate
        _make(self._pair, name, "-addext", "keyUsage=critical,keyCertSign")

    def issue(self, name: str, *sans: str) -> Pair:
        """A certificate for these names and addresses."""
        pair = Pair(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        kinds = {san: "IP" if ":" in san or san.replace(".", "").isdigit() else "DNS" for san in sans or (name,)}
        listed = ",".join(f"{kind}:{san}" for san, kind in kinds.items())
        extensions = ("-addext", f"subjectAltName={listed}", "-addext", "basicConstraints=critical,CA:FALSE")
        _make(pair, name, "-CA", str(self._pair.certificate), "-CAkey", str(self._pair.key), *extensions)
        return pair


def _make(pair: Pair, name: str, *more: str) -> None:
    """A key, and its certificate for two days."""
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    files = ("-subj", f"/CN={name}", "-keyout", str(pair.key), "-out", str(pair.certificate))
    done = subprocess.run(["openssl", *new, *files, *more], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
