"""A kubelet inside k3s or MicroK8s: found by its process, with its files, its certificate and its configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monitor.pods import discover, embedded_kubelet, kubelet_process
from monitor.pods.access import Access
from monitor.pods.discover import choose
from monitor.pods.embedded_kubelet import arguments
from monitor.pods.kubelet_process import KubeletProcess, _flags, find_kubelet
from monitor.settings.kubelet_own import kubelet_sources
from tests.kube.conftest import authority as authority
from tests.kube.conftest import serving as serving
from tests.kube.fake_kubelet import FakeKubelet
from tests.kube.fake_tls import Pair
from tests.pods.test_discover import kubeconfig
from tests.waiting import until

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot be the kubelet")
Start = Callable[..., int]


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(kubelet_process, "CONFIG", tmp_path / "none")
    monkeypatch.setattr(kubelet_process, "KUBECONFIGS", ())
    for name in ("K3S_DATA", "K3S_CONFIG", "MICROK8S"):
        monkeypatch.setattr(embedded_kubelet, name, tmp_path / name)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a process of that name, arguments and environment; only those of the test are in /proc."""
    running: list[subprocess.Popen[bytes]] = []
    entries = os.listdir

    def listed(path: str) -> list[str]:
        if path != "/proc":
            return entries(path)
        return [str(one.pid) for one in running]

    def begin(*words: str, name: str, env: dict[str, str] | None = None, user: int | None = None) -> int:
        program = tmp_path / name
        shutil.copy("/bin/cat", program)
        given = [words[0], "--", "-", *words[1:]]
        one = subprocess.Popen(
            given,
            executable=program,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
            user=user,
        )
        running.append(one)
        until(lambda: Path(f"/proc/{one.pid}/comm").read_text().strip() == name, f"a process called {name}")
        return one.pid

    monkeypatch.setattr(kubelet_process.os, "listdir", listed)  # type: ignore[attr-defined]
    yield begin
    for one in running:
        one.kill()
        one.wait()
        assert one.stdin is not None
        one.stdin.close()


def k3s(directory: Path, new: bool = True, **config: str) -> Path:
    """Its data directory, as 1.32 or later has it, and its file of options, which is returned."""
    agent = directory / "data/agent"
    (agent / "etc/kubelet.conf.d").mkdir(parents=True)
    kubeconfig(agent / "kubelet.kubeconfig", "https://127.0.0.1:1")
    if new:
        defaults = f"evictionHard: {{nodefs.available: 5%}}\ntlsCertFile: {agent}/serving-kubelet.crt\n"
        (agent / "etc/kubelet.conf.d/00-k3s-defaults.conf").write_text(defaults)
    (directory / "config.yaml").write_text(f"data-dir: {directory}/data\ntoken: secret\n")
    for name, text in config.items():
        (directory / "config.yaml.d").mkdir(exist_ok=True)
        (directory / f"config.yaml.d/{name}.yaml").write_text(text)
    return directory / "config.yaml"


@root_only
@pytest.mark.parametrize("title", [True, False])
def test_k3s_is_found_with_its_files(title: bool, start: Start, tmp_path: Path) -> None:
    """Also where it has written its title over its arguments, to hide them."""
    own = k3s(tmp_path, a="kubelet-arg: [v=1, port=4321]\n", b="kubelet-arg+:\n- eviction-hard=memory.available<1Gi\n")
    words = ["k3s server"] if title else ["k3s", "server", "--node-name", "Node-7", "--kubelet-arg=max-pods=9"]
    pid = start(*words, name="k3s-server", env={"K3S_CONFIG_FILE": str(own), "K3S_NODE_NAME": "Node-8"})
    found = find_kubelet()
    assert (found.pid, found.node_name) == (pid, "node-8" if title else "node-7")
    assert found.kubeconfig == tmp_path / "data/agent/kubelet.kubeconfig"
    assert (found.url, found.flags.get("max-pods")) == ("https://127.0.0.1:4321", None if title else "9")
    assert found.trust.certificates == (tmp_path / "data/agent/serving-kubelet.crt",)
    assert [content["evictionHard"] for _, content in found.drop_ins] == [{"nodefs.available": "5%"}]
    assert found.flags["eviction-hard"] == "memory.available<1Gi"
    assert (found.unread, str(found)) == ("", f"process {pid}")


