"""Who takes alerts in the lab: a real Alertmanager, or, where there is none, a stand-in with the same two requests.

Both report when an alert was first known to them, by their own clock (the machine's).
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol, Self

from monitor.errors import MonitorError
from monitor.owner import ChangeableError, mend, program

#: As the project and as Debian call it.
PROGRAMS = ("alertmanager", "prometheus-alertmanager")
#: How often a real one is asked what it knows.
POLL_S = 0.05
_CONFIG = """
route: {receiver: nowhere, group_by: [alertname, node], group_wait: 0s, group_interval: 1s}
receivers: [{name: nowhere}]
"""

#: Of an alert: its name, namespace and pod.
Key = tuple[str, str, str]


class Known(Protocol):
    """``url`` for `--alertmanager`; ``name`` for reports."""

    name: str

    @property
    def url(self) -> str: ...

    def first(self) -> Mapping[Key, float]:
        """Every alert that is known, and since when (Unix seconds)."""


def key_of(labels: Mapping[str, str]) -> Key:
    return labels.get("alertname", ""), labels.get("namespace", ""), labels.get("pod", "")


def find_program(path: str | None) -> str | None:
    """The Alertmanager to use: ``path``, else the one in PATH; None if there is none. MonitorError for a wrong path, or
    one that another user can change.
    """
    for name in (path,) if path else PROGRAMS:
        try:
            return program(name)
        except ChangeableError as error:
            raise MonitorError(error.problem, mend(error.problem)) from None
        except OSError:
            if path:
                raise MonitorError(f"{path} is no program", "name the alertmanager binary, or leave it out") from None
    return None


class Alertmanager:
    """A real one, asked every `POLL_S` seconds."""

    def __init__(self, program: str, directory: Path) -> None:
        self.name = Path(program).name
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._directory = directory
        self._first: dict[Key, float] = {}
        self._ended = threading.Event()
        (directory / "alertmanager.yml").write_text(_CONFIG)
        # It plays a receiver on another machine: as far as possible, the storm on this one does not slow it down.
        self._command: tuple[str, ...] = (
            *("nice", "-n", "-10"),
            program,
            f"--config.file={directory}/alertmanager.yml",
            f"--storage.path={directory}/alertmanager",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        )

    def first(self) -> Mapping[Key, float]:
        return dict(self._first)

    @contextmanager
    def running(self) -> Iterator[Alertmanager]:
        """Started and answering. MonitorError with its last words if it does not."""
        log = self._directory / "alertmanager.log"
        with log.open("wb") as out:
            process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        poller = threading.Thread(target=self._poll, name="alertmanager", daemon=True)
        try:
            deadline = time.monotonic() + 30
            while not self._look():
                if process.poll() is not None or time.monotonic() > deadline:
                    lines = log.read_text(errors="replace").splitlines()
                    raise MonitorError(f"{self.name} does not answer: {lines[-1] if lines else 'it wrote nothing'}")
                time.sleep(POLL_S)
            poller.start()
            yield self
        finally:
            self._ended.set()
            if poller.ident is not None:
                poller.join()
            process.kill()
            process.wait()

    def _poll(self) -> None:
        while not self._ended.wait(POLL_S):
            self._look()

    def _look(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=10) as answer:
                known = json.loads(answer.read())
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        for alert in known:
            # When it was last updated. It may be updated between two looks, so the earliest time counts.
            updated = datetime.fromisoformat(alert["updatedAt"]).timestamp()
            key = key_of(alert["labels"])
            self._first[key] = min(updated, self._first.get(key, updated))
        return True


class Receiver:
    """Context manager: a server on loopback that takes JSON and remembers it: ``posts`` are time, path and body."""

    def __init__(self) -> None:
        posts: list[tuple[float, str, Any]] = []
        self.posts = posts

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                posts.append((time.time(), self.path, body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing: stderr is the bench's."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class StandIn(Receiver):
    """Takes `POST /api/v2/alerts` as an Alertmanager does."""

    name = "stand-in"

    def first(self) -> Mapping[Key, float]:
        first: dict[Key, float] = {}
        for at, _, alerts in list(self.posts):
            for alert in alerts:
                first.setdefault(key_of(alert["labels"]), at)
        return first
