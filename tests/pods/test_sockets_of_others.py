"""What a runtime says is believed where root listens, on a socket that root alone could have put there."""

import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from monitor.owner import ChangeableError, connected
from monitor.pods.runtimes import Runtimes
from tests import live, others
from tests.pods.fake_runtime import IMAGES, LIST, FakeRuntime

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="not root: other users answer for their sockets themselves")
IDENT = "a" * 64
ANSWER = [{"Id": IDENT, "Names": ["/web"], "Labels": {"outrace/never": "true"}}]


shared = live.fixture(others.shared)


def listening(path: Path) -> str:
    return f"""
listener = socket.socket(socket.AF_UNIX)
listener.bind("{path}")
listener.listen()
print("listens", flush=True)
while True:
    connection, _ = listener.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + {json.dumps(ANSWER).encode()!r})
    connection.close()
"""


def asked(path: Path) -> Runtimes:
    runtimes = Runtimes({"docker": str(path)})
    runtimes.refresh({IDENT: "docker"})
    return runtimes


def test_a_server_of_another_user_is_not_believed(shared: Path) -> None:
    with others.doing(listening(shared / "docker.sock")):
        found = asked(shared / "docker.sock")
        assert found.known(IDENT) is None
        assert f"docker.sock belongs to user {others.UID}" in found.problems[0]
        os.chown(shared / "docker.sock", 0, 0)  # whatever the file is: the process that listens counts
        shared.chmod(0o755)
        found = asked(shared / "docker.sock")
        assert found.known(IDENT) is None
        assert f"a process of user {others.UID} listens there" in found.problems[0]


def test_a_link_of_another_user_to_roots_server_is_not_followed(shared: Path, tmp_path: Path) -> None:
    with closing(FakeRuntime(tmp_path / "docker.sock", {LIST: ANSWER, IMAGES: []})):
        (tmp_path / "docker.sock").chmod(0o666)  # as docker's is for its group
        assert asked(tmp_path / "docker.sock").known(IDENT).labels == {"outrace/never": "true"}
        others.does(f"os.symlink('{tmp_path}/docker.sock', '{shared}/docker.sock')")
        with pytest.raises(ChangeableError, match=f"docker.sock belongs to user {others.UID}"):
            connected(shared / "docker.sock", 1.0)
        assert asked(shared / "docker.sock").known(IDENT) is None


def test_an_answer_nested_without_end_is_one_problem(tmp_path: Path) -> None:
    """It ended the thread that looks for pods."""
    deep = json.loads("[" * 900 + "]" * 900)
    with closing(FakeRuntime(tmp_path / "docker.sock", {LIST: deep})):
        assert "nested too deeply" in asked(tmp_path / "docker.sock").problems[0]
