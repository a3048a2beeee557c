"""A kubeconfig, as kubectl reads it: one file, or several of ``$KUBECONFIG``, where the first that has a name wins.

Whatever is wrong is one ConfigError that names the file and the key. Not taken: `proxy-url` (there is no proxy),
`auth-provider` (removed in Kubernetes 1.26), basic auth (removed in 1.19), impersonation.

Root believes no file that others can change (`monitor.owner.alone`), and runs a plugin only of a file that was named.

Exec credential plugins (aws eks get-token, gke-gcloud-auth-plugin, kubelogin ...) run when credentials are needed, and
again when they have expired or were refused. Their standard input is empty: one that asks questions fails instead of
waiting.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from monitor.documents import UnreadableError, decoded, from_json, from_yaml, read_bytes, shortened, shown
from monitor.errors import ConfigError, MonitorError
from monitor.kube.auth import Credential, Credentials, Fixed, TokenFile, check_token
from monitor.kube.cluster import SERVICE_ACCOUNT, ClusterConfig, in_cluster, parse_server
from monitor.kube.tls import Pem, TlsSettings
from monitor.owner import ChangeableError, alone, program, search_path

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
    try:
        return datetime.fromisoformat(value if isinstance(value, str) else "").timestamp()
    except ValueError:
        raise MonitorError(f"{where} has expirationTimestamp {shown(value)}") from None


def _one_line(text: str) -> str:
    return shortened(" ".join(text.split()), 200)


_SECTIONS = {"clusters": "cluster", "users": "user", "contexts": "context"}
_REFUSED = {
    "proxy-url": "proxies are not supported; remove it, or use an address that is reached without",
    "auth-provider": "auth-provider was removed in Kubernetes 1.26; use exec",
    "username": "basic auth was removed in Kubernetes 1.19; use a token or a client certificate",
    "password": "basic auth was removed in Kubernetes 1.19; use a token or a client certificate",
    **dict.fromkeys(
        ("as", "as-uid", "as-groups", "as-user-extra"), "impersonation is not supported; use a user of its own"
    ),
}


@dataclass(frozen=True)
class _Entry:
    """A map of a kubeconfig; ``where`` is file and key. Relative paths in it are relative to the file."""

    path: Path
    key: str
    values: Mapping[str, Any]

    def where(self, key: str) -> str:
        return f"{self.path}: {self.key}.{key}"

    def check_refused(self) -> None:
        for key, why in _REFUSED.items():
            if self.values.get(key):
                raise ConfigError(f"{self.where(key)}: {why}")

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{self.where(key)}: {shown(value)} is no text", "put it in quotes")
        return value or ""

    def flag(self, key: str) -> bool:
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.where(key)}: {shown(value)} is neither true nor false")
        return value

    def file(self, key: str) -> Path | None:
        text = self.text(key)
        return self.path.parent / text if text else None

    def pem(self, key: str) -> Pem | None:
        """``key``-data, else the file named by ``key``."""
        data = self.text(f"{key}-data")
        if data:
            try:
                return Pem(self.where(f"{key}-data"), data=base64.b64decode(data, validate=True))
            except (binascii.Error, ValueError) as error:
                raise ConfigError(f"{self.where(f'{key}-data')}: no base64: {error}") from None
        path = self.file(key)
        return Pem(self.where(key), path) if path else None


def default_paths(env: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The files that kubectl would read."""
    listed = tuple(Path(name) for name in env.get("KUBECONFIG", "").split(os.pathsep) if name)
    return listed or (Path(env.get("HOME", "/root")) / ".kube/config",)


