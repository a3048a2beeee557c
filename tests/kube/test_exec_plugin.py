"""Exec credential plugins: real programs, which may do anything."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monitor.errors import ConfigError, MonitorError
from monitor.kube.client import ApiClient
from monitor.kube.cluster import ClusterConfig, parse_server
from monitor.kube.kubeconfig import ExecPlugin, ExecSpec, load
from monitor.kube.tls import TlsSettings
from tests.daemon.config_files import kubeconfig
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_tls import Authority, Pair

V1 = "client.authentication.k8s.io/v1"


def printing(status: object, kind: str = "ExecCredential", version: str = V1) -> ExecSpec:
    made = json.dumps({"apiVersion": version, "kind": kind, "status": status})
    return running(f"print({made!r})")


#: What a plugin prints.
TOKEN = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "t"}})


def running(code: str, **options: Any) -> ExecSpec:
    return ExecSpec("config: users[u].user.exec", V1, (sys.executable, "-c", code), **options)


def test_a_token_is_asked_for_once_until_it_expires(tmp_path: Path) -> None:
    count = tmp_path / "count"
    code = (
        f"import json,pathlib; p=pathlib.Path({str(count)!r}); n=int(p.read_text() if p.exists() else 0)+1;"
        "p.write_text(str(n));"
        f"print(json.dumps(dict(apiVersion={V1!r},kind='ExecCredential',"
        "status=dict(token=f't{n}',expirationTimestamp='2026-11-24T12:00:00.123456789Z'))))"
    )
    now = [1795521600.0 - 3600]  # an hour before
    plugin = ExecPlugin(running(code), now=lambda: now[0])
    assert [plugin.current().token for _ in range(3)] == ["t1"] * 3
    now[0] += 3595
    assert plugin.current().token == "t2"
    assert plugin.refresh().token == "t3"


def test_it_is_given_what_kubectl_passes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = (
        f"import os,sys,pathlib; pathlib.Path({str(out)!r}).write_text(os.environ['KUBERNETES_EXEC_INFO']);"
        f"assert sys.stdin.read() == ''; assert os.environ['REGION'] == 'eu';"
        f"print({TOKEN!r})"
    )
    spec = running(code, env=(("REGION", "eu"),), cluster={"server": "https://x"})
    assert ExecPlugin(spec).current().token == "t"
    info = json.loads(out.read_text())
    assert info["spec"] == {"interactive": False, "cluster": {"server": "https://x"}}
    assert (info["kind"], info["apiVersion"]) == ("ExecCredential", V1)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (running("import sys; print('no login', file=sys.stderr); sys.exit(3)"), "ended with 3: no login"),
        (running("import time; time.sleep(60)"), "took more than 0.5 s"),
        (running("print('hello')"), "no ExecCredential"),
        (running("print('[' * 100000)"), "no ExecCredential"),
        (running("import sys; sys.stdout.buffer.write(b'\\xff')"), "no ExecCredential"),
        (running("print('x' * (2 << 20))"), "no ExecCredential"),
        (printing(None), "no ExecCredential with a status"),
        (printing({"token": "t"}, kind="Pod"), "no ExecCredential"),
        (printing({"token": "t"}, version="client.authentication.k8s.io/v1alpha1"), "apiVersion"),
        (printing({"token": 5}), "neither a token nor"),
        (printing({"token": "a b"}), "no token"),
        (printing({"clientCertificateData": "x"}), "neither a token nor"),
        (printing({"token": "t", "expirationTimestamp": "soon"}), "expirationTimestamp"),
        (
            ExecSpec("config: users[u].user.exec", V1, ("/no/such/plugin",), hint="install it\nfrom there"),
            r"exec\.command: /no/such/plugin: .*; install it from there",
        ),
    ],
)
def test_a_plugin_that_fails_is_one_error(spec: ExecSpec, expected: str) -> None:
    with pytest.raises(MonitorError, match=expected) as caught:
        ExecPlugin(spec, timeout_s=0.5 if "sleep" in spec.command[-1] else 60).current()
    assert str(caught.value).startswith("config: users[u].user.exec")
    assert "\n" not in str(caught.value)


def with_plugin(tmp_path: Path, **values: object) -> Path:
    plugin = {"apiVersion": V1, "command": "./plugin", "interactiveMode": "Never", **values}
    return kubeconfig(tmp_path / "config", "http://127.0.0.1:1", exec=plugin)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("apiVersion", "client.authentication.k8s.io/v1alpha1"), ("apiVersion", None), ("command", ""),
        ("interactiveMode", "Always"), ("args", "one"), ("args", [1]), ("env", [{"name": "x"}]),
        ("provideClusterInfo", "yes"),
    ],
)  # fmt: skip
def test_a_bad_plugin_of_a_kubeconfig(tmp_path: Path, key: str, value: object) -> None:
    path = with_plugin(tmp_path, **{key: value})
    with pytest.raises(ConfigError) as caught:
        load((path,))
    assert f"{path}: users[u].user.exec.{key}" in str(caught.value)


def test_a_relative_command_lies_beside_its_kubeconfig(tmp_path: Path) -> None:
    program = tmp_path / "plugin"
    program.write_text(f"#!/bin/sh\necho '{TOKEN}'\n")
    program.chmod(0o755)
    assert load((with_plugin(tmp_path),)).credentials.current().token == "t"


def test_a_plugins_certificate_is_shown(
    api: FakeApiServer, authority: Authority, serving: Pair, connect: Callable[..., ApiClient]
) -> None:
    api.context = serving.server_context(authority.certificate)
    api.tokens = set()
    pair = authority.issue("plugin")
    status = {"clientCertificateData": pair.certificate.read_text(), "clientKeyData": pair.key.read_text()}
    config = ClusterConfig(parse_server(api.url, ""), TlsSettings(insecure=True), ExecPlugin(printing(status)))
    connect(config).warm()
    assert api.asked[-1].client_name == "plugin"
