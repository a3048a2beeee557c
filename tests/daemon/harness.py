"""Runs the real helper process the way the hot process does, with the test as the hot end of the channel."""

import dataclasses
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from prometheus_client.parser import text_string_to_metric_families

from monitor.kernel import cgroupfs
from monitor.kernel.wire import OomEvent
from monitor.link import channel
from monitor.link.counters import SharedStats
from monitor.link.messages import NAMES, Decision, HotMessage, State
from monitor.settings.config import CHANNEL_FD, CONFIG_FD, STATS_FD, RunConfig
from monitor.side.export.http import FRESH_S
from tests import live

#: Far longer than anything takes; only a hang reaches it.
TIMEOUT_S = 120.0

#: Messages that a hot process sends, as the helper takes them.
STATE = State(conditions=[], met=[], armed=False, victim=None, observation={}, braked=None, ready=True)
DECISION = Decision(
    id=1,
    signal="memory.available",
    kind="hard",
    domain="node",
    quantity=100 << 20,
    available=99 << 20,
    capacity=512 << 20,
    usage=413 << 20,
    pod="uid-a",
    name="default/a",
    rank=1,
    grace_s=1,
    observed=True,
    trigger="user",
    crossed_ns=1,
    decided_ns=2,
    signalled_ns=None,
    given_s=0,
    working_set=200 << 20,
    request=64 << 20,
    containers={"main": 200 << 20},
    order=[],
    realtime=1_800_000_000.5,
)
OOM_EVENT = OomEvent(kind="mark", ts_ns=1, victim_pid=4711, victim_comm="hog", domain=0, victim_cgroup=1, oom_cgroup=7)


def oom(**fields: Any) -> OomEvent:
    """One step of an OOM kill in no pod, with these fields of its record."""
    return OOM_EVENT._replace(**fields)


class Hot:
    """The test's end: one channel, one page of counters, one listening socket, and the helper it started."""

    def __init__(self, config: RunConfig, log: Path) -> None:
        self.stats = SharedStats.create()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        own = {"listen_port": self.port, "listen_fd": self.listener.fileno(), "run_dir": config.state_dir}
        self.config = dataclasses.replace(config, **own)
        self.log_path = log
        self.kept_until = 0.0
        self.sock: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.log_file: IO[bytes] = open(log, "ab")  # noqa: SIM115 - lives as long as this object

    def start(self, stderr: int | IO[bytes] | None = None) -> None:
        """Start a helper, as the hot process does at the beginning and after the helper has died."""
        if self.sock is not None:
            self.sock.close()
        self.sock, side_end = channel.pair()
        self.sock.settimeout(TIMEOUT_S)
        config_fd = self.config.to_memfd()
        fds = (config_fd, side_end.fileno(), self.stats.fd, self.listener.fileno())
        names = {CONFIG_FD: fds[0], CHANNEL_FD: fds[1], STATS_FD: fds[2]}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "monitor.side.main"],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stderr=self.log_file if stderr is None else stderr,
            env=live.environment(**{name: str(fd) for name, fd in names.items()}),
            cwd="/",
        )
        os.close(config_fd)
        side_end.close()

    def receive_until(self, kind: str) -> list[Any]:
        """All messages up to and with the first of this type from the helper."""
        messages: list[Any] = []
        while not messages or NAMES.get(type(messages[-1]), "bad") != kind:
            packet = self.sock.recv(channel.MAX_PACKET)
            assert packet, f"the side closed the channel before {kind!r}:\n{self.log()}"
            messages.append(channel.decode(packet))
        return messages

    def receive(self, kind: str) -> Any:
        """The next message of this type from the helper."""
        return self.receive_until(kind)[-1]

    def send(self, message: HotMessage) -> None:
        assert channel.send(self.sock, message)

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_for_log(self, text: str) -> str:
        """The first log line that contains ``text``."""

        def found() -> str | None:
            return next((line for line in self.log().splitlines() if text in line), None)

        line: str = live.until(found, lambda: f"a log line with {text!r} in:\n{self.log()}")
        return line

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def end(self) -> int:
        """Close the channel, as a hot process does that ends; the helper's exit status."""
        self.sock.close()
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.sock is not None:
            self.sock.close()
        self.listener.close()
        self.log_file.close()
        os.close(self.stats.fd)


class Node:
    """A cgroup as the node, a manifest directory, and a helper that watches both."""

    def __init__(self, directory: Path, cgroup: Path) -> None:
        self.cgroup = cgroup
        self.manifests = directory / "manifests"
        self.manifests.mkdir()
        self.state_dir = directory / "state"
        self.directory = directory
        self.hot: Hot | None = None

    def run(self, stderr: Any = None, **settings: Any) -> Hot:
        """Start a helper; what it sends first has not been received."""
        settings = {"state_dir": str(self.state_dir), **settings}
        config = RunConfig(pods=f"manifests:{self.manifests}", node_cgroup=str(self.cgroup), **settings)
        self.hot = Hot(config, self.directory / "log")
        self.hot.start(stderr)
        return self.hot

    def synced(self, stderr: Any = None, **settings: Any) -> Hot:
        """Start a helper that has sent all pods."""
        hot = self.run(stderr, **settings)
        hot.receive("synced")
        return hot

    def pod(self, name: str, memory: str = "") -> Path:
        """A pod of one container, with a memory request if it is given; its cgroup."""
        cgroup = cgroupfs.make(self.cgroup / name)
        annotations = {"outrace/cgroup": str(cgroup.relative_to(cgroupfs.detect().root))}
        requests = {"memory": memory} if memory else {}
        made = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations},
            "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]},
        }
        temporary = self.manifests / f".{name}.tmp"
        temporary.write_text(json.dumps(made))
        temporary.rename(self.manifests / f"{name}.json")
        return cgroup


def side_node(tmp_path: Path) -> Iterator[Node]:
    """For `pytest.fixture`: a node of 512 MiB; the helper that was run on it ends with it."""
    with live.cgroup("side", 512 << 20) as cgroup:
        node = Node(tmp_path, cgroup)
        try:
            yield node
        finally:
            if node.hot is not None:
                node.hot.close()


Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def metrics(hot: Hot) -> Series:
    """Of this moment: a copy that answered an earlier call is waited out, for a second at most."""
    time.sleep(max(0.0, hot.kept_until - time.monotonic()))
    status, body = hot.get("/metrics")
    hot.kept_until = time.monotonic() + FRESH_S
    assert status == 200, body
    families = text_string_to_metric_families(body)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def value(found: Series, name: str, **labels: str) -> float | None:
    return found.get((f"outrace_{name}", tuple(sorted(labels.items()))))


def metric(hot: Hot, name: str, **labels: str) -> float | None:
    return value(metrics(hot), name, **labels)


def eventually(what: Callable[[], object]) -> None:
    """Wait for something that only another process's answer can show."""
    live.until(what, "it to come true")