def find(
    kubeconfig: str = "",
    context: str = "",
    env: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> ClusterConfig:
    """The cluster that is meant: by the file that is named, by $KUBECONFIG, the one we are in, by ~/.kube/config.

    Raises ConfigError; CannotError where there is none of them.
    """
    if kubeconfig:
        return load((Path(kubeconfig),), context)
    paths = default_paths(env)
    inside = env.get("KUBERNETES_SERVICE_HOST") and not _is_missing(service_account / "token") and not context
    if not env.get("KUBECONFIG") and (inside or _is_missing(paths[0])):
        return in_cluster(env, service_account)
    return load(paths, context, plugins=alone() is None)  # root runs one only of a file that is named


def load(paths: tuple[Path, ...], context: str = "", *, plugins: bool = True) -> ClusterConfig:
    """The cluster of ``context``, else of `current-context`. ``plugins``: whether an exec plugin may run. Raises
    ConfigError.
    """
    present = [path for path in paths if len(paths) == 1 or not _is_missing(path)]
    for path in present:
        _check_alone(path, f"{path}")
    files = [(path, _read(path)) for path in present]
    names = ", ".join(str(path) for path in paths)
    if not files:
        raise ConfigError(f"kubeconfig: none of {names} exists", "name a file that does")
    current = next((_Entry(path, "", made) for path, made in files if made.get("current-context")), None)
    name = context or (current.text("current-context") if current else "")
    if not name:
        raise ConfigError(f"{names}: current-context: is not set", "set it, or name a context")
    chosen = _find(files, "contexts", name, "the context" if context else "current-context")
    chosen.check_refused()
    cluster = _find(files, "clusters", chosen.text("cluster"), chosen.where("cluster"))
    cluster.check_refused()
    user = _Entry(files[0][0], "users", {})
    if chosen.text("user"):
        user = _find(files, "users", chosen.text("user"), chosen.where("user"))
    user.check_refused()
    server = parse_server(cluster.text("server"), cluster.where("server"))
    tls = _tls(cluster, user)
    for path in tls.files():
        _check_alone(path, f"{chosen.path}: {path}")
    if server.https:
        tls.context()  # whatever is in the files is wrong now, not at the first connection
    if not plugins and user.values.get("exec") is not None:
        where = user.where("exec")
        raise ConfigError(
            f"{where}: a plugin runs only from a kubeconfig that is given", f"give --kubeconfig {user.path}"
        )
    return ClusterConfig(server, tls, _credentials(cluster, user))


def _check_alone(path: Path, where: str) -> None:
    if (distrust := alone()) is not None and (problem := distrust(path)):
        raise ConfigError(f"{where}: not believed: {problem}, or name a copy that root alone can write")


def _tls(cluster: _Entry, user: _Entry) -> TlsSettings:
    ca, insecure = cluster.pem("certificate-authority"), cluster.flag("insecure-skip-tls-verify")
    if ca is not None and insecure:
        where = cluster.where("insecure-skip-tls-verify")
        raise ConfigError(f"{where}: is set beside a certificate-authority", "remove one of them")
    certificate, key = user.pem("client-certificate"), user.pem("client-key")
    if (certificate is None) != (key is None):
        have, miss = ("client-certificate", "client-key")[:: 1 if key is None else -1]
        raise ConfigError(f"{user.where(miss)}: is missing beside {have}", "name both")
    client = (certificate, key) if certificate is not None and key is not None else None
    return TlsSettings(ca, (), insecure, client, cluster.text("tls-server-name"))


def _credentials(cluster: _Entry, user: _Entry) -> Credentials:
    spec = user.values.get("exec")
    if spec is not None:
        if user.text("token") or user.text("tokenFile"):
            raise ConfigError(f"{user.where('exec')}: stands beside a token", "remove one of them")
        return ExecPlugin(_exec_spec(cluster, user, spec))
    if (path := user.file("tokenFile")) is not None:  # before the token, as client-go does
        _check_alone(path, user.where("tokenFile"))
        token_file = TokenFile(path, user.where("tokenFile"))
        token_file.current()
        return token_file
    if token := user.text("token"):
        check_token(token, user.where("token"))
    return Fixed(token)


def _exec_spec(cluster: _Entry, user: _Entry, values: object) -> ExecSpec:
    if not isinstance(values, dict):
        raise ConfigError(f"{user.where('exec')}: {shown(values)} is no map")
    entry = _Entry(user.path, f"{user.key}.exec", values)
    command = _command(entry)
    if entry.text("interactiveMode") == "Always":
        raise ConfigError(f"{entry.where('interactiveMode')}: Always: a plugin that asks questions cannot be used here")
    args = entry.values.get("args") or []
    if not isinstance(args, list) or not all(isinstance(one, str) for one in args):
        raise ConfigError(f"{entry.where('args')}: {shown(args)} is no list of texts", "put each in quotes")
    env = entry.values.get("env") or []
    if not isinstance(env, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("value"), str) for one in env
    ):
        raise ConfigError(f"{entry.where('env')}: {shown(env)} is no list of name and value")
    info: dict[str, object] = {"server": cluster.text("server")}
    if ca := cluster.pem("certificate-authority"):
        info["certificate-authority-data"] = base64.b64encode(ca.read()).decode()
    if name := cluster.text("tls-server-name"):
        info["tls-server-name"] = name
    if cluster.flag("insecure-skip-tls-verify"):
        info["insecure-skip-tls-verify"] = True
    return ExecSpec(
        where=f"{user.path}: {user.key}.exec",
        api_version=entry.text("apiVersion"),
        command=(command, *args),
        env=(
            *((("PATH", search_path()),) if alone() is not None else ()),
            *((one["name"], one["value"]) for one in env),
        ),
        cluster=info if entry.flag("provideClusterInfo") else None,
        hint=entry.text("installHint"),
    )


