"""A real `outrace run` on a lab node, and its JSON log as records: what demo, bench and tests look at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from monitor.errors import EXIT_CANNOT, CannotError, MonitorError
from monitor.kernel import loader, python
from monitor.lab.child import PATIENCE_S, until
from monitor.lab.node import LabNode, LabPod
from monitor.side.export.http import FRESH_S

Record = dict[str, Any]


class LabDaemon:
    """Context manager: the daemon, ready, watching ``node`` as its node and the node's manifests as its pods.

    ``options`` are further options of `outrace run`. Its state dir is a new one of the node's unless one is given; its
    pins are removed with the node, but with ``keep_pins``. With ``machine`` it watches the whole machine instead of the
    node's cgroup, with the default thresholds; the pods stay the node's. ``wrapper``: a command that runs it.
    """

    def __init__(
        self,
        node: LabNode,
        *options: str,
        state_dir: Path | None = None,
        keep_pins: bool = False,
        machine: bool = False,
        wrapper: Sequence[str] = (),
    ) -> None:
        self.node = node
        relative = node.cgroup.relative_to(node.hierarchy.root)
        self.options = options if machine else ("--node-cgroup", str(relative), *options)
        self.state_dir = state_dir or node.state_dir()
        self._wrapper = wrapper
        #: Of all its processes: the side of one that was killed may report what that did after the next has started.
        self.log: list[Record] = []
        self._arrived = threading.Condition()
        self._ended: set[subprocess.Popen[bytes]] = set()  # those whose log is complete
        self.address = ""
        self._kept_until = 0.0  # the copy of /metrics that was asked for last answers until then
        self.started_ns = 0
        self.process: subprocess.Popen[bytes] | None = None
        if not keep_pins:
            node.also_remove(loader.instance_directory(self.state_dir))

    @property
    def pid(self) -> int:
        """The hot process."""
        assert self.process is not None
        return self.process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start and wait until /readyz answers 200. Raises MonitorError with its last line when it does not start."""
        command = [
            *self._wrapper,
            *python.command("monitor.cli.main", "run"),
            *("--pods", f"manifests:{self.node.manifests}"),
            *("--state-dir", str(self.state_dir), "--listen", "127.0.0.1:0", "--log-format", "json"),
            *self.options,
        ]
        self.address, self.started_ns = "", time.monotonic_ns()
        self.process = process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # Its socket is its own: commands without options ask the machine's daemon.
            env=os.environ | {"PYTHONPATH": loader.package_path(), "OUTRACE_RUN_DIR": str(self.state_dir)},
        )
        self.node.also_remove(process.pid)
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

        def is_decided() -> bool:
            return process.poll() is not None or (self.address != "" and self.get("/readyz")[0] == 200)

        until(is_decided, "the monitor to be ready", 2 * PATIENCE_S, 0.01)
        if process.poll() is not None:
            self.wait_for(lambda _: False)  # to the end of its log
            # Its own word on whether this machine can at all (exit code 3) is passed on.
            why = self.complaint().removeprefix("outrace: error: ")
            kind = CannotError if process.returncode == EXIT_CANNOT else MonitorError
            raise kind(f"the monitor did not start: {why}")

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """The log of a process into ours, to its end."""
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                try:
                    record = json.loads(line)
                except ValueError:
                    record = {"msg": line.decode(errors="replace").rstrip(), "raw": True}
                with self._arrived:
                    self.log.append(record)
                    if record.get("msg") == "starting" and process is self.process:
                        self.address = f"http://{record['listen']}"
                    self._arrived.notify_all()
        with self._arrived:
            self._ended.add(process)
            self._arrived.notify_all()

    def complaint(self) -> str:
        return str(self.log[-1].get("msg", self.log[-1])) if self.log else "it wrote nothing"

    def wait_for(self, wanted: Callable[[Record], bool], timeout: float = PATIENCE_S, since: int = 0) -> Record | None:
        """The first record from position ``since`` of the log on that is ``wanted``.

        None after ``timeout`` or at the daemon's end.
        """
        deadline = time.monotonic() + timeout
        with self._arrived:
            while True:
                for record in self.log[since:]:
                    if wanted(record):
                        return record
                since, left = len(self.log), deadline - time.monotonic()
                if left <= 0 or self.process in self._ended:
                    return None
                self._arrived.wait(left)

    def told(self, msg: str, timeout: float = PATIENCE_S, since: int = 0, **fields: object) -> Record:
        """As `wait_for`, a record with this ``msg`` and these fields. MonitorError where there is none."""
        wanted = {"msg": msg, **fields}
        if (found := self.wait_for(lambda r: wanted.items() <= r.items(), timeout, since)) is None:
            raise MonitorError(f"the monitor never logged {msg!r}: {self.complaint()}")
        return found

    def wait_for_pods(self, *pods: LabPod) -> None:
        """Until it has counted them. Raises MonitorError."""
        usage = 'outrace_pod_memory_usage_bytes{{namespace="{0.namespace}",pod="{0.name}"}}'
        series = {usage.format(pod) for pod in pods}
        until(lambda: series <= self.metrics().keys(), f"the daemon to count {', '.join(pod.name for pod in pods)}")

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of one HTTP request to it; status 0 when nothing answers."""
        try:
            with urllib.request.urlopen(self.address + path, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics, not older than the call, by its text before the value."""
        time.sleep(max(0.0, self._kept_until - time.monotonic()))
        status, body = self.get("/metrics")
        self._kept_until = time.monotonic() + FRESH_S
        if status != 200:
            raise MonitorError(f"/metrics answered {status}: {body}")
        out = {}
        for line in body.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                out[name] = float(value)
        return out

    def stop(self, timeout: float = PATIENCE_S) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:  # it is ended with the node
            raise MonitorError(f"the monitor did not end within {timeout:g} s of SIGTERM") from None

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.stop()
