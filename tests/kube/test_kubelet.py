"""The kubelet's endpoints, and how we know that it is the kubelet."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.errors import ConfigError
from monitor.kube import errors
from monitor.kube.cluster import Pem, TlsSettings, fixed
from monitor.kube.kubelet import KubeletClient, kubelet_config, pinned
from tests.kube import faults
from tests.kube.fake_apiserver import named, pod
from tests.kube.fake_kubelet import FakeKubelet
from tests.kube.fake_tls import Authority, Pair


@pytest.fixture
def own(tmp_path: Path) -> Pair:
    """A certificate of an unknown CA, as a kubelet makes for itself, for a name that we do not use."""
    return Authority(tmp_path, "node-1-ca@1700000000").issue("node-1")


@pytest.fixture
def kubelet(own: Pair) -> Iterator[FakeKubelet]:
    server = FakeKubelet(own.server_context())
    server.tokens = {"good"}
    server.pods = [pod(f"p{i}") for i in range(3)]
    yield server
    server.close()


@pytest.fixture
def client(kubelet: FakeKubelet, own: Pair, stop: threading.Event) -> Iterator[KubeletClient]:
    made = KubeletClient(kubelet_config(kubelet.url, pinned((), [own.certificate]), fixed("good")), stop)
    yield made
    made.close()


def test_what_a_kubelet_knows(kubelet: FakeKubelet, client: KubeletClient) -> None:
    assert client.pods(named) == ("p0", "p1", "p2")
    assert client.pods(lambda found: None if named(found) == "p1" else named(found)) == ("p0", "p2")
    assert client.configz()["evictionHard"] == {"memory.available": "100Mi"}
    assert kubelet.connections == 1
    kubelet.pods = None
    assert client.pods(named) == ()


def test_another_process_on_its_port_gets_nothing(kubelet: FakeKubelet, client: KubeletClient, tmp_path: Path) -> None:
    client.pods(named)
    kubelet.context = Authority(tmp_path, "impostor").issue("node-1.impostor", "node-1", "127.0.0.1").server_context()
    kubelet.drop_connections()
    asked = len(kubelet.asked)
    with pytest.raises(
        errors.CertificateError, match=r"shows a certificate that is not in .*node-1\.crt; another process"
    ):
        client.pods(named)
    assert len(kubelet.asked) == asked


def test_a_certificate_that_was_rotated_is_known(
    kubelet: FakeKubelet, client: KubeletClient, own: Pair, tmp_path: Path
) -> None:
    client.pods(named)
    newer = Authority(tmp_path, "newer-ca").issue("newer")
    kubelet.context = newer.server_context()
    kubelet.drop_connections()
    os.replace(newer.certificate, own.certificate)
    client.pods(named)


def test_by_a_ca_the_name_of_the_node_counts(authority: Authority) -> None:
    server = FakeKubelet(authority.issue("node-7").server_context())
    right, wrong = (
        KubeletClient(kubelet_config(server.url, TlsSettings(Pem("ca", authority.certificate), server_name=name)))
        for name in ("node-7", "node-8")
    )
    right.configz()
    with pytest.raises(errors.CertificateError):
        wrong.configz()
    right.close()
    server.close()


def test_without_any_way_to_know_it_nothing_is_sent(tmp_path: Path) -> None:
    own = [tmp_path / "kubelet.crt"]
    with pytest.raises(
        ConfigError, match=r"no certificate of a kubelet: there is no .*; mount that directory, or give"
    ):
        pinned((), own)
    own[0].write_text("empty")
    with pytest.raises(ConfigError, match="has no certificate"):
        kubelet_config("https://127.0.0.1:10250", pinned((), own))


def test_a_bad_url_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"^--pods: "):
        kubelet_config("127.0.0.1:10250", TlsSettings(), where="--pods")


def test_refusals_name_the_missing_right(kubelet: FakeKubelet, client: KubeletClient) -> None:
    kubelet.forbidden = {"/pods", "/configz"}
    with pytest.raises(errors.Forbidden, match=r'nodes/pods.*before Kubernetes 1\.33 resources: \["nodes/proxy"\]'):
        client.pods(named)
    with pytest.raises(errors.Forbidden, match="nodes/configz"):
        client.configz()
    kubelet.tokens = set()
    with pytest.raises(errors.Unauthorized):
        client.pods(named)


def test_an_answer_without_pods_is_an_error_and_not_an_empty_node(kubelet: FakeKubelet, client: KubeletClient) -> None:
    """test_transport.py and test_client.py have the other bad answers, of the same transport."""
    for ask in (lambda: client.pods(named), client.configz):
        kubelet.fail(faults.garbage(b"{}"))
        with pytest.raises(errors.KubeError):
            ask()
