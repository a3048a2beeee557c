"""The unit in deploy/systemd: its settings; and under a real systemd, with its privileges and sandbox, what it does."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.cli.run import LOCK_PATIENCE_S
from monitor.errors import EXIT_CANNOT, EXIT_USAGE
from monitor.kernel import cgroupfs, loader
from monitor.kernel.charging import BPF_RUNGS
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from monitor.settings.config import RunConfig
from tests import live
from tests.commands import run
from tests.ports import reserved

pytestmark = pytest.mark.kernel
UNIT = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "outrace.service"
UNITS = Path("/run/systemd/system")


class Service:
    """The unit under another name, running the code of this checkout on a lab node."""

    def __init__(self, node: LabNode, port: int) -> None:
        self.name = f"outrace-test-{os.getpid()}"
        self.state = Path("/var/lib", self.name)
        self.run = Path("/run", self.name)
        self.daemon = LabDaemon(node, state_dir=self.state)  # never started: to ask what systemd started
        self.daemon.address = f"http://127.0.0.1:{port}"
        relative = node.cgroup.relative_to(node.hierarchy.root)
        command = [sys.executable, "-P", "-m", "monitor.cli.main", "run", "--state-dir", self.state]
        command += ["--pods", f"manifests:{node.manifests}", "--node-cgroup", relative, "--listen", f"127.0.0.1:{port}"]
        command += ["--eviction-hard", "memory.available<32Mi", "--enforce"]
        self.command = " ".join(map(str, command))
        changed = [
            "[Service]",
            "EnvironmentFile=",
            f"Environment=PYTHONPATH={loader.package_path()} OUTRACE_RUN_DIR={self.run}",
            f"StateDirectory=\nStateDirectory={self.name}",
            f"RuntimeDirectory=\nRuntimeDirectory={self.name}",
            f"ExecStart=\nExecStart={self.command}",
            "WatchdogSec=10",
        ]
        self._settings = "\n".join(changed) + "\n"

    def install(self) -> None:
        shutil.copy(UNIT, UNITS / f"{self.name}.service")
        (UNITS / f"{self.name}.service.d").mkdir()
        (UNITS / f"{self.name}.service.d" / "test.conf").write_text(self._settings)
        self.systemctl("daemon-reload")

    def set(self, line: str) -> None:
        """Another line for [Service]."""
        (UNITS / f"{self.name}.service.d" / "zz.conf").write_text(f"[Service]\n{line}\n")
        self.systemctl("daemon-reload")

    def pids(self) -> list[int]:
        """Of all processes of the unit."""
        group = self.shows("ControlGroup")
        root = Path("/sys/fs/cgroup") if cgroupfs.detect().version == 2 else Path("/sys/fs/cgroup/systemd")
        return [int(line) for line in Path(f"{root}{group}", "cgroup.procs").read_text().split()]

    def opened(self) -> set[str]:
        """What its processes have open."""
        found = set()
        for pid in self.pids():
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):  # closed meanwhile
                    found.add(os.readlink(fd))
        return found

    def systemctl(self, verb: str, *options: str) -> str:
        command = ["systemctl", verb, *options, *(() if verb == "daemon-reload" else (self.name,))]
        done = run(*command, timeout=300)
        assert done.returncode == 0, f"{command}: {done.stderr}\n{self.journal()}"
        return done.stdout.strip()

    def journal(self) -> str:
        command = ["journalctl", "--no-pager", "--lines=60", f"--unit={self.name}"]
        return run(*command).stdout

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
        shutil.rmtree(self.run, ignore_errors=True)


def values(name: str) -> list[str]:
    """Every value that the unit gives to a setting."""
    return [line.partition("=")[2] for line in UNIT.read_text().splitlines() if line.startswith(f"{name}=")]


# Without systemd: what the file has.
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not there: the package systemd has it")
    copy = tmp_path / "outrace.service"
    copy.write_text(
        re.sub(r"^Exec(Start|StopPost)=(-?)\S+", r"Exec\1=\2/bin/true", UNIT.read_text(), flags=re.MULTILINE)
    )
    done = run(analyze, "verify", copy)
    about = [line for line in done.stderr.splitlines() if "outrace" in line]
    assert (done.returncode, about) == (0, [])


def test_what_the_unit_has_and_what_it_must_not_have() -> None:
    """ProtectClock= allows the clock's device, and with it forbids all that are not named, the kernel's log among them;
    so would DeviceAllow=. No kubelet waits for outrace.
    """
    assert set(values("RestartPreventExitStatus")[0].split()) == {str(EXIT_USAGE), str(EXIT_CANNOT)}
    closing = ["ProtectClock", "ProtectKernelLogs", "PrivateDevices", "DevicePolicy", "DeviceAllow", "RootDirectory"]
    assert {name: values(name) for name in (*closing, "Before", "Wants", "Requires") if values(name)} == {}
    assert "CAP_SYSLOG" in values("CapabilityBoundingSet")[0]
    assert "CAP_SYS_TIME" not in values("CapabilityBoundingSet")[0]  # which is what ProtectClock= is about
    kept = {"Restart": "always", "Slice": "-.slice", "MemoryMin": "64M", "OOMPolicy": "continue"}
    kept |= {"OOMScoreAdjust": "-999", "RuntimeDirectoryMode": "0700", "RuntimeDirectoryPreserve": "yes"}
    assert {name: values(name) for name in kept} == {name: [value] for name, value in kept.items()}
    assert [f"/run/{name}" for name in values("RuntimeDirectory")] == [RunConfig().run_dir]
    assert values("RestartSec") == ["1"]
    assert int(values("TimeoutStartSec")[0]) >= LOCK_PATIENCE_S + 90


# Under systemd.
@pytest.fixture
def service() -> Iterator[Service]:
    if not UNITS.is_dir():
        pytest.skip("process 1 is not systemd here: make test-vagrant has one")
    with LabNode("test-unit", 160 * MIB) as node:
        made = Service(node, reserved(node))
        try:
            made.install()
            yield made
        finally:
            made.remove()


def test_it_starts_evicts_and_is_started_again_when_it_dies_or_hangs(service: Service) -> None:
    node = service.daemon.node
    hog = node.start_hog(node.add_pod("hog"), mib=400, rate=100)
    service.systemctl("start")  # returns when it reports that it can decide
    assert service.shows("ActiveState") == "active"
    assert service.shows("StatusText") != ""
    first = service.pid
    assert Path(f"/proc/{first}/oom_score_adj").read_text().strip() == "-999"
    assert os.sched_getscheduler(first) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO
    live.until(lambda: len(list(service.run.glob("*.sock"))) == 1, "the socket for commands")
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
    # systemd hears it from the hot process, HTTP is served by the helper, which starts at the same time.
    live.until(lambda: service.daemon.get("/readyz")[0] == 200, "/readyz to report what systemd was sent")

    service.systemctl("stop")
    assert (service.shows("ActiveState"), service.shows("Result")) == ("inactive", "success")


def test_a_wrong_option_is_reported_once_and_not_tried_again(service: Service) -> None:
    service.set(f"ExecStart=\nExecStart={service.command} --eviction-hrad memory.available<1Mi")
    started = subprocess.run(["systemctl", "start", service.name], capture_output=True, check=False, timeout=300)
    assert started.returncode != 0
    time.sleep(5)  # five times RestartSec
    assert (service.shows("ActiveState"), service.shows("NRestarts")) == ("failed", "0")
    assert service.shows("ExecMainStatus") == str(EXIT_USAGE)
    assert service.journal().count("No such option") == 1


def test_it_reads_the_kernels_log_and_has_its_memory(service: Service) -> None:
    service.systemctl("start")
    live.until(lambda: "/dev/kmsg" in service.opened(), "the side to open the kernel's log")
    assert "cannot be read" not in service.journal()
    group = service.shows("ControlGroup")
    assert group == f"/{service.name}.service"
    if cgroupfs.detect().version == 2:
        assert int(Path(f"/sys/fs/cgroup{group}/memory.min").read_text()) == 64 * MIB


def test_an_oom_kill_inside_the_unit_does_not_stop_it(service: Service) -> None:
    if cgroupfs.detect().version != 2:
        pytest.skip("cgroup v1: systemd does not hear of OOM kills there")
    service.systemctl("start")
    first = service.pid
    subprocess.run(["systemctl", "set-property", "--runtime", service.name, "MemoryMax=256M"], check=True, timeout=60)
    group = Path(f"/sys/fs/cgroup/{service.name}.service")
    grow = "kept = [b'x' * (1 << 20) for _ in range(400)]"
    script = f'echo 1000 >/proc/self/oom_score_adj; echo $$ >{group}/cgroup.procs; exec {sys.executable} -c "{grow}"'
    hog = subprocess.run(["/bin/sh", "-c", script], check=False, timeout=120)
    assert hog.returncode == -signal.SIGKILL
    live.until(lambda: "oom_kill 1" in (group / "memory.events").read_text(), "the OOM kill")
    time.sleep(2)  # systemd hears of it by inotify, and acts at once if at all
    assert (service.shows("ActiveState"), service.shows("NRestarts"), service.pid) == ("active", "0", first)


def test_a_kubelet_starts_while_it_is_still_starting(service: Service) -> None:
    kubelet = UNITS / "kubelet.service"
    if kubelet.exists() or Path("/lib/systemd/system/kubelet.service").exists():
        pytest.skip("there is a kubelet here")
    kubelet.write_text("[Service]\nExecStart=/bin/sleep 600\n")
    service.set("ExecStartPre=/bin/sleep 60")
    try:
        subprocess.run(["systemctl", "start", "--no-block", service.name], check=True, timeout=60)
        live.until(lambda: service.shows("ActiveState") == "activating", "it to be starting")
        subprocess.run(["systemctl", "start", "kubelet"], check=True, timeout=50)
        assert service.shows("ActiveState") == "activating"
    finally:
        subprocess.run(["systemctl", "stop", "kubelet"], check=False)
        kubelet.unlink()
