"""A kubeconfig, as kubectl reads it: one file, or several of ``$KUBECONFIG``, where the first that has a name wins.

Whatever is wrong is one ConfigError that names the file and the key.

Root believes no file that others can change (`monitor.owner.distrust_file`), and runs a plugin only of a file that was
named.

A plugin (`exec`) runs when its token is needed, and again when that has expired or was refused. One that gives a
certificate instead is not supported.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any

from monitor.documents import UnreadableError, decoded, from_json, from_yaml, one_line, read_bytes, shortened, shown
from monitor.errors import ConfigError, MonitorError
from monitor.kube.cluster import (
    SERVICE_ACCOUNT,
    ClusterConfig,
    Credentials,
    Pem,
    TlsSettings,
    check_token,
    fixed,
    in_cluster,
    parse_server,
    token_file,
)
from monitor.owner import ChangeableError, distrust_file, program, search_path

#: A plugin may ask an identity provider over the network.
TIMEOUT_S = 30.0
#: Renewed this long before it expires.
_EARLY_S = 10.0


def plugin(
    where: str, command: Sequence[str], env: Mapping[str, str], info: Mapping[str, object], timeout_s: float = TIMEOUT_S
) -> Credentials:
    """Tokens that a program prints: aws eks get-token, gke-gcloud-auth-plugin, kubelogin ... Its standard input is
    empty: one that asks questions fails instead of waiting. ``where`` is file and key.
    """
    name = f"{where}: {command[0]}"

    def run() -> tuple[str, Callable[[], bool]]:
        full = {**os.environ, **env, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=full, timeout=timeout_s)
        except (OSError, ValueError) as error:
            raise MonitorError(f"{name}: {error}") from None
        except subprocess.TimeoutExpired:
            raise MonitorError(f"{name} took more than {timeout_s:.3g} s") from None
        if done.returncode:
            errors = " ".join(done.stderr.decode(errors="replace").split())
            raise MonitorError(f"{name} ended with {done.returncode}: {shortened(errors, 200)}")
        try:
            status = from_json(done.stdout.decode())["status"]
            token, expires = "" + status["token"], status.get("expirationTimestamp")
            until = datetime.fromisoformat(expires).timestamp() - _EARLY_S if expires else inf
        except (UnreadableError, LookupError, TypeError, AttributeError, ValueError) as error:
            raise MonitorError(f"{name} prints no ExecCredential with a token: {one_line(error)}") from None
        check_token(token, f"{name} prints")
        return token, lambda: time.time() <= until

    return Credentials(run)


_SECTIONS = {"clusters": "cluster", "users": "user", "contexts": "context"}
#: Not supported: proxies; basic auth and auth-provider (removed in Kubernetes 1.19 and 1.26); impersonation.
_REFUSED = ("proxy-url", "auth-provider", "username", "password", "as", "as-uid", "as-groups", "as-user-extra")


@dataclass(frozen=True)
class _Entry:
    """A map of a kubeconfig; ``where`` is file and key. Relative paths in it are relative to the file."""

    path: Path
    key: str
    values: Mapping[str, Any]

    def where(self, key: str) -> str:
        return f"{self.path}: {self.key}.{key}"

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
    return load(paths, context, plugins=os.geteuid() != 0)  # root runs one only of a file that is named


def load(paths: tuple[Path, ...], context: str = "", *, plugins: bool = True) -> ClusterConfig:
    """The cluster of ``context``, else of `current-context`. ``plugins``: whether an exec plugin may run. Raises
    ConfigError.
    """
    present = [path for path in paths if len(paths) == 1 or not _is_missing(path)]
    names = ", ".join(str(path) for path in paths)
    if not present:
        raise ConfigError(f"kubeconfig: none of {names} exists", "name a file that does")
    current, entries = "", dict[tuple[str, str], _Entry]()
    for path in present:
        _check_alone(path, f"{path}")
        made = _read(path)
        current = current or _Entry(path, "", made).text("current-context")
        for section, kind in _SECTIONS.items():
            for one in made.get(section) or []:
                name = str(one.get("name"))
                entry = _Entry(path, f"{section}[{name}].{kind}", one.get(kind) or {})
                entries.setdefault((section, name), entry)
    if not context and not current:
        raise ConfigError(f"{names}: current-context: is not set", "set it, or name a context")
    asked_by = f"{present[0]}: {'the context' if context else 'current-context'}"
    chosen = _find(entries, "contexts", context or current, asked_by)
    cluster = _find(entries, "clusters", chosen.text("cluster"), chosen.where("cluster"))
    user = _Entry(present[0], "users", {})
    if chosen.text("user"):
        user = _find(entries, "users", chosen.text("user"), chosen.where("user"))
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
    if problem := distrust_file(path):
        raise ConfigError(f"{where}: not believed: {problem}, or name a copy that root alone can write")


def _tls(cluster: _Entry, user: _Entry) -> TlsSettings:
    ca, insecure = cluster.pem("certificate-authority"), cluster.flag("insecure-skip-tls-verify")
    if ca is not None and insecure:
        where = cluster.where("insecure-skip-tls-verify")
        raise ConfigError(f"{where}: is set beside a certificate-authority", "remove one of them")
    certificate, key = user.pem("client-certificate"), user.pem("client-key")
    if (certificate is None) != (key is None):
        where = user.where("client-key" if key is None else "client-certificate")
        raise ConfigError(f"{where}: is missing beside the other", "name both")
    client = (certificate, key) if certificate is not None and key is not None else None
    return TlsSettings(ca, (), insecure, client, cluster.text("tls-server-name"))


def _credentials(cluster: _Entry, user: _Entry) -> Credentials:
    if (spec := user.values.get("exec")) is not None:
        return _plugin(cluster, user, spec)
    if (path := user.file("tokenFile")) is not None:  # before the token, as client-go does
        _check_alone(path, user.where("tokenFile"))
        return token_file(path, user.where("tokenFile"))
    if token := user.text("token"):
        check_token(token, user.where("token"))
    return fixed(token)


def _plugin(cluster: _Entry, user: _Entry, values: object) -> Credentials:
    if not isinstance(values, dict):
        raise ConfigError(f"{user.where('exec')}: {shown(values)} is no map")
    entry = _Entry(user.path, f"{user.key}.exec", values)
    command, args = _command(entry), entry.values.get("args") or []
    if not isinstance(args, list) or not all(isinstance(one, str) for one in args):
        raise ConfigError(f"{entry.where('args')}: {shown(args)} is no list of texts", "put each in quotes")
    try:
        env = {str(one["name"]): str(one["value"]) for one in entry.values.get("env") or ()}
    except (TypeError, LookupError):
        raise ConfigError(f"{entry.where('env')}: is no list of name and value") from None
    if os.geteuid() == 0:
        env = {"PATH": search_path(), **env}
    asked: dict[str, object] = {"interactive": False}
    if entry.flag("provideClusterInfo"):
        ca = cluster.pem("certificate-authority")
        data = {} if ca is None else {"certificate-authority-data": base64.b64encode(ca.read()).decode()}
        asked["cluster"] = {"server": cluster.text("server"), **data}
    info = {"apiVersion": entry.text("apiVersion"), "kind": "ExecCredential", "spec": asked}
    return plugin(f"{user.path}: {entry.key}", (command, *args), env, info)


def _command(entry: _Entry) -> str:
    """The program of a plugin. Raises ConfigError where there is none, or others could change what root runs."""
    where, command = entry.where("command"), entry.text("command")
    if not command:
        raise ConfigError(f"{where}: is missing", "name the plugin's program")
    if "/" in command:
        command = str(entry.path.parent / command)
        _check_alone(Path(command), where)
    elif os.geteuid() == 0:
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
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
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


def _find(entries: Mapping[tuple[str, str], _Entry], section: str, name: str, asked_by: str) -> _Entry:
    if (found := entries.get((section, name))) is None:
        known = ", ".join([shown(other) for of, other in entries if of == section][:5]) or "none"
        raise ConfigError(f"{asked_by}: {section} has no {shown(name)}", f"there are: {known}")
    if not isinstance(found.values, dict):
        raise ConfigError(f"{found.path}: {found.key}: {shown(found.values)} is no map")
    for key in _REFUSED:
        if found.values.get(key):
            raise ConfigError(f"{found.where(key)}: is not supported", "use a token, a client certificate or exec")
    return found
