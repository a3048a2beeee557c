"""A server at a real unix socket that answers as docker and podman were seen to (and is neither)."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from monitor.pods.runtimes import Runtimes
from tests.pods.unit_tree import OTHER, POD

LIST = "/containers/json?all=true"
IMAGES = "/images/json?all=true"
PODS = "/v4.0.0/libpod/pods/json"


class FakeRuntime:
    """Answers ``GET`` of the paths it knows; one that ``hangs`` never ends an answer."""

    def __init__(self, path: Path, answers: dict[str, Any], hangs: bool = False) -> None:
        self.asked: list[str] = []
        self._answers, self._hangs = answers, hangs
        self._kept: list[socket.socket] = []
        self._closing = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._closing.is_set():
            connection, _ = self._socket.accept()
            with connection:
                if question := connection.recv(65536).decode():
                    self.asked.append(question.split()[1])
                    self._answer(connection, self.asked[-1])

    def _answer(self, connection: socket.socket, path: str) -> None:
        found = self._answers.get(path)
        status = "200 OK" if path in self._answers else "404 Not Found"
        body = json.dumps(found).encode()
        head = f"HTTP/1.0 {status}\r\nApi-Version: 1.43\r\nContent-Type: application/json\r\n\r\n".encode()
        try:
            connection.sendall(head + body[: 1 if self._hangs else None])
        except OSError:
            pass  # the client has gone
        if self._hangs:
            self._kept.append(connection.dup())

    def close(self) -> None:
        self._closing.set()
        with socket.socket(socket.AF_UNIX) as waker:
            waker.connect(self._socket.getsockname())
        self._thread.join()
        for one in (self._socket, *self._kept):
            one.close()


@contextmanager
def podman(tmp_path: Path, containers: list[dict[str, Any]], pod: dict[str, Any]) -> Iterator[Runtimes]:
    pod = {"Cgroup": "/libpod_parent", "Id": POD, "Name": "shop", "Status": "Running", "InfraId": OTHER, **pod}
    with closing(FakeRuntime(tmp_path / "podman.sock", {LIST: containers, PODS: [pod], IMAGES: []})):
        yield Runtimes({"podman": str(tmp_path / "podman.sock")})
