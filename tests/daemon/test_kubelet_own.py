"""The kubelet's own configuration: asked of it, or read from its file, drop-ins and flags; and what differs from it."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.cli.run import _announce, _with_pods
from monitor.errors import MonitorError
from monitor.pods import installations
from monitor.pods.installations import NodeKubelet
from monitor.pods.spec import Choice
from monitor.settings import kubelet_own
from monitor.settings.config import RunConfig
from monitor.settings.read import check_enforced, read
from tests.daemon.config_files import KUBELET, build, kubeconfig, write
from tests.kube.conftest import authority as authority
from tests.kube.conftest import serving as serving
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_kubelet import FakeKubelet
from tests.kube.fake_tls import Pair

Beside = Callable[..., RunConfig]
HARD = {"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%"}


@pytest.fixture(autouse=True)
def no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is late, either."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for name in ("_TIMEOUT_S", "_CONNECT_S"):
        monkeypatch.setattr(kubelet_own, name, 60.0)


@pytest.fixture
def server(serving: Pair) -> Iterator[FakeKubelet]:
    made = FakeKubelet(serving.server_context())
    made.tokens = {"good"}
    yield made
    made.close()


@pytest.fixture
def running(server: FakeKubelet, serving: Pair, tmp_path: Path) -> NodeKubelet:
    """A kubelet that may be asked: with credentials, and its certificate on this node."""
    return NodeKubelet(
        "kubeadm",
        {"tls-cert-file": str(serving.certificate)},
        tmp_path / "config.yaml",
        {"port": server.port, "evictionHard": {"memory.available": "7Mi"}},
        kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1", token="good"),
    )


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Beside:
    """The configuration that is read where this kubelet runs, with these flags."""

    def config(kubelet: NodeKubelet, **flags: Any) -> RunConfig:
        monkeypatch.setattr(installations, "find_kubelet", lambda: kubelet)
        return read({name.replace("_", "-"): value for name, value in flags.items()}, ask_kubelet=True).config

    return config


# ---- /configz


def test_it_is_asked_of_the_kubelet_itself(server: FakeKubelet, running: NodeKubelet, beside: Beside) -> None:
    server.config = {
        "evictionHard": HARD,
        "evictionSoft": {"memory.available": "200Mi"},
        "evictionSoftGracePeriod": {"memory.available": "1m0s"},
        "kubeReserved": {"memory": "300Mi", "cpu": "100m"},
        "cgroupRoot": "/lab",
        "evictionPressureTransitionPeriod": "0s",
        "enforceNodeAllocatable": ["pods"],
        "containerLogMaxSize": "10Mi",
    }
    config = beside(running)
    assert config.eviction_hard == HARD
    assert config.eviction_soft == {"memory.available": "200Mi"}
    assert (config.kube_reserved, config.cgroup_root) == (300 << 20, "/lab")
    where = f"the kubelet's /configz at https://127.0.0.1:{server.port}"
    assert config.origins["eviction_hard"] == f"{where}: evictionHard"
    assert config.kubelet_differs == ()
    # `evictionHard: {}` switches a kubelet's thresholds off, and is written as nothing (omitempty): no default.
    server.config = {"cgroupDriver": "systemd"}
    config = beside(running)
    assert (config.eviction_hard, config.enforce_node_allocatable) == ({}, ())


@pytest.mark.parametrize("wrong", ["forbidden", "token", "away", "shape", "certificate"])
def test_where_it_may_not_be_asked_its_file_is_read(
    wrong: str, server: FakeKubelet, running: NodeKubelet, beside: Beside, tmp_path: Path
) -> None:
    if wrong == "forbidden":
        server.forbidden.add("/configz")
    elif wrong == "token":
        server.tokens = {"another"}
    elif wrong == "away":
        server.refuse()
    elif wrong == "shape":
        server.fail(lambda _, reply: reply.json(200, {"kubeletconfig": [1]}))
    elif wrong == "certificate":
        running = dataclasses.replace(running, flags={"cert-dir": str(tmp_path)})
    config = beside(running)
    assert config.eviction_hard == {"memory.available": "7Mi"}
    assert config.origins["eviction_hard"] == f"the kubelet's {tmp_path / 'config.yaml'}: evictionHard"


# ---- file, drop-ins and flags


def test_a_flag_takes_the_place_of_a_whole_map(beside: Beside) -> None:
    file = {"evictionHard": HARD, "kubeReserved": {"memory": "1Gi"}, "evictionMaxPodGracePeriod": 5}
    drop_in = {"evictionHard": {"memory.available": "150Mi"}, "kubeReserved": {"memory": "2Gi"}}
    flags = {"eviction-hard": "memory.available<300Mi", "eviction-max-pod-grace-period": "9", "v": "2"}
    flags |= {"enforce-node-allocatable": "pods,system-reserved", "local-storage-capacity-isolation": "false"}
    given = {"config_path": Path("/k.yaml"), "config": file, "drop_ins": ((Path("/d/1.conf"), drop_in),)}
    config = beside(NodeKubelet("kubeadm", **given))
    assert config.eviction_hard == {**HARD, "memory.available": "150Mi"}
    assert config.kube_reserved == 2 << 30
    config = beside(NodeKubelet("kubeadm", flags, **given))
    assert config.eviction_hard == {"memory.available": "300Mi"}
    assert config.eviction_max_pod_grace_period_s == 9
    assert config.enforce_node_allocatable == ("pods", "system-reserved")
    assert config.origins["eviction_hard"] == "the kubelet's flags (kubeadm): evictionHard"


# ---- the request, and what differs


def test_a_file_that_is_given_is_the_one_that_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write(tmp_path, "given.yaml", f"{KUBELET}evictionHard: {{}}\n")
    gated = write(tmp_path, "gated.yaml", f"{KUBELET}featureGates: {{{GATE}: false}}\n")
    monkeypatch.setattr(installations, "find_kubelet", lambda: NodeKubelet("kubeadm"))
    for name in ("kubelet_sources", "kubelet_release"):
        monkeypatch.setattr(kubelet_own, name, lambda *_: pytest.fail("asked"))
    assert read({"policy": "kubelet-1.8"}, None, path, ask_kubelet=True).config.eviction_hard == {}
    config = read({}, None, gated, ask_kubelet=True).config
    assert (config.policy, config.origins["policy"]) == ("kubelet-1.36", f"{gated}: featureGates.{GATE}")
    assert read({"node-cgroup": "lab"}, ask_kubelet=True).config.node_cgroup == "lab"


def test_what_was_given_wins_and_the_difference_is_logged(beside: Beside) -> None:
    file = {"evictionHard": {"memory.available": "100Mi"}, "evictionMaxPodGracePeriod": 5}
    kubelet = NodeKubelet("kubeadm", config_path=Path("/k.yaml"), config=file)
    config = beside(kubelet, eviction_hard="memory.available<1Gi", eviction_max_pod_grace_period=5)
    assert config.eviction_hard == {"memory.available": "1Gi"}
    assert config.kubelet_differs == (
        '--eviction-hard is {"memory.available": "1Gi"}; '
        'the kubelet\'s /k.yaml has evictionHard {"memory.available": "100Mi"}',
    )


def test_whose_line_it_is_that_holds_stay_above(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Found by its files, by --kubelet-config alone, or not at all: then it has the defaults."""
    file = tmp_path / "kubelet.yaml"
    file.write_text(KUBELET + "evictionHard: {memory.available: 200Mi}\n")
    ours = {"eviction-hard": "memory.available<100Mi"}
    assert not build({}, None, str(file)).has_own_line(found=False)
    assert not build({}).has_own_line(found=False)
    assert build(ours, None, str(file)).has_own_line(found=False)
    assert build(ours).has_own_line(found=False)
    config = build(ours)
    assert not config.has_own_line(found=True)
    assert dataclasses.replace(config, kubelet_differs=("x has evictionHard {}",)).has_own_line(found=True)
    choice = Choice("kubelet:https://127.0.0.1:10250", "as given")
    access = SimpleNamespace(kubelet=NodeKubelet(), settled=dict)
    monkeypatch.setattr("monitor.pods.source.settle", lambda _: (choice, access))
    holds, kills = {"mode": "hold"}, {"mode": "enforce"}
    for given, held_above in ((holds, True), ({**holds, **ours}, False), (kills, False)):
        assert _with_pods(build(given, None, str(file)))[0].two_steps == held_above


