"""Which pods `--pods auto` takes, what it logs, and what the source reports of a cluster's pods."""

import copy
import dataclasses
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from monitor.errors import ConfigError, MonitorError
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods import feed, installations
from monitor.pods.access import Access, choose
from monitor.pods.installations import NodeKubelet
from monitor.pods.model import Ends
from monitor.pods.source import open_for, settle
from monitor.pods.spec import Choice, without_cluster
from monitor.settings.config import RunConfig
from monitor.settings.read import check_enforced
from tests import live
from tests.commands import run
from tests.daemon.config_files import kubeconfig
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_kubelet import FakeKubelet
from tests.kube.fake_tls import Authority
from tests.pods.cluster import NODE, a_pod
from tests.waiting import until

api = live.fixture(lambda: closing(FakeApiServer()))


@pytest.fixture(autouse=True)
def _manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.pods.spec.MANIFEST_DIR", tmp_path / "pods")


def process(config: Path | None = None, **more: Any) -> NodeKubelet:
    path = Path("/var/lib/kubelet/config.yaml")
    return NodeKubelet("kubeadm", config_path=path, kubeconfig=config, **more)


@pytest.mark.parametrize(
    ("server", "spec", "why", "tried"),
    [
        ("ready", "apiserver", "(the kubelet's own {made}) answers", ""),
        # The rule that is missing is named.
        ("forbids", "cgroups", "no pods of a cluster can be had", 'resources: ["pods"], verbs'),
        # The node boots: a guess would rank wrongly for as long as the daemon lives.
        ("away", "apiserver", "whose servers do not answer yet", "refused"),
    ],
)
def test_what_is_chosen(api: FakeApiServer, tmp_path: Path, server: str, spec: str, why: str, tried: str) -> None:
    if server == "forbids":
        api.forbidden.add(("list", "pods"))
    if server == "away":
        api.refuse()
        (tmp_path / "pods").mkdir()
    made = kubeconfig(tmp_path / "k", api.url)
    found = choose(Access(kubelet=process(made)))
    assert (found.spec, found.kubelet, len(found.tried)) == (spec, True, bool(tried))
    assert why.format(made=made) in found.why
    assert all(tried in line for line in found.tried), found.tried


@pytest.mark.parametrize("text", ["{", "kind: Config", "clusters: [7]"])
def test_credentials_that_cannot_be_read_are_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "k").write_text(text)
    found = choose(Access(kubelet=process(tmp_path / "k")))
    assert found.spec == "cgroups"
    assert str(tmp_path / "k") in found.tried[0]


def test_without_a_kubelet(tmp_path: Path) -> None:
    found = without_cluster()
    assert found == Choice("services", f"no kubelet here, and there is no {tmp_path / 'pods'}")
    found = without_cluster(kubepods=tmp_path / "kubepods")
    assert (found.spec, str(tmp_path / "kubepods") in found.why) == ("cgroups", True)
    assert "none of the known places: give --kubelet-config FILE and --kubeconfig FILE" in found.tried[0]
    with pytest.raises(ConfigError, match="give --kubelet-config FILE and --kubeconfig FILE"):
        check_enforced(RunConfig(pods=found.spec, enforce=True), found)
    assert without_cluster(kubelet=True).spec == "cgroups"
    assert without_cluster(["the kubelet does not answer"]).spec == "cgroups"
    (tmp_path / "pods").mkdir()
    assert without_cluster().spec == f"manifests:{tmp_path / 'pods'}"


def test_without_any_sign_of_a_cluster_its_client_is_not_imported(tmp_path: Path) -> None:
    """25 ms of each start on a plain VM."""
    code = f"""
import sys
from pathlib import Path
from monitor.pods import installations
from monitor.pods.source import settle
from monitor.settings.config import RunConfig
installations.ROOT = Path({str(tmp_path / "none")!r})
settle(RunConfig())
print([name for name in sys.modules if name.startswith("monitor.kube") or name in ("ssl", "psutil")])
"""
    done = run(sys.executable, "-c", code, check=True)
    assert done.stdout == "[]\n"


