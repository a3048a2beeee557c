"""Whose plugins root runs, and whose credentials it believes: those of a kubeconfig that root alone can write."""

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from monitor.errors import ConfigError
from monitor.owner import search_path
from monitor.pods.access import Access
from monitor.pods.installations import NodeKubelet
from monitor.settings.config import RunConfig
from monitor.settings.read import read
from tests import others
from tests.daemon.config_files import KUBELET, kubeconfig, write
from tests.kube.fake_apiserver import FakeApiServer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="not root: other users answer for their files themselves")
NOBODY = 65534
V1 = "client.authentication.k8s.io/v1"
CREDENTIAL = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "good"}})


def plugin(path: Path, marker: Path) -> Path:
    path.write_text(f"#!/bin/sh\necho $PATH >> {marker}\necho '{CREDENTIAL}'\n")
    path.chmod(0o755)
    return path


def with_plugin(directory: Path, command: str, server: str = "https://127.0.0.1:1") -> Path:
    user: dict[str, Any] = {"exec": {"apiVersion": V1, "command": command, "interactiveMode": "Never"}}
    return kubeconfig(directory / "k", server, **user)


def token(access: Access) -> str:
    return access.api_server()[0].credentials.current()


def test_a_plugin_runs_only_from_a_kubeconfig_that_was_given(tmp_path: Path) -> None:
    """EKS gives its kubelet one; also where a helper that starts later gets what was found."""
    marker = tmp_path / "ran"
    made = with_plugin(tmp_path, str(plugin(tmp_path / "plugin", marker)))
    found = Access(kubelet=NodeKubelet("EKS", kubeconfig=made), node_name="n")
    later = Access.found(RunConfig.from_json(RunConfig(pods="apiserver", **found.settled()).to_json()))
    for access in (found, later):
        with pytest.raises(ConfigError, match=rf"{made}: users\[u\]\.user\.exec: .*; give --kubeconfig {made}"):
            access.api_server()
    assert not marker.exists()
    assert token(Access(kubeconfig=str(made))) == "good"
    assert marker.read_text().strip() == search_path()


def test_a_plugin_runs_once_for_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for a check."""
    with closing(FakeApiServer()) as api:
        made = with_plugin(tmp_path, str(plugin(tmp_path / "plugin", marker := tmp_path / "ran")), api.url)
        file = write(tmp_path, "k.yaml", KUBELET)
        monkeypatch.setattr("monitor.pods.installations.find_kubelet", lambda: NodeKubelet("kubeadm"))
        read({"kubeconfig": str(made), "node-name": "n"}, None, file, ask_kubelet=True)
    assert marker.read_text().count("\n") == 1


@pytest.mark.parametrize("what", ["kubeconfig", "directory", "program", "token", "certificate", "key", "ca"])
def test_what_others_can_write_is_refused_with_the_remedy(what: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "d").mkdir()
    paths = {name: tmp_path / name for name in ("token", "certificate", "key", "ca")}
    for path in paths.values():
        path.write_text("x")
    program = plugin(tmp_path / "plugin", marker)
    paths |= {"directory": tmp_path / "d", "kubeconfig": tmp_path / "d/k", "program": program}
    user: dict[str, Any] = {"exec": {"apiVersion": V1, "command": str(program), "interactiveMode": "Never"}}
    if what == "token":
        user = {"tokenFile": str(paths["token"])}
    elif what in ("certificate", "key"):
        user = {"client-certificate": str(paths["certificate"]), "client-key": str(paths["key"])}
    made = kubeconfig(paths["kubeconfig"], "http://127.0.0.1:1", paths["ca"] if what == "ca" else None, **user)
    bad = paths[what]
    os.chown(bad, NOBODY, -1)
    refusal = f"not believed: {bad} .*; chown root {bad}, or name a copy that root alone can write$"
    for access in (Access(kubeconfig=str(made)), Access(kubelet=NodeKubelet("x", kubeconfig=made))):
        if access.kubeconfig or what != "program":
            with pytest.raises(ConfigError, match=refusal):
                access.api_server()
    assert not marker.exists()


def test_a_plugin_is_not_looked_for_where_others_could_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users, marker, good = tmp_path / "users", tmp_path / "users/ran", tmp_path / "bin"
    for directory in (users, good):
        directory.mkdir()
        plugin(directory / "get-token", marker if directory == users else tmp_path / "ran")
    os.chown(users, NOBODY, -1)
    monkeypatch.setenv("PATH", f"{users}:{os.environ['PATH']}")
    made = with_plugin(tmp_path, "get-token")
    with pytest.raises(ConfigError, match=r"exec\.command: get-token: no such command .*root's alone; .*absolute path"):
        Access(kubeconfig=str(made)).api_server()
    monkeypatch.setenv("PATH", f"{users}:{good}:{os.environ['PATH']}")
    assert token(Access(kubeconfig=str(made))) == "good"
    assert not marker.exists()
    assert str(users) not in (tmp_path / "ran").read_text()


def test_a_plugin_that_others_could_make_is_refused(tmp_path: Path) -> None:
    """It runs again for each token: the user that makes it meanwhile would be root."""
    with others.shared() as shared:
        (tmp_path / "link").symlink_to(shared / "plugin")
        for command in (shared / "plugin", tmp_path / "link"):
            with pytest.raises(ConfigError, match=f"not believed: {shared}/plugin is in a directory where others"):
                Access(kubeconfig=str(with_plugin(tmp_path, str(command)))).api_server()


def test_the_daemon_believes_no_kubeconfig_of_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kubeconfig(tmp_path / "k", "https://127.0.0.1:1", token="good")
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text(made.read_text())
    monkeypatch.setenv("KUBECONFIG", str(made))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="give --kubeconfig FILE"):
        Access().api_server()


def test_a_certificate_that_others_can_write_pins_nobody(tmp_path: Path) -> None:
    """Also where the pods are asked of a kubelet by option, and in the helper, which has only its flags."""
    (tmp_path / "kubelet.crt").write_text("x")
    (tmp_path / "kubelet.crt").chmod(0o666)
    (tmp_path / "ca").write_text("x")
    os.chown(tmp_path / "ca", NOBODY, -1)
    for access, bad in (
        (Access(kubelet=NodeKubelet(flags={"cert-dir": str(tmp_path)})), "kubelet.crt"),
        (Access(kubelet_ca=str(tmp_path / "ca"), node_name="n"), "ca"),
    ):
        with pytest.raises(ConfigError, match=f"certificate is not believed: {tmp_path / bad} "):
            access.kubelet_server()
