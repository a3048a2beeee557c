"""Which pods `--pods auto` takes, and what it says; the kubelet as its process and files show it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.cli.run import _announce
from monitor.errors import ConfigError, MonitorError
from monitor.pods import discover, kubelet_process
from monitor.pods.access import Access
from monitor.pods.choice import Choice, without_cluster
from monitor.pods.discover import choose
from monitor.pods.kubelet_process import KubeletProcess, _flags, find_kubelet
from monitor.pods.source import settle
from monitor.settings.config import RunConfig
from monitor.settings.read import check_enforced
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_kubelet import FakeKubelet
from tests.waiting import until


@pytest.fixture(autouse=True)
def no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(discover, "_TIMEOUT_S", 1.0)


@pytest.fixture
def api() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    yield server
    server.close()


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    server = FakeKubelet()
    yield server
    server.close()


def kubeconfig(path: Path, server: str, **user: str) -> Path:
    made = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(yaml.safe_dump(made))
    path.chmod(0o600)
    return path


def process(kubelet: FakeKubelet | None = None, config: Path | None = None, **more: Any) -> KubeletProcess:
    """A kubelet whose read-only port is the fake's."""
    ports = {"readOnlyPort": kubelet.port} if kubelet is not None else {}
    return KubeletProcess(config_path=Path("/var/lib/kubelet/config.yaml"), config=ports, kubeconfig=config, **more)


# ---- the choice


