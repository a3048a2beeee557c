"""What a local user's listener on the kubelet's port gets: a connection, and not one byte."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monitor.kube import peer
from monitor.kube.cluster import fixed
from monitor.kube.errors import CertificateError, TimedOut
from monitor.kube.kubelet import KubeletClient, KubeletTrust, kubelet_config
from monitor.kube.peer import Peer, check_peer
from monitor.kube.transport import Patience
from tests.kube.fake_kubelet import FakeKubelet
from tests.kube.fake_tls import Pair

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot start a process of another user")
NOBODY = 65534
#: Accepts on the inherited socket as uid 65534, and prints how many bytes came until the other end closed.
ACCEPT = """
import os, socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
address = listener.getsockname()
os.setresuid(65534, 65534, 65534)
if sys.argv[2] == "own":
    kept, listener = listener, socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen()
print("ready", flush=True)
came, (taken, _) = 0, listener.accept()
while data := taken.recv(4096):
    came += len(data)
print(came, flush=True)
"""


@contextmanager
def users_listener(whose: str, port: int = 0) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A process of uid 65534 that accepts one connection; ``whose`` socket it listens on: its own, or root's."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        port = listener.getsockname()[1]
        if whose != "own":
            listener.listen()  # else it keeps the port from others until the process listens there
        running = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", ACCEPT, str(listener.fileno()), whose],
            pass_fds=[listener.fileno()],
            stdout=subprocess.PIPE,
            text=True,
        )
    with running:
        try:
            assert running.stdout.readline() == "ready\n"
            yield port, running
        finally:
            running.kill()


@root_only
@pytest.mark.parametrize("whose", ["own", "root's"])
@pytest.mark.parametrize("how", ["http", "pinned", "ca"])
def test_a_listener_of_a_user_gets_no_request(how: str, whose: str, serving: Pair) -> None:
    """Not the token, not even the first message of TLS; also where root made the socket (systemd's sockets)."""
    trust = {
        "pinned": KubeletTrust(certificates=(serving.certificate,)),
        "ca": KubeletTrust(ca=serving.certificate, node_name="n"),
    }.get(how, KubeletTrust())
    with users_listener(whose) as (port, running):
        url = f"{'http' if how == 'http' else 'https'}://127.0.0.1:{port}"
        client = KubeletClient(kubelet_config(url, trust, fixed("secret")))
        with pytest.raises(CertificateError, match=f"user {NOBODY} serves it: a kubelet is root's"):
            client.pods(lambda pod: pod)
        client.close()
        assert running.stdout.readline() == "0\n"


@root_only
@pytest.mark.parametrize("tls", [True, False])
def test_nor_one_that_takes_the_port_while_the_kubelet_restarts(tls: bool, serving: Pair) -> None:
    kubelet = FakeKubelet(serving.server_context() if tls else None)
    trust = KubeletTrust(certificates=(serving.certificate,))
    client = KubeletClient(kubelet_config(kubelet.url, trust, fixed("secret")))
    assert client.pods(lambda pod: pod) == ()
    kubelet.refuse()
    with users_listener("own", kubelet.port) as (_, running):
        with pytest.raises(CertificateError, match=f"user {NOBODY} serves it"):
            client.pods(lambda pod: pod)
        assert running.stdout.readline() == "0\n"
    kubelet.listen()
    assert client.pods(lambda pod: pod) == ()
    client.close()
    kubelet.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("tls", [True, False])
def test_a_listener_of_root_is_asked(host: str, tls: bool, serving: Pair) -> None:
    """(Or of the user that asks.)"""
    try:
        kubelet = FakeKubelet(serving.server_context() if tls else None, host)
    except OSError:
        pytest.skip("no IPv6 here")
    client = KubeletClient(kubelet_config(kubelet.url, KubeletTrust(certificates=(serving.certificate,))))
    assert client.pods(lambda pod: pod) == ()
    client.close()
    kubelet.close()


def test_ipv4_to_a_socket_of_both() -> None:
    """As the kubelet listens: the other end is in the table of IPv6."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener,
        socket.create_connection(("127.0.0.1", listener.getsockname()[1])) as made,
    ):
        taken, _ = listener.accept()
        check_peer(made, Peer.ROOT, "the kubelet", Patience(threading.Event(), 60.0).slices())
        taken.close()


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A listener, and a connection that it has not accepted."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as made:
        yield listener, made


def test_what_is_not_accepted_yet_is_waited_for() -> None:
    """Until then its owner is not known: older kernels say 0 of everybody's."""
    with connection() as (listener, made):
        with pytest.raises(TimedOut):
            check_peer(made, Peer.ROOT, "the kubelet", Patience(threading.Event(), 0.2).slices())
        taken, _ = listener.accept()
        check_peer(made, Peer.ROOT, "the kubelet", Patience(threading.Event(), 60.0).slices())
        taken.close()


def test_another_machine_is_believed_by_its_certificate_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tcp").write_text("  sl  local_address\n")
    monkeypatch.setattr(peer, "_TABLES", (str(tmp_path / "tcp"), str(tmp_path / "none")))
    with connection() as (_, made):
        check_peer(made, Peer.ROOT_IF_HERE, "the kubelet", Patience(threading.Event(), 60.0).slices())
        with pytest.raises(CertificateError, match="no process of this machine serves it"):
            check_peer(made, Peer.ROOT, "the kubelet", Patience(threading.Event(), 60.0).slices())


def test_in_a_network_of_its_own_no_root_is_the_kubelet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "_in_other_network", lambda: True)
    with connection() as (_, made), pytest.raises(CertificateError, match="another network namespace"):
        check_peer(made, Peer.ROOT, "the kubelet", Patience(threading.Event(), 60.0).slices())
