"""Connections, TLS, time-outs, and credentials that are rotated, against a server and a network that are against us."""

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from monitor.errors import ConfigError
from monitor.kube import errors, transport
from monitor.kube.client import PODS, ApiClient
from monitor.kube.cluster import ClusterConfig, Pem, Server, TlsSettings, fixed, in_cluster, parse_server, token_file
from monitor.kube.transport import Patience, Plain, shake_hands
from tests.kube import faults
from tests.kube.fake_apiserver import FakeApiServer, pod
from tests.kube.fake_tls import Authority, Pair
from tests.waiting import until

Connect = Callable[..., ApiClient]


def get(client: ApiClient) -> object:
    return client.get(PODS, "a", "default")


def create(client: ApiClient) -> object:
    return client.create(PODS, pod("b"), "default")


@pytest.fixture(autouse=True)
def a_pod(api: FakeApiServer) -> None:
    api.store.create("pods", pod("a"))


def test_requests_share_a_connection(api: FakeApiServer, client: ApiClient) -> None:
    for _ in range(3):
        get(client)
        with pytest.raises(errors.NotFound):
            client.get(PODS, "b", "default")
        client.warm()
    assert api.connections == 1


def test_without_a_thread_it_connects_by_itself(client: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod's processes without end leave none to start."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("connect "):
            raise RuntimeError("can't start new thread")
        start(thread)  # the server's own

    monkeypatch.setattr(threading.Thread, "start", refused)
    client.warm()


def test_no_more_than_two_connections_are_kept(api: FakeApiServer, client: ApiClient) -> None:
    together = threading.Barrier(5)
    api.fail(lambda *_: together.wait() < 0, times=5, path="/pods/")
    threads = [threading.Thread(target=get, args=(client,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert api.connections == 5
    for _ in range(4):
        get(client)
    assert api.connections == 5
    assert client._idle.qsize() == 2


@pytest.mark.parametrize("ask", [get, create])
def test_a_connection_that_the_server_closed_is_opened_anew(
    api: FakeApiServer, client: ApiClient, ask: Callable[[ApiClient], object]
) -> None:
    get(client)
    api.drop_connections()
    until(lambda: all(one.waiting.stale() for one in client._idle.queue), "the end of the connection")
    ask(client)
    assert api.connections == 2
    assert len(api.asked) == 2


def test_one_that_breaks_under_a_request_is_tried_once_more(api: FakeApiServer, client: ApiClient) -> None:
    get(client)
    api.fail(faults.hang_up)
    get(client)
    assert api.connections == 2
    api.fail(faults.hang_up, times=2)
    with pytest.raises(errors.TransportError):
        get(client)
    assert len(api.asked) == 5
    get(client)
    api.fail(faults.hang_up)
    with pytest.raises(errors.TransportError):
        create(client)
    assert len(api.seen("POST")) == 1, "it may have been done"


def test_connection_refused_for_a_while(api: FakeApiServer, client: ApiClient) -> None:
    get(client)
    api.refuse()
    until(lambda: all(one.waiting.stale() for one in client._idle.queue), "the end of the connection")
    for _ in range(2):
        with pytest.raises(errors.TransportError, match=r"^https://127\.0\.0\.1:\d+: Connection refused$"):
            create(client)
    api.listen()
    create(client)


@pytest.mark.parametrize(
    ("do", "error"),
    [
        (faults.cut_off(), errors.TransportError),
        (faults.cut_off(announced=None), errors.InvalidResponse),
        (faults.no_http(), errors.TransportError),
        (faults.no_http(b"HTTP/1.1 200 OK\r\nContent-Length: 5"), errors.TransportError),
        (faults.no_http(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"), errors.TransportError),
        (faults.no_http(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{"), errors.TransportError),
        (faults.no_http(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n{}"), errors.TransportError),
    ],
)
def test_an_answer_that_is_cut_off_or_none_is_one_error(
    api: FakeApiServer, client: ApiClient, do: faults.Do, error: type[errors.KubeError]
) -> None:
    for ask in (get, lambda client: client.list(PODS, lambda one: one)):
        api.fail(do)
        with pytest.raises(error):
            ask(client)
    assert get(client)


def test_a_body_without_length_ends_with_the_connection(api: FakeApiServer, client: ApiClient) -> None:
    api.fail(faults.no_http(b'HTTP/1.1 200 OK\r\n\r\n{"a": 1}'))
    assert get(client) == {"a": 1}
    get(client)
    assert api.connections == 2


@pytest.mark.parametrize("do", [faults.hang, faults.drip])
def test_every_request_ends_in_time(api: FakeApiServer, client: ApiClient, do: faults.Do) -> None:
    get(client)  # a handshake may take longer than the next one gets
    client._timeout_s = 0.4
    api.fail(do)
    with pytest.raises(errors.TimedOut, match=r"no complete answer within 0\.4 s"):
        get(client)


def test_a_watch_may_last_longer_than_its_first_line(
    api: FakeApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.watch(PODS, str(api.store.version), silence_s=3600.0) as events:
        now = transport.time.monotonic
        monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: now() + 61.0))  # the status had 60 s
        threading.Timer(0.2, api.store.create, ("pods", pod("b"))).start()
        assert next(events).object["metadata"]["name"] == "b"


@pytest.mark.parametrize("do", [faults.hang, faults.drip])
def test_stop_ends_every_wait(api: FakeApiServer, client: ApiClient, stop: threading.Event, do: faults.Do) -> None:
    api.fail(do)
    threading.Timer(0.2, stop.set).start()
    for _ in range(2):
        with pytest.raises(errors.Cancelled):
            get(client)


def test_a_handshake_that_never_ends_times_out_or_is_stopped(
    config: ClusterConfig, stop: threading.Event, connect: Connect
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = ClusterConfig(Server("127.0.0.1", silent.getsockname()[1]), config.tls)
        with pytest.raises(errors.TimedOut, match=r"127\.0\.0\.1"):
            get(connect(server, connect_s=0.3))
        threading.Timer(0.2, stop.set).start()
        with pytest.raises(errors.Cancelled):
            get(connect(server, connect_s=600))


def test_stop_ends_a_name_that_is_not_resolved(
    config: ClusterConfig, stop: threading.Event, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(600) and [])
    client = connect(ClusterConfig(Server("apiserver.invalid", 443), config.tls), connect_s=600)
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(errors.Cancelled):
        get(client)
    released.set()


def test_an_unknown_ca_is_refused_before_anything_is_sent(
    api: FakeApiServer, config: ClusterConfig, tmp_path: Path, connect: Connect
) -> None:
    other = Authority(tmp_path, "other-ca")
    get(connect(ClusterConfig(config.server, TlsSettings(insecure=True), fixed("good"))))
    asked = len(api.asked)
    client = connect(ClusterConfig(config.server, TlsSettings(ca=Pem("ca", other.certificate)), fixed("good")))
    with pytest.raises(errors.CertificateError, match="is not trusted: unable to get local issuer"):
        create(client)
    assert len(api.asked) == asked


def test_a_peer_that_hangs_up_before_tls_leaves_no_socket_open() -> None:
    """`wrap_socket` leaks it (CPython 3.11): a warning in whatever test runs when it is collected."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = Plain(fileno=socket.create_connection(server.getsockname()).detach())
        peer, _ = server.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
        peer.close()
        name, sock.patience = f"/proc/self/fd/{sock.fileno()}", Patience(threading.Event())
        link = os.readlink(name)
        select.select([sock], [], [], 10)
        with pytest.raises(OSError):
            shake_hands(sock, ssl.create_default_context(), "localhost")
        sock.close()
        with contextlib.suppress(OSError):  # another thread may have the number by now
            assert os.readlink(name) != link


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
    api.tokens = {"newest"}
    with pytest.raises(ConfigError, match="token: No such file"):
        get(client)


def test_a_401_has_the_token_read_once_more(api: FakeApiServer, tmp_path: Path, connect: Connect) -> None:
    token = tmp_path / "token"
    token.write_text("stale")
    os.utime(token, ns=(1, 1))
    api.tokens = {"fresh"}
    config = ClusterConfig(parse_server(api.url, ""), TlsSettings(insecure=True), token_file(token))
    client = connect(config)
    with pytest.raises(errors.Unauthorized, match="give a token or client certificate that is valid"):
        create(client)
    assert len(api.asked) == 1  # it is the same one: nothing to try
    with token.open("r+") as f:  # in place, with the old time: nothing but the 401 shows it
        f.write("fresh")
    os.utime(token, ns=(1, 1))
    create(client)
    assert len(api.asked) == 3


@pytest.mark.parametrize("bad", [b"", b"  \n", b"a b", b"a\r\nX-Evil: 1", b"\xff\xfe"])
def test_a_bad_token_is_never_sent(api: FakeApiServer, secrets: Path, bad: bytes, connect: Connect) -> None:
    client = connect(service_account(api, secrets))
    replaced(secrets / "token", bad)
    with pytest.raises(Exception, match="token") as caught:
        get(client)
    assert bad.decode(errors="replace").strip() == "" or bad.decode("latin1") not in str(caught.value)
    assert api.asked == []


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
    pems = Pem("test", names[0]), Pem("test", names[1])
    tls = TlsSettings(Pem("ca", authority.certificate), client=pems)
    client = connect(ClusterConfig(parse_server(api.url, ""), tls))
    get(client)
    get(client)
    rotate("second")
    get(client)
    assert [(one.client_name, one.connection) for one in api.asked] == [("first", 1), ("first", 1), ("second", 2)]
