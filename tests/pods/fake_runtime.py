"""A server at a real unix socket that answers as docker and podman were seen to (and is neither)."""

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from monitor.pods.runtimes import Runtimes
from tests.pods.unit_tree import OTHER, POD

LIST = "/containers/json?all=true"
IMAGES = "/images/json?all=true"
PODS = "/v4.0.0/libpod/pods/json"


class FakeRuntime(socketserver.UnixStreamServer):
    """Answers ``GET`` of the paths it knows; one that ``hangs`` never ends an answer."""

    shutdown_request = socketserver.UnixStreamServer.close_request
    request_queue_size = 64

    def __init__(self, path: Path, answers: dict[str, Any], hangs: bool = False) -> None:
        self.asked: list[str] = []
        self._answers, self._hangs = answers, hangs
        self._kept: list[socket.socket] = []
        super().__init__(str(path), socketserver.BaseRequestHandler)
        threading.Thread(target=self.serve_forever, args=(0.02,)).start()

    def finish_request(self, request: Any, client_address: object) -> None:
        if not (question := request.recv(65536).decode()):
            return
        path = question.split()[1]
        self.asked.append(path)
        status = "200 OK" if path in self._answers else "404 Not Found"
        head = f"HTTP/1.0 {status}\r\nApi-Version: 1.43\r\nContent-Type: application/json\r\n\r\n"
        with suppress(OSError):  # the client has gone
            request.sendall(head.encode() + json.dumps(self._answers.get(path)).encode()[: 1 if self._hangs else None])
        if self._hangs:
            self._kept.append(request.dup())

    def handle_error(self, *_: object) -> None:
        raise  # of the request that is answered: a broken stand-in is no silent runtime

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        for one in self._kept:
            one.close()


@contextmanager
def podman(tmp_path: Path, containers: list[dict[str, Any]], pod: dict[str, Any]) -> Iterator[Runtimes]:
    pod = {"Cgroup": "/libpod_parent", "Id": POD, "Name": "shop", "Status": "Running", "InfraId": OTHER, **pod}
    with closing(FakeRuntime(tmp_path / "podman.sock", {LIST: containers, PODS: [pod], IMAGES: []})):
        yield Runtimes({"podman": str(tmp_path / "podman.sock")})