@root_only
def test_kubelite_is_found_with_its_arguments(start: Start, tmp_path: Path) -> None:
    revision = tmp_path / "microk8s/9044"
    (revision / "args").mkdir(parents=True)
    (revision / "credentials").mkdir()
    kubeconfig(revision / "credentials/kubelet.config", "https://127.0.0.1:1")
    (revision / "args/kubelet").write_text(
        "# a comment\n--kubeconfig=${SNAP_DATA}/credentials/kubelet.config\n--cert-dir=$SNAP_DATA/certs\n\n"
        '--root-dir=${SNAP_COMMON}/var/lib/kubelet\n--eviction-hard="memory.available<100Mi,nodefs.available<1Gi"\n'
        "--hostname-override Node-9\n--unknown=${NOT_SET}x\n"
    )
    pid = start("/snap/kubelite", f"--kubelet-args-file={revision}/args/kubelet", name="kubelite")
    found = find_kubelet()
    assert (found.pid, found.node_name) == (pid, "node-9")
    assert (found.kubeconfig, found.trust.pki) == (revision / "credentials/kubelet.config", revision / "certs")
    assert found.flags["root-dir"] == str(tmp_path / "microk8s/common/var/lib/kubelet")
    assert (found.flags["eviction-hard"], found.flags["unknown"]) == (
        "memory.available<100Mi,nodefs.available<1Gi",
        "x",
    )
    sources = kubelet_sources(Access(kubelet=found))
    assert sources[-1].content["evictionHard"]["memory.available"] == "100Mi"


@root_only
def test_the_directory_that_outlives_a_refresh_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "snap/9044/args").mkdir(parents=True)
    (tmp_path / "snap/9044/args/kubelet").write_text("--cert-dir=${SNAP_DATA}/certs\n")
    (tmp_path / "snap/current").symlink_to("9044")
    monkeypatch.setattr(embedded_kubelet, "MICROK8S", tmp_path / "snap/current")
    given = ["kubelite", f"--kubelet-args-file={tmp_path}/snap/9044/args/kubelet"]
    assert arguments(os.getpid(), "kubelite", given) == [f"--cert-dir={tmp_path}/snap/current/certs"]


@root_only
def test_a_process_named_kubelet_comes_first(start: Start, tmp_path: Path) -> None:
    """RKE2 and k0s start it as one, and are no kubelet themselves."""
    start("k3s", "server", name="k3s-server", env={"K3S_CONFIG_FILE": str(k3s(tmp_path))})
    pid = start("kubelet", f"--cert-dir={tmp_path}", name="kubelet")
    found = find_kubelet()
    assert (found.pid, found.flags) == (pid, {"cert-dir": str(tmp_path)})


