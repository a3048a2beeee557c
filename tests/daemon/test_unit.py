"""The unit in deploy/systemd under a real systemd, with the privileges and the sandbox that it gives and no others."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import live

from monitor.kernel import loader
from monitor.kernel.rungs import BPF_RUNGS
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode

pytestmark = pytest.mark.kernel
UNIT = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "outrace.service"
UNITS = Path("/run/systemd/system")


class Service:
    """The unit under another name, running the code of this checkout on a lab node."""

    def __init__(self, node: LabNode, port: int) -> None:
        self.name = f"outrace-test-{os.getpid()}"
        self.state = Path("/var/lib", self.name)
        self.daemon = LabDaemon(node, state_dir=self.state)  # never started: to ask what systemd started
        self.daemon.address = f"http://127.0.0.1:{port}"
        relative = node.cgroup.relative_to(node.hierarchy.root)
        command = [sys.executable, "-P", "-m", "monitor.cli.main", "run", "--state-dir", self.state]
        command += ["--pods", f"manifests:{node.manifests}", "--node-cgroup", relative, "--listen", f"127.0.0.1:{port}"]
        command += ["--eviction-hard", "memory.available<32Mi", "--enforce"]
        changed = [
            "[Service]",
            "EnvironmentFile=",
            f"Environment=PYTHONPATH={loader.package_path()}",
            f"StateDirectory=\nStateDirectory={self.name}",
            f"ExecStart=\nExecStart={' '.join(map(str, command))}",
            "WatchdogSec=10",
        ]
        self._settings = "\n".join(changed) + "\n"

    def install(self) -> None:
        shutil.copy(UNIT, UNITS / f"{self.name}.service")
        (UNITS / f"{self.name}.service.d").mkdir()
        (UNITS / f"{self.name}.service.d" / "test.conf").write_text(self._settings)
        self.systemctl("daemon-reload")

    def systemctl(self, verb: str, *options: str) -> str:
        command = ["systemctl", verb, *options, *(() if verb == "daemon-reload" else (self.name,))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}\n{self.journal()}"
        return done.stdout.strip()

    def journal(self) -> str:
        said = ["journalctl", "--no-pager", "--lines=60", f"--unit={self.name}"]
        return subprocess.run(said, capture_output=True, text=True, check=False).stdout

    def shows(self, what: str) -> str:
        return self.systemctl("show", "--value", f"--property={what}")

    @property
    def pid(self) -> int:
        return int(self.shows("MainPID"))

    def restarted(self, times: int) -> bool:
        return self.shows("NRestarts") == str(times) and self.shows("ActiveState") == "active"

    def remove(self) -> None:
        subprocess.run(["systemctl", "stop", self.name], check=False)
        (UNITS / f"{self.name}.service").unlink(missing_ok=True)
        shutil.rmtree(UNITS / f"{self.name}.service.d", ignore_errors=True)
        subprocess.run(["systemctl", "daemon-reload"], check=False)
        loader.unload(loader.instance_directory(self.state))
        shutil.rmtree(self.state, ignore_errors=True)


@pytest.fixture
def service() -> Iterator[Service]:
    if not UNITS.is_dir():
        pytest.skip("process 1 is not systemd here: make test-vagrant has one")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with LabNode("test-unit", 160 * MIB) as node:
        made = Service(node, port)
        try:
            made.install()
            yield made
        finally:
            made.remove()


def test_it_starts_evicts_and_is_started_again_when_it_dies_or_hangs(service: Service) -> None:
    node = service.daemon.node
    hog = node.start_hog(node.add_pod("hog"), mib=400, rate=100)
    service.systemctl("start")  # returns when it says that it can decide
    assert service.shows("ActiveState") == "active"
    assert service.shows("StatusText") != ""
    first = service.pid
    assert Path(f"/proc/{first}/oom_score_adj").read_text().strip() == "-999"
    assert os.sched_getscheduler(first) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO
    metrics = service.daemon.metrics()
    assert sum(metrics[f'outrace_hook_rung{{rung="{name}"}}'] for name in BPF_RUNGS) == 1, service.journal()
    hog.go()
    assert hog.wait() == -signal.SIGKILL
    live.until(lambda: service.daemon.metrics()["outrace_evictions_total"] == 1, "the eviction to be counted")
    assert node.oom_kills() == 0

    os.kill(first, signal.SIGKILL)
    live.until(lambda: service.restarted(1), "systemd to start it again")
    second = service.pid
    assert second != first
    os.kill(second, signal.SIGSTOP)  # a loop that no longer turns: the watchdog's 10 s
    live.until(lambda: service.restarted(2), "systemd's watchdog")
    assert service.pid not in (first, second)
    # systemd hears it from the hot process, HTTP is served by the side, which starts at the same time.
    live.until(lambda: service.daemon.get("/readyz")[0] == 200, "/readyz to say what systemd was told")

    service.systemctl("stop")
    assert (service.shows("ActiveState"), service.shows("Result")) == ("inactive", "success")
