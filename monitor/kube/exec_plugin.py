"""Exec credential plugins of a kubeconfig (aws eks get-token, gke-gcloud-auth-plugin, kubelogin ...).

Run when credentials are needed, again when they have expired or were refused. Its standard input is empty: a plugin
that asks questions fails instead of waiting.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from monitor.documents import UnreadableError, from_json, shortened, shown
from monitor.errors import ConfigError, MonitorError
from monitor.kube.auth import Credential, check_token
from monitor.kube.tls import Pem

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
#: A plugin may ask an identity provider over the network.
TIMEOUT_S = 30.0
_MAX_OUTPUT = 1 << 20
#: Renewed this long before it expires.
_EARLY_S = 10.0


@dataclass(frozen=True)
class ExecSpec:
    """A plugin; ``where`` is file and key, ``cluster`` what `provideClusterInfo` gives it, ``hint`` its installHint."""

    where: str
    api_version: str
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    cluster: Mapping[str, object] | None = None
    hint: str = ""


class ExecPlugin:
    """Credentials that a plugin prints."""

    def __init__(
        self,
        spec: ExecSpec,
        now: Callable[[], float] = time.time,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if spec.api_version not in _VERSIONS:
            raise ConfigError(
                f"{spec.where}.apiVersion: {shown(spec.api_version)} is not supported", f"use {_VERSIONS[0]}"
            )
        self._spec = spec
        self._now = now
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._credential: Credential | None = None
        self._expires: float | None = None

    def current(self) -> Credential:
        with self._lock:
            if self._credential is None or (self._expires is not None and self._now() > self._expires - _EARLY_S):
                return self._run()
            return self._credential

    def refresh(self) -> Credential:
        with self._lock:
            return self._run()

    def _run(self) -> Credential:
        spec = self._spec
        asked: dict[str, object] = {"interactive": False}
        if spec.cluster is not None:
            asked["cluster"] = spec.cluster
        info = {"apiVersion": spec.api_version, "kind": "ExecCredential", "spec": asked}
        env = {**os.environ, **dict(spec.env), "KUBERNETES_EXEC_INFO": json.dumps(info)}
        code, output, errors = self._output(env)
        if code:
            raise MonitorError(f"{spec.where}: {spec.command[0]} ended with {code}: {_one_line(errors)}")
        self._credential, self._expires = self._parse(output[:_MAX_OUTPUT])
        return self._credential

    def _output(self, env: Mapping[str, str]) -> tuple[int, bytes, str]:
        """Exit code, standard output and standard error of a run."""
        spec = self._spec
        try:
            process = subprocess.Popen(
                spec.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"{spec.where}.command: {spec.command[0]}: {error}", _one_line(spec.hint)) from None
        with process:
            try:
                output, errors = process.communicate(timeout=self._timeout_s)
            except subprocess.TimeoutExpired:
                raise MonitorError(f"{spec.where}: {spec.command[0]} took more than {self._timeout_s:.3g} s") from None
            finally:
                process.kill()  # does nothing to one that has ended
        return process.returncode, output, errors.decode(errors="replace")

    def _parse(self, output: bytes) -> tuple[Credential, float | None]:
        where = f"{self._spec.where}: what {self._spec.command[0]} prints"
        try:
            made = from_json(output.decode())
        except (UnreadableError, UnicodeDecodeError) as error:
            raise MonitorError(f"{where} is no ExecCredential: {error}") from None
        status = made.get("status") if isinstance(made, dict) else None
        if not isinstance(status, dict) or made.get("kind") != "ExecCredential":
            raise MonitorError(f"{where} is no ExecCredential with a status")
        if made.get("apiVersion") != self._spec.api_version:
            raise MonitorError(f"{where} has apiVersion {shown(made.get('apiVersion'))}, not {self._spec.api_version}")
        token, certificate, key = (
            value if isinstance(value := status.get(name), str) else ""
            for name in ("token", "clientCertificateData", "clientKeyData")
        )
        if token:
            check_token(token, where)
        if not token and not (certificate and key):
            raise MonitorError(f"{where} has neither a token nor a client certificate with its key")
        pair = (Pem(where, data=certificate.encode()), Pem(where, data=key.encode())) if certificate and key else None
        return Credential(token, pair), _expiry(status.get("expirationTimestamp"), where)


def _expiry(value: object, where: str) -> float | None:
    if value is None:
        return None
    # Python 3.11 reads "Z"; Go writes nanoseconds, of which Python takes six digits.
    text = re.sub(r"(\.\d{6})\d+", r"\1", value) if isinstance(value, str) else ""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise MonitorError(f"{where} has expirationTimestamp {shown(value)}") from None


def _one_line(text: str) -> str:
    return shortened(" ".join(text.split()), 200)
