"""Fake servers with TLS, and clients that trust them."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monitor.kube.client import ApiClient
from monitor.kube.cluster import ClusterConfig, Pem, TlsSettings, fixed, parse_server
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_tls import Authority, Pair


@pytest.fixture(autouse=True)
def no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are as short as they can be."""
    monkeypatch.setattr("monitor.kube.retry.random", lambda: 0.0)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="session")
def serving(authority: Authority) -> Pair:
    return authority.issue("server", "127.0.0.1", "::1", "kubernetes.default.svc", "localhost")


@pytest.fixture
def api(serving: Pair) -> Iterator[FakeApiServer]:
    server = FakeApiServer(serving.server_context())
    yield server
    server.close()


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def config(api: FakeApiServer, authority: Authority) -> ClusterConfig:
    tls = TlsSettings(ca=Pem("ca", authority.certificate))
    api.tokens = {"good"}
    return ClusterConfig(parse_server(api.url, "test"), tls, fixed("good"))


@pytest.fixture
def connect(stop: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ApiClient]]:
    """Makes clients, which are closed in the end. None of their requests is late, nor that of a status."""
    monkeypatch.setattr("monitor.side.cluster.reports.TIMEOUT_S", 60.0)
    made: list[ApiClient] = []

    def connect(config: ClusterConfig, **options: float) -> ApiClient:
        made.append(ApiClient(config, stop, **{"timeout_s": 60.0, "connect_s": 60.0, **options}))  # type: ignore[arg-type]
        return made[-1]

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Callable[..., ApiClient], config: ClusterConfig) -> ApiClient:
    return connect(config)


@pytest.fixture
def secrets(tmp_path: Path, authority: Authority) -> Path:
    """What a pod finds in its service account's directory."""
    (tmp_path / "token").write_text("good\n")
    (tmp_path / "ca.crt").write_bytes(authority.certificate.read_bytes())
    return tmp_path


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cluster") and not os.environ.get("KUBECONFIG"):
        pytest.skip("needs a Kubernetes cluster: set KUBECONFIG")
