"""Exec credential plugins: real programs, which may do anything."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.errors import ConfigError, MonitorError
from monitor.kube.cluster import Credentials
from monitor.kube.kubeconfig import load, plugin
from tests.daemon.config_files import kubeconfig

V1 = "client.authentication.k8s.io/v1"
#: What a plugin prints.
TOKEN = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "t"}})


def running(code: str, **options: Any) -> Credentials:
    return plugin("config: users[u].user.exec", (sys.executable, "-c", code), {}, {}, **options)


def printing(status: object) -> str:
    return f"print({json.dumps({'kind': 'ExecCredential', 'status': status})!r})"


def test_a_token_is_asked_for_once_until_it_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tmp_path / "count"
    code = (
        f"import json,pathlib; p=pathlib.Path({str(count)!r}); n=int(p.read_text() if p.exists() else 0)+1;"
        "p.write_text(str(n));"
        f"print(json.dumps(dict(apiVersion={V1!r},kind='ExecCredential',"
        "status=dict(token=f't{n}',expirationTimestamp='2026-11-24T12:00:00.123456789Z'))))"
    )
    now = [1795521600.0 - 3600]  # an hour before
    monkeypatch.setattr("monitor.kube.kubeconfig.time", SimpleNamespace(time=lambda: now[0]))
    tokens = running(code)
    assert [tokens.current() for _ in range(3)] == ["t1"] * 3
    now[0] += 3595
    assert tokens.current() == "t2"
    assert tokens.refresh() == "t3"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sys; print('no login', file=sys.stderr); sys.exit(3)", "ended with 3: no login"),
        ("import time; time.sleep(60)", "took more than 0.5 s"),
        ("print('hello')", "no ExecCredential"),
        ("print('[' * 100000)", "no ExecCredential"),
        ("import sys; sys.stdout.buffer.write(b'\\xff')", "no ExecCredential"),
        (printing(None), "no ExecCredential"),
        (printing({"token": "a b"}), "no token"),
        (printing({"token": ""}), "empty"),
        (printing({"token": 5}), "no ExecCredential"),
        (printing({"clientCertificateData": "x"}), "no ExecCredential with a token"),
        (printing({"token": "t", "expirationTimestamp": "soon"}), "no ExecCredential"),
    ],
)
def test_a_plugin_that_fails_is_one_error(code: str, expected: str) -> None:
    with pytest.raises(MonitorError, match=expected) as caught:
        running(code, timeout_s=0.5 if "sleep" in code else 60).current()
    assert str(caught.value).startswith("config: users[u].user.exec")
    assert "\n" not in str(caught.value)


def test_a_program_that_is_not_there_is_one_error() -> None:
    with pytest.raises(MonitorError, match=r"x: /no/such/plugin: .*No such file"):
        plugin("x", ("/no/such/plugin",), {}, {}).current()


def with_plugin(tmp_path: Path, **values: object) -> Path:
    plugin = {"apiVersion": V1, "command": "./plugin", "interactiveMode": "Never", **values}
    return kubeconfig(tmp_path / "config", "http://127.0.0.1:1", exec=plugin)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("command", ""), ("args", "one"), ("args", [1]), ("env", [{"name": "x"}]), ("provideClusterInfo", "yes"),
    ],
)  # fmt: skip
def test_a_bad_plugin_of_a_kubeconfig(tmp_path: Path, key: str, value: object) -> None:
    path = with_plugin(tmp_path, **{key: value})
    with pytest.raises(ConfigError) as caught:
        load((path,))
    assert f"{path}: users[u].user.exec.{key}" in str(caught.value)


def test_beside_its_kubeconfig_it_is_given_what_kubectl_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGE", "test")
    program = tmp_path / "plugin"
    checks = 'test "$REGION $STAGE" = "eu test" && test -z "$(cat)"'
    program.write_text(f"#!/bin/sh\n{checks} && echo \"$KUBERNETES_EXEC_INFO\" > {tmp_path}/info && echo '{TOKEN}'\n")
    program.chmod(0o755)
    path = with_plugin(tmp_path, provideClusterInfo=True, env=[{"name": "REGION", "value": "eu"}])
    assert load((path,)).credentials.current() == "t"
    spec = {"interactive": False, "cluster": {"server": "http://127.0.0.1:1"}}
    assert json.loads((tmp_path / "info").read_text()) == {"apiVersion": V1, "kind": "ExecCredential", "spec": spec}