# ---- its release

GATE = "HugepageAwareEviction"


@pytest.mark.parametrize(
    ("gates", "expected"),
    [({GATE: False}, "kubelet-1.36"), ({GATE: True, "AllBeta": False}, "kubelet-1.37"), ([GATE], "kubelet-1.37")],
)
def test_its_gate_makes_the_release(
    gates: Any, expected: str, server: FakeKubelet, running: NodeKubelet, beside: Beside, tmp_path: Path
) -> None:
    server.config = {"featureGates": gates, "enforceNodeAllocatable": ["pods"]}
    config = beside(running)
    assert config.policy == expected
    where = f"the kubelet's /configz at https://127.0.0.1:{server.port}: featureGates.{next(iter(gates))}"
    by_file = read({}, None, write(tmp_path, "k.yaml", KUBELET), ask_kubelet=True).config
    origins = [one.origins["policy"].partition("; ")[0] for one in (config, by_file)]
    assert (by_file.policy, origins) == (expected, [where if isinstance(gates, dict) else "default"] * 2)
    assert beside(running, policy="kubelet-1.17").policy == "kubelet-1.17"


def test_the_gate_of_files_and_flags(beside: Beside) -> None:
    """The kubelet's own file; a drop-in and a flag over that."""
    off, on, beta = ({"featureGates": gates} for gates in ({GATE: False}, {GATE: True}, {"AllBeta": False}))
    found = {"config_path": Path("/k.yaml"), "config": off}
    for more, expected in (
        ({}, "kubelet-1.36"),
        ({"drop_ins": ((Path("/d/1.conf"), on),)}, "kubelet-1.37"),
        ({"flags": {"feature-gates": f"A=true, {GATE}=true,B"}}, "kubelet-1.37"),
        ({"config": beta, "drop_ins": ((Path("/d/1.conf"), {"featureGates": {"AllBeta": True}}),)}, "kubelet-1.37"),
    ):
        assert beside(NodeKubelet("kubeadm", **{**found, **more})).policy == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("v1.36.2", "kubelet-1.36"), ("v1.19.0", "kubelet-1.36"), ("v1.37.0-beta.0", "kubelet-1.37"),
        ("v1.18.20", "kubelet-1.17"), ("v1.9.0", "kubelet-1.17"), ("v1.8.15", "kubelet-1.8"), ("v1.2.0", "kubelet-1.8"),
        ("v1.36.2+k3s1", "kubelet-1.36"), ("v2.0.0", "kubelet-1.37"), ("1.36", ""), (None, ""), ("v1.36.0 now", ""),
    ],
)  # fmt: skip
def test_its_version_makes_the_release(
    version: str | None, expected: str, tmp_path: Path, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(FakeApiServer()) as api:
        status = {"nodeInfo": {"kubeletVersion": version}} if version else {}
        api.store.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": status})
        credentials = kubeconfig(tmp_path / "kubeconfig", f"http://127.0.0.1:{api.port}", token="t")
        flags = {"hostname-override": "n", "port": "1"}
        kubelet = NodeKubelet("kubeadm", flags, Path("/k.yaml"), {}, credentials)
        config = beside(kubelet)
        origin = f"the kubelet's version {version} at http://127.0.0.1:{api.port}" if expected else "default"
        file = write(tmp_path, "given.yaml", KUBELET)
        by_file = read({}, None, file, ask_kubelet=True).config
        monkeypatch.setattr(installations, "find_kubelet", NodeKubelet)
        elsewhere = read({"kubeconfig": str(credentials), "node-name": "n"}, None, file, ask_kubelet=True).config
        for one in (config, by_file, elsewhere):
            assert (one.policy, one.origins["policy"].partition("; ")[0]) == (expected or "kubelet-1.37", origin)
            assert ("kubeletVersion" in one.origins["policy"]) is not bool(expected)
        # A gate and --policy say it better, and what others can write is not believed.
        gated = dataclasses.replace(kubelet, config={"featureGates": {GATE: True}})
        assert beside(gated).policy == "kubelet-1.37"
        assert beside(kubelet, policy="kubelet-1.8").policy == "kubelet-1.8"
        refused = dataclasses.replace(kubelet, refused="others can write it")
        assert beside(refused).origins["policy"].endswith("; others can write it")
    away = beside(kubelet)
    assert away.origins["policy"].startswith(f"default; {GATE} is not set in the kubelet's /k.yaml; ")


# ---- where nothing of it can be read


@pytest.fixture
def unread(server: FakeKubelet, running: NodeKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeKubelet:
    """A kubelet as it is found, that names a file which is not there (for us), and refuses to be asked."""
    server.forbidden.add("/configz")
    flags = f"--port={server.port} --tls-cert-file={running.flags['tls-cert-file']} --config={tmp_path / 'none.yaml'}"
    monkeypatch.setattr(installations, "ROOT", tmp_path / "root")
    for path, text in (
        ("var/lib/kubelet/kubeadm-flags.env", f'KUBELET_KUBEADM_ARGS="{flags}"\n'),
        ("etc/kubernetes/kubelet.conf", running.kubeconfig.read_text() if running.kubeconfig else ""),
    ):
        (tmp_path / "root" / path).parent.mkdir(parents=True)
        (tmp_path / "root" / path).write_text(text)
    return installations.find_kubelet()


ENFORCED = {"enforce": True, "pods": "apiserver"}


def test_a_kubelet_whose_thresholds_cannot_be_read(
    unread: NodeKubelet, beside: Beside, capfd: pytest.CaptureFixture[str]
) -> None:
    """The default of 100Mi would be enforced on a node whose own line is 10Mi, and no line would be logged."""
    config = beside(unread)
    assert "none.yaml: No such file or directory" in config.kubelet_unread
    assert "/configz: " in config.kubelet_unread
    assert "403" in config.kubelet_unread
    _announce(RunConfig.from_json(config.to_json()), Choice("cgroups", "as given"), False)
    output = capfd.readouterr().err
    assert "the kubelet's configuration cannot be read" in output
    assert "none.yaml: No such file or directory" in output
    assert output.count("the kubelet's release is not known") == 1
    assert f'policy=kubelet-1.37 asked="{GATE} is not set in what can be read; http' in output
    check_enforced(config)
    expected = r"none\.yaml: .*403.*give --kubelet-config FILE or --eviction-hard"
    with pytest.raises(MonitorError, match=expected) as refused:
        check_enforced(beside(unread, **ENFORCED))
    assert refused.value.exit_code == 1


def test_thresholds_that_are_given_may_be_enforced_all_the_same(
    unread: NodeKubelet, server: FakeKubelet, beside: Beside
) -> None:
    config = beside(unread, eviction_hard="memory.available<10Mi", **ENFORCED)
    assert config.kubelet_unread
    check_enforced(config)
    flags = {"eviction-hard": "memory.available<20Mi", "system-reserved": "memory=1Gi", "eviction-soft": "nonsense"}
    config = beside(dataclasses.replace(unread, flags={**unread.flags, **flags}), **ENFORCED)
    assert config.eviction_hard == {"memory.available": "20Mi"}
    assert (config.system_reserved, config.eviction_soft) == (1 << 30, {})
    check_enforced(config)
    server.forbidden.clear()
    server.config = {"evictionHard": {"memory.available": "30Mi"}}
    config = beside(unread, **ENFORCED)
    assert (config.kubelet_unread, config.eviction_hard) == ("", {"memory.available": "30Mi"})
    check_enforced(config)
