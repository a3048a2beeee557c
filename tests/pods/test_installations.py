"""The kubelet by the files of its installer; and what is believed of them: nothing that others than root can write."""

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from monitor.errors import ConfigError, MonitorError
from monitor.owner import read_alone
from monitor.pods import installations
from monitor.pods.access import Access, choose
from monitor.pods.installations import TABLE, NodeKubelet, find_kubelet, flags_of
from monitor.settings.config import RunConfig
from monitor.settings.kubelet_own import kubelet_sources
from monitor.settings.read import check_enforced, read
from tests.daemon.config_files import kubeconfig
from tests.kube.conftest import authority as authority
from tests.kube.conftest import serving as serving
from tests.kube.fake_kubelet import FakeKubelet
from tests.kube.fake_tls import Pair

NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot give files to another user")
KUBEADM = {
    "var/lib/kubelet/config.yaml": "port: 4321\nreadOnlyPort: 4322\n",
    "var/lib/kubelet/kubeadm-flags.env": 'KUBELET_KUBEADM_ARGS="--hostname-override=Node-7 --v=2"\n',
    "etc/default/kubelet": "# a comment\nKUBELET_EXTRA_ARGS= '--v=3 --config-dir \\\n \"{root}/etc/kubelet.d\"'\n",
    "etc/kubelet.d/10.conf": "evictionHard: {memory.available: 300Mi}\n",
    "var/lib/kubelet/pki/kubelet.crt": "",
}
K3S = {
    "etc/rancher/k3s/config.yaml": "data-dir: {root}/data\ntoken: secret\nnode-name: Node-8\n",
    "etc/rancher/k3s/config.yaml.d/a.yaml": "kubelet-arg: [v=1, port=4321]\n",
    "etc/rancher/k3s/config.yaml.d/b.yaml": "kubelet-arg+:\n- eviction-hard=memory.available<1Gi\n",
    "data/agent/etc/kubelet.conf.d/00-k3s-defaults.conf": "evictionHard: {nodefs.available: 5%}\n",
    "data/agent/serving-kubelet.crt": "",
}
MICROK8S = {
    "var/snap/microk8s/9044/args/kubelet": (
        "# a comment\n--kubeconfig=${SNAP_DATA}/credentials/kubelet.config\n--cert-dir=$SNAP_DATA/certs\n\n"
        "--root-dir=${SNAP_COMMON}/var/lib/kubelet\n--eviction-hard='memory.available<100Mi,\"nodefs.available<1Gi\n"
        "--hostname-override Node-9\n--unknown=${NOT_SET}x\n"
    )
}
#: Of each row: the files that it has, and the kubeconfig's.
NODES: dict[str, tuple[Mapping[str, str], str]] = {
    "kubeadm": (KUBEADM, "etc/kubernetes/kubelet.conf"),
    "k3s": (K3S, "data/agent/kubelet.kubeconfig"),
    "RKE2": ({path.replace("k3s", "rke2"): text for path, text in K3S.items()}, "data/agent/kubelet.kubeconfig"),
    "k0s": ({"var/lib/k0s/kubelet-config.yaml": "port: 4321\n"}, "var/lib/k0s/kubelet.conf"),
    "MicroK8s": (MICROK8S, "var/snap/microk8s/9044/credentials/kubelet.config"),
    "EKS": (
        {
            "etc/kubernetes/kubelet/config.json": '{{"port": 4321}}',
            "etc/eks/kubelet/environment": "NODEADM_KUBELET_ARGS='--config-dir={root}/etc/json.d --v=2'\nPATH=/bin\n",
            "etc/json.d/40.conf": "evictionHard: {memory.available: 300Mi}\n",
        },
        "var/lib/kubelet/kubeconfig",
    ),
    "Canonical Kubernetes": (
        {
            "var/snap/k8s/common/args/kubelet": (
                '--cert-dir="{root}/etc/kubernetes/pki"\n--kubeconfig={root}/etc/kubernetes/kubelet.conf\n'
                "--eviction-hard='memory.available<100Mi'\n"
            )
        },
        "etc/kubernetes/kubelet.conf",
    ),
    "a kubelet": ({}, "var/lib/kubelet/kubeconfig"),
}


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files of the table are."""
    monkeypatch.setattr(installations, "ROOT", tmp_path / "node")
    monkeypatch.setattr("monitor.pods.spec.MANIFEST_DIR", tmp_path / "none")
    return tmp_path / "node"


def install(node: Path, name: str, **user: Any) -> Path:
    """Make the files of a row; its kubeconfig."""
    files, credentials = NODES[name]
    for path, text in files.items():
        (node / path).parent.mkdir(parents=True, exist_ok=True)
        (node / path).write_text(text.replace("{root}", str(node)).replace("{{", "{").replace("}}", "}"))
    if name == "MicroK8s":
        (node / "var/snap/microk8s/current").symlink_to("9044")
    (node / credentials).parent.mkdir(parents=True, exist_ok=True)
    return kubeconfig(node / credentials, "https://127.0.0.1:1", **user)


def test_every_row_is_tried_here() -> None:
    assert {row.name for row in TABLE} == {*NODES, installations.POD}


@pytest.mark.parametrize(
    ("name", "node_name", "url", "pki", "drop_ins"),
    [
        ("kubeadm", "node-7", "https://127.0.0.1:4321", "var/lib/kubelet/pki", [{"memory.available": "300Mi"}]),
        *((name, "node-8", "https://127.0.0.1:4321", "", [{"nodefs.available": "5%"}]) for name in ("k3s", "RKE2")),
        ("k0s", "", "https://127.0.0.1:4321", "var/lib/k0s/kubelet/pki", []),
        ("EKS", "", "https://127.0.0.1:4321", "var/lib/kubelet/pki", [{"memory.available": "300Mi"}]),
        ("Canonical Kubernetes", "", "https://127.0.0.1:10250", "etc/kubernetes/pki", []),
    ],
)
def test_what_is_found(name: str, node_name: str, url: str, pki: str, drop_ins: list[Any], node: Path) -> None:
    made = install(node, name)
    found = find_kubelet()
    assert (found.installation, found.kubeconfig) == (name, made)
    assert node_name in ("", found.node_name)
    assert [content["evictionHard"] for _, content in found.drop_ins] == drop_ins
    assert (found.unread, found.refused) == ("", "")
    if pki:
        assert found.pki == node / pki
    else:
        assert found.certificates == (node / "data/agent/serving-kubelet.crt",)
        assert found.flags["eviction-hard"] == "memory.available<1Gi"
        made.unlink()  # a server with --disable-agent
        assert find_kubelet() == NodeKubelet()
    assert found.url == url


def test_k3s_before_1_32_has_its_thresholds_as_flags(node: Path) -> None:
    install(node, "k3s")
    (node / "etc/rancher/k3s/config.yaml.d/b.yaml").unlink()
    (node / "data/agent/etc/kubelet.conf.d/00-k3s-defaults.conf").unlink()
    assert find_kubelet().flags["eviction-hard"] == "imagefs.available<5%,nodefs.available<5%"


def test_microk8s_and_its_variables(node: Path) -> None:
    """By the link that outlives a refresh."""
    install(node, "MicroK8s")
    found = find_kubelet()
    current = node / "var/snap/microk8s/current"
    assert (found.node_name, found.kubeconfig) == ("node-9", current / "credentials/kubelet.config")
    assert (found.pki, found.flags["unknown"]) == (current / "certs", "x")
    assert found.flags["root-dir"] == str(node / "var/snap/microk8s/common/var/lib/kubelet")
    [*_, source] = kubelet_sources(Access(kubelet=found))
    hard = source.content["evictionHard"]
    assert (hard["memory.available"], hard["nodefs.available"]) == ("100Mi", "1Gi")
    assert source.name == "the kubelet's flags (MicroK8s)"


def test_what_the_table_does_not_have_names_the_option(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_kubelet() == NodeKubelet()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    in_pod = find_kubelet()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    install(node, "a kubelet")
    for found in (in_pod, find_kubelet()):
        assert found.is_there
        monkeypatch.setattr("monitor.pods.installations.find_kubelet", lambda found=found: found)
        config = read({"enforce": True, "pods": "apiserver"}, ask_kubelet=True).config
        with pytest.raises(MonitorError, match=r"none of the known places has .*give --kubelet-config FILE") as error:
            check_enforced(config)
        assert error.value.exit_code == 1


@pytest.mark.parametrize("text", [None, "[1]", "a: b: c", ""])
def test_why_a_file_cannot_be_read(text: str | None, node: Path) -> None:
    install(node, "kubeadm")
    path = node / "var/lib/kubelet/config.yaml"
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert find_kubelet().unread.startswith(f"{path}: ")
    path.write_text("port: 4321\n")
    assert find_kubelet().unread == ""


def test_files_that_may_not_be_looked_at_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """`outrace explain` of a user that is not root, on a node: /var/lib/kubelet is closed to it."""
    closed = Path("/", "x" * 300)  # any error but ENOENT: root may look everywhere
    monkeypatch.setattr(installations, "ROOT", closed)
    assert find_kubelet() == NodeKubelet()
    with pytest.raises(ConfigError, match="no certificate of a kubelet"):
        Access(kubelet=NodeKubelet(flags={"cert-dir": str(closed)})).kubelet_server()


def test_flags_as_the_kubelet_reads_them() -> None:
    given = "--config=/etc/k.yaml --hostname-override n1 --fail-swap-on --eviction_hard=memory.available<1Gi -v=2 --x"
    expected = {"config": "/etc/k.yaml", "hostname-override": "n1", "eviction-hard": "memory.available<1Gi"}
    assert flags_of(given.split()) == {**expected, "fail-swap-on": "true", "x": "true"}


def test_how_a_line_is_split() -> None:
    assert installations.words("--a='x, y' # don't") == ["--a=x, y"]
    assert installations.words("--a=b#c --d") == ["--a=b#c", "--d"]
    for value in ("--a='x, y' --b", "'--a=\"x, y\" --b'", '"--a=\\"x, y\\" --b"'):
        assert installations.words(f"V={value}") == ["--a=x, y", "--b"]


@pytest.mark.parametrize(
    ("config", "flags", "url"),
    [
        ({}, {}, "https://127.0.0.1:10250"),
        ({"address": "0.0.0.0", "port": 1234}, {}, "https://127.0.0.1:1234"),
        ({"address": "10.1.2.3"}, {}, "https://10.1.2.3:10250"),
        ({"address": "fd00::1"}, {}, "https://[fd00::1]:10250"),
        ({"port": 1}, {"port": "2"}, "https://127.0.0.1:2"),  # a flag wins
    ],
)
def test_where_it_serves(config: dict[str, Any], flags: dict[str, str], url: str) -> None:
    assert NodeKubelet(config=config, flags=flags).url == url


@root_only
@pytest.mark.parametrize("name", NODES)
def test_nothing_is_believed_that_others_can_write(name: str, node: Path) -> None:
    """Each directory, file and link of a row in turn; what is beside its files may be anybody's."""
    install(node, name)
    (node / "beside").write_text("x")
    (node / "beside").chmod(0o666)
    whole = find_kubelet()
    assert (whole.installation, whole.refused) == (name, "")
    for path in [node, *sorted(node.rglob("*"))]:
        before = path.lstat()
        if path.name == "beside":
            continue
        os.chown(path, NOBODY, -1, follow_symlinks=False)
        assert f"{path} belongs to user {NOBODY}; chown root {path}" in refusal(name), path
        os.chown(path, 0, -1, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(before.st_mode | 0o020)
            assert f"can be written by others; chmod go-w {path}" in refusal(name), path
            path.chmod(before.st_mode)
    assert find_kubelet() == whole


def refusal(name: str) -> str:
    found = find_kubelet()
    assert found == NodeKubelet(name, refused=found.refused)  # nothing of it but why
    return found.refused


@root_only
def test_neither_in_a_pod(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The DaemonSet mounts the kubelet's directory: its certificates say which kubelet it is."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    pki = node / "var/lib/kubelet/pki"
    pki.mkdir(parents=True)
    found = find_kubelet()
    assert (found.installation, found.pki, found.url) == (installations.POD, pki, "https://127.0.0.1:10250")
    os.chown(pki, NOBODY, -1)
    assert f"{pki} belongs to user {NOBODY}; chown root {pki}" in refusal(installations.POD)


@root_only
def test_of_a_refused_kubelet_nobody_is_asked_and_the_line_is_reported(
    node: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = install(node, "kubeadm", token="secret")
    made.chmod(0o660)
    monkeypatch.setattr("monitor.kube.kubeconfig.load", lambda *_, **__: pytest.fail("read"))
    config = read({"enforce": True, "pods": "apiserver"}, ask_kubelet=True).config
    with pytest.raises(MonitorError, match=rf"not believed: {made} \(mode 660\).*chmod go-w {made}.*--kubelet-config"):
        check_enforced(config)
    access = Access(kubelet=find_kubelet())
    with pytest.raises(ConfigError, match=f"not believed: {made} "):
        access.kubelet_server()
    choice = choose(access)
    assert (choice.spec, choice.kubelet) == ("cgroups", True)
    assert f"chmod go-w {made}" in choice.tried[0]


@root_only
def test_a_file_that_is_replaced_while_it_is_read_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "config.yaml", tmp_path / "other"
    path.write_text("right")
    other.write_text("wrong")
    assert read_alone(path) == b"right"
    opened = os.open

    def late(name: Any, *rest: Any, **options: Any) -> int:
        return opened(other if name == path else name, *rest, **options)

    monkeypatch.setattr(os, "open", late)
    with pytest.raises(OSError, match="was replaced"):
        read_alone(path)


def test_auto_takes_it_and_its_configz(serving: Pair, node: Path, tmp_path: Path) -> None:
    """With a token, by the certificate that k3s has for its kubelet."""
    with closing(FakeKubelet(serving.server_context())) as server:
        server.tokens = {"good"}
        server.config = {"evictionHard": {"memory.available": "7Mi"}}
        install(node, "k3s")
        (node / "etc/rancher/k3s/config.yaml.d/a.yaml").write_text(f"kubelet-arg: port={server.port}\n")
        (node / "data/agent/serving-kubelet.crt").write_bytes(serving.certificate.read_bytes())
        token = kubeconfig(tmp_path / "k", "https://127.0.0.1:1", token="good")
        access = Access.found(RunConfig(kubeconfig=str(token), node_name="n"))
        choice = choose(access)
        assert (choice.spec, choice.tried) == (f"kubelet:https://127.0.0.1:{server.port}", ())
        [source] = kubelet_sources(access)
        assert source.content["evictionHard"] == {"memory.available": "7Mi"}
