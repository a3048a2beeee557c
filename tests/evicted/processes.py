"""`outrace evicted run` in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_store import Refused

ROOT = Path(__file__).resolve().parents[2]
#: A lease of 4 s: taken over at most 5 s after its holder was killed; a renewal may take 1.5 s on busy CPUs.
FAST = (
    *("--leader-elect-lease-duration", "4s", "--leader-elect-renew-deadline", "3s"),
    *("--leader-elect-retry-period", "300ms"),
)
#: Far longer than anything takes; only a hang reaches it.
_PATIENCE_S = 120.0


class Running:
    """A controller with a token of its own, by which its requests are known."""

    def __init__(self, api: FakeApiServer, kubeconfig: Path, name: str, *options: str) -> None:
        self.token = f"token-of-{name}"
        assert api.tokens is not None
        api.tokens |= {self.token}
        own = kubeconfig.with_name(f"kubeconfig-{name}")
        own.write_text(kubeconfig.read_text().replace("token: good", f"token: {self.token}"))
        self._log = kubeconfig.with_name(f"log-{name}")
        command = (*("evicted", "run", "--lease", "outrace/evicted", "--kubeconfig", str(own)), *FAST, *options)
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "monitor.cli.main", *command, "--listen", "127.0.0.1:0"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def found(self, pattern: str) -> str:
        """The group of a pattern in the log, when it is there."""
        self.until(lambda: re.search(pattern, self.log) is not None)
        found = re.search(pattern, self.log)
        assert found is not None
        return found[1]

    @property
    def identity(self) -> str:
        return self.found(r"identity=(\S+)")

    def get(self, path: str) -> tuple[int, str]:
        address = self.found(r"address=(\S+)")
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, series: str) -> float:
        found = re.search(rf"^outrace_{re.escape(series)} (\S+)$", self.get("/metrics")[1], re.M)
        assert found is not None, series
        return float(found[1])

    @property
    def peak_mib(self) -> float:
        """The most memory it ever held."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.M)
        assert found is not None
        return int(found[1]) / 1024

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, lambda: (self.process.poll() is not None) and f"ended: {self.log}")

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_PATIENCE_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def until(condition: Callable[[], bool], ended: Callable[[], object] = lambda: False) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        problem = ended()
        assert not problem, problem
        assert time.monotonic() < deadline
        time.sleep(0.02)


def holder(api: FakeApiServer) -> str:
    """ "" where there is no lease, or nobody has it."""
    try:
        return str(api.store.get(("leases", "outrace", "evicted"))["spec"]["holderIdentity"])
    except Refused:
        return ""


def deletes_of(api: FakeApiServer, one: Running) -> int:
    return sum(asked.headers["Authorization"] == f"Bearer {one.token}" for asked in api.seen("DELETE"))