@root_only
def test_of_another_user_it_is_none(start: Start, tmp_path: Path) -> None:
    """Anybody may name a process so, and point it to credentials and a certificate of his own."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory != Path("/tmp"):
            os.chmod(directory, os.stat(directory).st_mode | 0o055)
        if directory.parent == Path("/tmp"):
            break
    env = {"K3S_CONFIG_FILE": str(k3s(tmp_path))}
    start("k3s", "server", name="k3s-server", env=env, user=65534)
    assert find_kubelet().pid == 0
    pid = start("k3s", "server", name="k3s-agent", env=env)
    assert find_kubelet().pid == pid


def test_what_is_no_kubelet(tmp_path: Path) -> None:
    """`k3s kubectl`, a server with --disable-agent (it has no kubelet.kubeconfig), a kubelite without its file."""
    own = f"--config={k3s(tmp_path)}"
    assert arguments(os.getpid(), "k3s", ["k3s", "kubectl", "get", own]) is None
    assert arguments(os.getpid(), "k3s", ["k3s", "server", own]) is not None
    (tmp_path / "data/agent/kubelet.kubeconfig").unlink()
    assert arguments(os.getpid(), "k3s-server", ["k3s", "server", own]) is None
    assert arguments(os.getpid(), "kubelite", ["kubelite", f"--kubelet-args-file={tmp_path}/none"]) is None
    assert arguments(os.getpid(), "kubelite", ["kubelite", "--kubelet-args-file=args"]) is None


def test_before_1_32_its_thresholds_are_flags(tmp_path: Path) -> None:
    """They are nowhere but in its own process; disks alone, as its documentation has them."""
    found = arguments(os.getpid(), "k3s-agent", ["k3s", "agent", "-c", str(k3s(tmp_path, new=False))])
    assert found is not None
    assert _flags(found)["eviction-hard"] == "imagefs.available<5%,nodefs.available<5%"
    assert _flags(found)["tls-cert-file"] == str(tmp_path / "data/agent/serving-kubelet.crt")


@pytest.mark.parametrize("which", ["k3s", "microk8s"])
def test_one_that_does_not_run_yet_is_there(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node boots: a guess by cgroups would rank wrongly for as long as the daemon lives."""
    monkeypatch.setattr(kubelet_process, "_running", lambda: (0, ()))
    monkeypatch.setattr(discover, "_TIMEOUT_S", 1.0)
    assert not find_kubelet().is_there
    if which == "k3s":
        monkeypatch.setattr(embedded_kubelet, "K3S_CONFIG", k3s(tmp_path))
        shown = tmp_path / "data/agent/kubelet.kubeconfig"
    else:
        shown = tmp_path / "MICROK8S/args/kubelet"
        (shown.parent).mkdir(parents=True)
        kubeconfig(tmp_path / "credentials", "https://127.0.0.1:1")
        shown.write_text(f"--kubeconfig={tmp_path}/credentials\n--eviction-hard=nodefs.available<5%\n")
    found = find_kubelet()
    assert (found.is_there, found.installed, str(found)) == (True, shown, f"{shown}, not running")
    assert [one.content["evictionHard"] for one in kubelet_sources(Access(kubelet=found)) if one.content] == [
        {"nodefs.available": "5%"} if which == "k3s" else {"nodefs.available": "5%", **others()}
    ]
    choice = choose(Access(kubelet=found, node_name="n"), tmp_path / "none")
    assert (choice.spec, choice.kubelet) == ("apiserver", True)


def others() -> dict[str, None]:
    """A flag takes the place of the whole map."""
    return dict.fromkeys(("imagefs.available", "imagefs.inodesFree", "memory.available", "nodefs.inodesFree"))


def test_auto_takes_it_and_its_configz(serving: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a token, by the certificate that k3s has for its kubelet."""
    server = FakeKubelet(serving.server_context())
    try:
        server.tokens = {"good"}
        server.config = {"evictionHard": {"memory.available": "7Mi"}}
        own = k3s(tmp_path, a=f"kubelet-arg: port={server.port}\n")
        shutil.copy(serving.certificate, tmp_path / "data/agent/serving-kubelet.crt")
        found = arguments(os.getpid(), "k3s", ["k3s", "agent", f"--config={own}"])
        monkeypatch.setattr(kubelet_process, "_running", lambda: (os.getpid(), found))
        kubelet: KubeletProcess = find_kubelet()
        token = kubeconfig(tmp_path / "k", "https://127.0.0.1:1", token="good")
        access = Access(kubelet=kubelet, kubeconfig=str(token), node_name="n")
        choice = choose(access, tmp_path / "none")
        assert (choice.spec, choice.tried) == (f"kubelet:https://127.0.0.1:{server.port}", ())
        [source] = kubelet_sources(access)
        assert source.content["evictionHard"] == {"memory.available": "7Mi"}
    finally:
        server.close()