def test_the_api_server_comes_before_the_read_only_port(
    api: FakeApiServer, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    """That is without any authentication, and anybody on the node may serve it while the kubelet restarts."""
    found = choose(Access(kubelet=process(kubelet, kubeconfig(tmp_path / "k", api.url))), tmp_path / "none")
    assert found.spec == "apiserver"
    assert found.why.startswith(f"the API server at {api.url} (the kubelet's own {tmp_path / 'k'}) answers")
    assert (found.tried, kubelet.asked) == ((), [])


def test_then_the_read_only_port(api: FakeApiServer, kubelet: FakeKubelet, tmp_path: Path) -> None:
    api.forbidden.add(("list", "pods"))
    found = choose(Access(kubelet=process(kubelet, kubeconfig(tmp_path / "k", api.url))), tmp_path / "none")
    assert found.spec == f"kubelet:{kubelet.url}"
    why = f"the kubelet's read-only port at {kubelet.url} answers (configuration /var/lib/kubelet/config.yaml)"
    assert (found.why, found.kubelet, len(found.tried)) == (why, True, 1)
    assert "403" in found.tried[0]


@pytest.mark.parametrize("away", [False, True])
def test_with_enforce_the_read_only_port_is_never_taken_by_itself(
    away: bool, api: FakeApiServer, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    access = Access(kubelet=process(kubelet, kubeconfig(tmp_path / "k", api.url)))
    if away:
        api.refuse()
    else:
        api.forbidden.add(("list", "pods"))
    found = choose(access, tmp_path / "none", enforce=True)
    assert found.spec == ("apiserver" if away else "cgroups")
    assert kubelet.asked == []
    [line] = [line for line in found.tried if "read-only port" in line]
    assert f"--pods kubelet:{kubelet.url} takes it all the same" in line
    if not away:
        with pytest.raises(MonitorError, match="not taken by itself with --enforce"):
            check_enforced(RunConfig(pods=found.spec, enforce=True), found)


def test_settle_says_whether_pods_are_evicted(
    kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kubelet_process, "find_kubelet", lambda: process(kubelet))
    monkeypatch.setattr("monitor.pods.access.find_kubelet", lambda: process(kubelet))
    given = f"kubelet:{kubelet.url}"
    assert settle(RunConfig())[0].spec == given
    assert settle(RunConfig(enforce=True))[0].spec == "cgroups"
    config = RunConfig(pods=given, enforce=True, node_name="n")
    choice, _ = settle(config)
    assert choice.spec == given
    for enforce in (False, True):
        _announce(dataclasses.replace(config, enforce=enforce), choice, False, ())
        assert ("a list that nobody vouches for" in capfd.readouterr().err) == enforce


def test_a_node_whose_servers_are_away_is_one_all_the_same(
    api: FakeApiServer, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    """It boots: by manifests or cgroups the wrong pod would be first, for as long as the daemon lives."""
    for server in (api, kubelet):
        server.refuse()
    (tmp_path / "pods").mkdir()
    access = Access(kubelet=process(kubelet, kubeconfig(tmp_path / "k", api.url)))
    found = choose(access, tmp_path / "pods")
    assert found.spec == "apiserver"
    assert "whose servers do not answer yet" in found.why
    assert len(found.tried) == 2
    assert all("refused" in line for line in found.tried)


def test_who_may_not_ask_is_not_waited_for(api: FakeApiServer, kubelet: FakeKubelet, tmp_path: Path) -> None:
    api.forbidden.add(("list", "pods"))
    kubelet.forbidden.add("/pods")
    found = choose(Access(kubelet=process(kubelet, kubeconfig(tmp_path / "k", api.url))), tmp_path / "none")
    assert (found.spec, found.kubelet) == ("cgroups", True)
    assert "no pods of a cluster can be had" in found.why
    assert any('resources: ["pods"], verbs: ["list"]' in line for line in found.tried)  # the rule that is missing


@pytest.mark.parametrize("text", ["{", "kind: Config", "clusters: [7]"])
def test_credentials_that_cannot_be_read_are_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "k").write_text(text)
    found = choose(Access(kubelet=process(None, tmp_path / "k")), tmp_path / "none")
    assert found.spec == "cgroups"
    assert str(tmp_path / "k") in found.tried[0]


def test_without_a_kubelet(tmp_path: Path) -> None:
    assert without_cluster(manifest_dir=tmp_path).spec == f"manifests:{tmp_path}"
    found = without_cluster(manifest_dir=tmp_path / "none")
    assert found == Choice("cgroups", f"no kubelet here, and there is no {tmp_path / 'none'}")


def test_without_any_sign_of_a_cluster_its_client_is_not_imported(tmp_path: Path) -> None:
    """25 ms of each start on a plain VM."""
    code = f"""
import sys
from pathlib import Path
from monitor.pods import kubelet_process
from monitor.pods.source import settle
from monitor.settings.config import RunConfig
kubelet_process.CONFIG = Path({str(tmp_path / "none")!r})
kubelet_process.KUBECONFIGS = ()
kubelet_process._running = lambda: (0, ())
settle(RunConfig())
print([name for name in sys.modules if name.startswith("monitor.kube") or name in ("ssl", "psutil")])
"""
    done = subprocess.run(["python", "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout == "[]\n"


def environment() -> dict[str, str]:
    import sys

    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


# ---- what is settled at the start


def test_what_was_found_is_not_looked_for_again(
    api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet is away when the side is started again: by the host's name there would be no pods at all."""
    made = kubeconfig(tmp_path / "k", api.url)
    there = process(None, made, pid=7, flags={"hostname-override": "node-9", "cert-dir": "/pki"})
    monkeypatch.setattr(kubelet_process, "find_kubelet", lambda: there)
    choice, access = settle(RunConfig())
    assert choice.spec == "apiserver"
    assert access is not None
    config = RunConfig(pods=choice.spec, **access.settled())
    assert (config.node_name, config.kubeconfig) == ("node-9", str(made))
    config = RunConfig.from_json(config.to_json())
    monkeypatch.setattr(kubelet_process, "find_kubelet", lambda: pytest.fail("looked for"))
    again = Access.found(config)
    assert (again.node, again.kubelet.trust.pki) == ("node-9", Path("/pki"))
    assert again.api_server()[0].server.port == api.port


def test_given_servers_that_cannot_be_had_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("monitor.pods.access.find_kubelet", KubeletProcess)
    for spec in ("apiserver", "kubelet:https://127.0.0.1:10250"):
        with pytest.raises(ConfigError, match="give --kubeconfig FILE"):
            settle(RunConfig(pods=spec))
    assert settle(RunConfig(pods="cgroups")) == (Choice("cgroups", "as given"), None)
    assert settle(RunConfig(node_cgroup=str(tmp_path)))[0].spec == "cgroups"


def test_in_a_pod_the_name_of_the_node_has_to_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host name is the pod's there: a node of that name has no pods, and nothing would be evicted."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr(Access, "_host_network", property(lambda _: False))
    with pytest.raises(ConfigError, match=r"give --node-name, in a DaemonSet from spec\.nodeName"):
        _ = Access().node
    assert Access(node_name="n1").node == "n1"
    assert Access(kubelet=KubeletProcess(flags={"hostname-override": "N2"})).node == "n2"
    monkeypatch.setattr(Access, "_host_network", property(lambda _: True))
    assert Access().node


def test_enforce_on_a_node_that_cannot_be_asked_yet_is_tried_again() -> None:
    """systemd starts it again after exit code 1, and not after 2 (`RestartPreventExitStatus`)."""
    config = RunConfig(pods="cgroups", enforce=True)
    with pytest.raises(ConfigError) as refused:
        check_enforced(config, Choice("cgroups", "no kubelet here"))
    assert refused.value.exit_code == 2
    with pytest.raises(MonitorError) as later:
        check_enforced(config, Choice("cgroups", "nothing answers", ("the API server: refused",), True))
    assert later.value.exit_code == 1
    assert "(nothing answers; the API server: refused)" in str(later.value)


# ---- the kubelet's process and files


def test_flags_as_the_kubelet_reads_them() -> None:
    given = "--config=/etc/k.yaml --hostname-override n1 --fail-swap-on --eviction_hard=memory.available<1Gi -v=2 --x"
    assert _flags(given.split()) == {
        "config": "/etc/k.yaml",
        "hostname-override": "n1",
        "fail-swap-on": "true",
        "eviction-hard": "memory.available<1Gi",
        "x": "true",
    }


@pytest.mark.parametrize(
    ("config", "flags", "url", "read_only"),
    [
        ({}, {}, "https://127.0.0.1:10250", ""),
        ({"address": "0.0.0.0", "port": 1234}, {}, "https://127.0.0.1:1234", ""),
        ({"address": "10.1.2.3", "readOnlyPort": 10255}, {}, "https://10.1.2.3:10250", "http://10.1.2.3:10255"),
        ({"address": "fd00::1"}, {"read-only-port": "1"}, "https://[fd00::1]:10250", "http://[fd00::1]:1"),
        ({"port": "x", "readOnlyPort": True}, {}, "https://127.0.0.1:10250", ""),
        ({"port": 1}, {"port": "2"}, "https://127.0.0.1:2", ""),  # a flag wins
        ({"readOnlyPort": 10255}, {"read-only-port": "0"}, "https://127.0.0.1:10250", ""),
    ],
)
def test_where_it_serves(config: dict[str, Any], flags: dict[str, str], url: str, read_only: str) -> None:
    found = KubeletProcess(config=config, flags=flags)
    assert (found.url, found.read_only_url) == (url, read_only)


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot be the kubelet")
def test_the_process_is_found_with_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of that name that root runs in our pid namespace, its files by its own root directory."""
    (tmp_path / "config.yaml").write_text("kind: KubeletConfiguration\nport: 4321\n")
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/10.conf").write_text("readOnlyPort: 4322\n")
    kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1")
    program = tmp_path / "kubelet"
    program.write_bytes(Path("/bin/cat").read_bytes())
    program.chmod(0o755)
    # cat takes "-" for its input and the flags for files that are not there: --help would end it.
    with subprocess.Popen(
        ["kubelet", "--", "-", *(f"--{k}={tmp_path / v}" for k, v in FILES.items()), "--hostname_override", "Node-7"],
        executable=program,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:
        try:
            # (This machine may have a kubelet of its own.)
            mine = [name for name in os.listdir("/proc") if not name.isdigit() or int(name) >= running.pid]
            monkeypatch.setattr(os, "listdir", lambda _: mine)
            # Its name is set a moment after its descriptors were closed, which is what Popen waits for.
            until(lambda: find_kubelet().pid == running.pid, "a process called kubelet")
            found = find_kubelet()
            assert found.is_there
            assert found.node_name == "node-7"
            assert (found.url, found.read_only_url) == ("https://127.0.0.1:4321", "http://127.0.0.1:4322")
            assert found.config_path == Path(f"/proc/{running.pid}/root{tmp_path}/config.yaml")
            assert found.kubeconfig == tmp_path / "kubeconfig"
            assert found.trust.pki == tmp_path
            assert str(found) == f"process {running.pid}, configuration {found.config_path}"
        finally:
            running.kill()


FILES = {"config": "config.yaml", "config-dir": "conf.d", "kubeconfig": "kubeconfig", "cert-dir": "."}


def test_a_kubelet_without_a_file_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies where installers put it is not what this one was started with."""
    (tmp_path / "config.yaml").write_text("port: 4321\n")
    monkeypatch.setattr(kubelet_process, "CONFIG", tmp_path / "config.yaml")
    monkeypatch.setattr(kubelet_process, "_running", lambda: (os.getpid(), ["--hostname-override=n"]))
    assert find_kubelet().config_path is None
    assert find_kubelet().is_there
    monkeypatch.setattr(kubelet_process, "_running", lambda: (0, ()))
    found = find_kubelet()
    assert (found.pid, found.config_path, found.config) == (0, tmp_path / "config.yaml", {"port": 4321})


@pytest.mark.parametrize("text", ["[1]", "a: b: c", "", "\0"])
def test_a_file_that_is_no_configuration_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    monkeypatch.setattr(kubelet_process, "CONFIG", tmp_path / "config.yaml")
    monkeypatch.setattr(kubelet_process, "_running", lambda: (0, ()))
    assert not find_kubelet().is_there


def test_files_that_may_not_be_looked_at_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """`outrace explain` of a user who is not root, on a node: /var/lib/kubelet is closed to him."""
    closed = Path("/", "x" * 300, "kubeconfig")  # any error but ENOENT: root may look everywhere
    with pytest.raises(OSError, match="File name too long"):
        closed.is_file()
    monkeypatch.setattr(kubelet_process, "KUBECONFIGS", (closed,))
    monkeypatch.setattr(kubelet_process, "CONFIG", closed)
    monkeypatch.setattr(kubelet_process, "_running", lambda: (0, ()))
    assert find_kubelet() == KubeletProcess()
    with pytest.raises(ConfigError, match="no certificate of a kubelet"):
        Access(kubelet=KubeletProcess(flags={"cert-dir": str(closed)})).kubelet_server()
