"""Tokens, CAs and client certificates that are rotated while we run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.errors import ConfigError
from monitor.kube.auth import TokenFile
from monitor.kube.client import ApiClient
from monitor.kube.cluster import ClusterConfig, in_cluster, parse_server
from monitor.kube.errors import CertificateError, Unauthorized
from monitor.kube.tls import Pem, TlsSettings
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_tls import Authority, Pair
from tests.kube.requests import a_pod as a_pod
from tests.kube.requests import create, get

Connect = Callable[..., ApiClient]


def replaced(path: Path, data: bytes) -> None:
    """As the kubelet does with a projected volume: another file under the old name."""
    new = path.with_suffix(".new")
    new.write_bytes(data)
    os.replace(new, path)


def service_account(api: FakeApiServer, secrets: Path) -> ClusterConfig:
    api.tokens = {"good"}
    return in_cluster({"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.port)}, secrets)


def test_a_token_that_was_rotated_is_used_from_then_on(api: FakeApiServer, secrets: Path, connect: Connect) -> None:
    client = connect(service_account(api, secrets))
    get(client)
    replaced(secrets / "token", b"newer")
    api.tokens = {"newer"}
    get(client)
    assert len(api.asked) == 2
    (secrets / "token").unlink()  # while it is away the last one is used
    get(client)
    assert client.namespace == "outrace"


def test_a_401_has_the_token_read_once_more(api: FakeApiServer, tmp_path: Path, connect: Connect) -> None:
    token = tmp_path / "token"
    token.write_text("stale")
    os.utime(token, ns=(1, 1))
    api.tokens = {"fresh"}
    config = ClusterConfig(parse_server(api.url, ""), TlsSettings(insecure=True), TokenFile(token))
    client = connect(config)
    with pytest.raises(Unauthorized, match="give a token or client certificate that is valid"):
        create(client)
    assert len(api.asked) == 1  # it is the same one: nothing to try
    with token.open("r+") as f:  # in place, with the old time: nothing but the 401 shows it
        f.write("fresh")
    os.utime(token, ns=(1, 1))
    create(client)
    assert len(api.asked) == 3


def test_a_401_while_the_token_is_away_is_one_error(api: FakeApiServer, secrets: Path, connect: Connect) -> None:
    client = connect(service_account(api, secrets))
    api.tokens = {"newer"}
    (secrets / "token").unlink()
    with pytest.raises(ConfigError, match="token: No such file"):
        get(client)


@pytest.mark.parametrize("bad", [b"", b"  \n", b"a b", b"a\r\nX-Evil: 1", b"\xff\xfe"])
def test_a_bad_token_is_never_sent(api: FakeApiServer, secrets: Path, bad: bytes, connect: Connect) -> None:
    client = connect(service_account(api, secrets))
    replaced(secrets / "token", bad)
    with pytest.raises(Exception, match="token") as caught:
        get(client)
    assert bad.decode(errors="replace").strip() == "" or bad.decode("latin1") not in str(caught.value)
    assert api.asked == []


def test_a_ca_that_was_rotated_is_read_again(
    api: FakeApiServer, secrets: Path, tmp_path: Path, connect: Connect
) -> None:
    client = connect(service_account(api, secrets))
    get(client)
    newer = Authority(tmp_path, "newer-ca")
    api.context = newer.issue("newer", "127.0.0.1").server_context()
    api.drop_connections()
    time.sleep(0.1)
    with pytest.raises(CertificateError):
        get(client)
    replaced(secrets / "ca.crt", newer.certificate.read_bytes())
    get(client)


def test_a_client_certificate_that_was_rotated_makes_a_new_connection(
    api: FakeApiServer, authority: Authority, serving: Pair, tmp_path: Path, connect: Connect
) -> None:
    api.context = serving.server_context(authority.certificate)
    api.tokens = set()
    names = tmp_path / "client.crt", tmp_path / "client.key"

    def rotate(name: str) -> None:
        pair = authority.issue(name)
        for path, new in zip(names, (pair.certificate, pair.key), strict=True):
            replaced(path, new.read_bytes())

    rotate("first")
    pems = [Pem("test", path) for path in names]
    tls = TlsSettings(Pem("ca", authority.certificate), client_certificate=pems[0], client_key=pems[1])
    client = connect(ClusterConfig(parse_server(api.url, ""), tls))
    get(client)
    get(client)
    rotate("second")
    get(client)
    assert [(one.client_name, one.connection) for one in api.asked] == [("first", 1), ("first", 1), ("second", 2)]