def _command(entry: _Entry) -> str:
    """The program of a plugin. Raises ConfigError where there is none, or others could change what root runs."""
    where, command = entry.where("command"), entry.text("command")
    if not command:
        raise ConfigError(f"{where}: is missing", "name the plugin's program")
    if "/" in command:
        command = str(entry.path.parent / command)
        _check_alone(Path(command), where)
    elif alone() is not None:
        try:
            return program(command)
        except ChangeableError as error:
            raise ConfigError(f"{where}: not believed: {error}") from None
        except OSError as error:
            raise ConfigError(f"{where}: {command}: {error.strerror}", "name it by its absolute path") from None
    return command


def _is_missing(path: Path) -> bool:
    """Whether the file is missing, and may be skipped as kubectl does. A file that stat(2) cannot reach may exist: the
    read after this reports why it fails. `Path.exists` would raise.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _read(path: Path) -> dict[str, Any]:
    try:
        text = decoded(read_bytes(path))
        documents = [from_json(text)] if text.lstrip().startswith("{") else [one for one in from_yaml(text) if one]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", "name a readable kubeconfig") from None
    except UnreadableError as error:
        raise ConfigError(f"{path}: {error}") from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise ConfigError(f"{path}: no kubeconfig: it has to be one map", "name a readable kubeconfig")
    found: dict[str, Any] = documents[0]
    if found.get("kind", "Config") != "Config":
        raise ConfigError(f"{path}: kind: {shown(found['kind'])} is not Config", "name a kubeconfig")
    for section in _SECTIONS:
        listed = found.get(section) or []
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            raise ConfigError(f"{path}: {section}: is no list of maps")
    return found


def _find(files: list[tuple[Path, dict[str, Any]]], section: str, name: str, asked_by: str) -> _Entry:
    known = []
    for path, made in files:
        for one in made.get(section) or []:
            if one.get("name") == name:
                values = one.get(_SECTIONS[section]) or {}
                key = f"{section}[{name}].{_SECTIONS[section]}"
                if not isinstance(values, dict):
                    raise ConfigError(f"{path}: {key}: {shown(values)} is no map")
                return _Entry(path, key, values)
            known.append(shown(one.get("name")))
    where = asked_by if asked_by.startswith(str(files[0][0])) else f"{files[0][0]}: {asked_by}"
    listed = ", ".join(known[:5]) or "none"
    raise ConfigError(f"{where}: {section} has no {shown(name)}", f"there are: {listed}")