def test_what_was_found_is_not_looked_for_again(
    api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet is away when the helper is started again: by the host's name there would be no pods at all."""
    made = kubeconfig(tmp_path / "k", api.url)
    flags = {"hostname-override": "node-9", "cert-dir": "/pki"}
    there = dataclasses.replace(process(made, flags=flags), config={"port": 4321})
    monkeypatch.setattr(installations, "find_kubelet", lambda: there)
    choice, access = settle(RunConfig())
    assert choice.spec == "apiserver"
    config = RunConfig(pods=choice.spec, **access.settled())
    assert (config.node_name, config.kubeconfig) == ("node-9", "")
    config = RunConfig.from_json(config.to_json())
    monkeypatch.setattr(installations, "find_kubelet", lambda: pytest.fail("looked for"))
    again = Access.found(config)
    assert (again.node, again.kubelet.pki) == ("node-9", Path("/pki"))
    assert again.kubelet.url == "https://127.0.0.1:4321"
    assert again.api_server()[0].server.port == api.port


def test_given_servers_that_cannot_be_had_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("monitor.pods.access.find_kubelet", NodeKubelet)
    for spec in ("apiserver", "kubelet:https://127.0.0.1:10250"):
        with pytest.raises(ConfigError, match="give --kubeconfig FILE"):
            settle(RunConfig(pods=spec))
    assert settle(RunConfig(pods="cgroups")) == (Choice("cgroups", "as given"), None)
    assert settle(RunConfig(node_cgroup=str(tmp_path)))[0].spec == "cgroups"


@pytest.mark.parametrize("kind", ["kubelet", "apiserver"])
def test_ends_of_pods_and_a_server_that_is_away_are_reported(
    api: FakeApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """By the source as the helper opens it."""
    authority = Authority(tmp_path)
    kubelet = FakeKubelet(authority.issue(NODE).server_context())
    monkeypatch.setattr("monitor.pods.access.find_kubelet", NodeKubelet)
    monkeypatch.setattr(feed, "POLL_S", 0.05)
    kubelet.pods = pods = [api.store.create("pods", a_pod(name, f"uid-{name}")) for name in ("held", "hog")]
    spec = f"kubelet:{kubelet.url}" if kind == "kubelet" else kind
    made = str(kubeconfig(tmp_path / "k", api.url))
    config = RunConfig(pods=spec, node_name=NODE, kubeconfig=made, kubelet_ca=str(authority.certificate))
    found = list[tuple[str, ...]]()
    ends = Ends(lambda *evicted: found.append(evicted), lambda ending: found.append((ending,)))
    with closing(open_for(config, Hierarchy(2, tmp_path), 1 << 30, state_dir=tmp_path, ends=ends)) as source:
        until(lambda: source.feed.synced, "the pods")
        assert not source.is_failing
        held, hog = changed = copy.deepcopy(pods)
        held["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
        hog["status"] |= {"phase": "Failed", "reason": "Evicted", "message": "low"}
        for one in changed:
            api.store.update(("pods", "shop", one["metadata"]["name"]), lambda _, one=one: one)
        kubelet.pods = changed
        until(lambda: len(found) == 2, "their ends")
        assert found == [("uid-held",), ("uid-hog", "shop/hog", "low")]
        server = kubelet if kind == "kubelet" else api
        server.refuse()
        until(lambda: source.is_failing, "a refused connection")
        server.listen()
        until(lambda: not source.is_failing, "an answer")
    kubelet.close()


def test_in_a_pod_the_name_of_the_node_has_to_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host name is the pod's there: a node of that name has no pods, and nothing would be evicted."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(ConfigError, match=r"give --node-name, in a DaemonSet from spec\.nodeName"):
        _ = Access().node
    assert Access(node_name="n1").node == "n1"
    assert Access(kubelet=NodeKubelet(flags={"hostname-override": "N2"})).node == "n2"


@pytest.mark.parametrize(
    "options", [{"enforce": True}, {"evict_by": "api"}, {"enforce": True, "evict_by": "api"}, {"node_taints": "own"}]
)
def test_on_a_node_that_cannot_be_asked_yet_what_needs_its_pods_is_tried_again(options: dict[str, Any]) -> None:
    """systemd starts it again after exit code 1, and not after 2 (`RestartPreventExitStatus`)."""
    config = RunConfig(pods="cgroups", **options)
    with pytest.raises(ConfigError) as refused:
        check_enforced(config, Choice("cgroups", "no kubelet here"))
    assert refused.value.exit_code == 2
    with pytest.raises(MonitorError) as later:
        check_enforced(config, Choice("cgroups", "nothing answers", ("the API server: refused",), True))
    assert later.value.exit_code == 1
    assert "(nothing answers; the API server: refused)" in str(later.value)
