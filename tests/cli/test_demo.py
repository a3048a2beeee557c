"""`outrace demo` as a user runs it: which side wins, and that nothing is left however it ends."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from monitor.kernel import cgroup_procs, cgroupfs, instances, pins
from monitor.kernel.procfs import readable
from monitor.lab.bench_footprint import processes
from tests import live

pytestmark = [pytest.mark.kernel, pytest.mark.once]


def traces(pid: int) -> list[Path]:
    """What a demo of this pid may leave: cgroups, manifests."""
    stem = f"outrace-demo-{pid}"
    places = (cgroupfs.detect().root, Path(tempfile.gettempdir()))
    return [path for place in places for path in place.iterdir() if path.name.startswith(stem)]


def pins_of(pids: list[int]) -> list[Path]:
    """Pins of the daemon that is one of these processes: others may run on this machine."""
    found = []
    for instance in pins.ROOT.iterdir() if pins.ROOT.is_dir() else ():
        with suppress(OSError):  # without a lock, or gone as it is looked at
            state = instances.owner(instance)
            if state is not None and (state / "lock").read_text().strip() in map(str, pids):
                found.append(instance)
    return found


def demo(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", live.CLI, "demo", "-o", "json", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=live.environment(),
        cwd="/",
    )


def test_eviction_wins_every_race() -> None:
    process = demo("--runs", "2", "--margin", "128Mi")  # what the machine may be late by: 0.1 s
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert err == ""
    data = json.loads(out)
    assert (data["wins"], data["losses"]) == (2, 0)
    assert set(data) == {"runs", "wins", "losses"}
    for run in data["runs"]:
        assert {"winner", "detection_us", "kill_us", "evicted", "oom_victims", "headroom_bytes"} <= set(run)
        assert (run["winner"], run["evicted"], run["oom_victims"]) == ("eviction", "demo/batch", [])
        assert 0 < run["detection_us"] <= run["kill_us"]
        assert 0 <= run["headroom_bytes"] < 512 << 20
    assert traces(process.pid) == []


def test_without_the_monitor_the_oom_killer_does() -> None:
    done = live.outrace("demo", "--no-monitor", "--runs", "2", "--node-memory", "128Mi", "-o", "json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["wins"], data["losses"]) == (0, 2)
    for run in data["runs"]:
        assert (run["winner"], run["evicted"], run["detection_us"]) == ("oom", None, None)
        assert len(run["oom_victims"]) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(number: signal.Signals) -> None:
    """Stopped in the middle of its races, with the daemon up and hogs growing."""
    process = demo("--runs", "1000", "--node-memory", "128Mi")
    root = cgroupfs.detect().root

    def racing() -> list[int]:
        assert process.poll() is None, "the demo ended by itself"
        nodes = [path for path in root.iterdir() if path.name.startswith(f"outrace-demo-{process.pid}")]
        # Two residents, and hogs beside them: the races are on.
        return processes(process.pid)[1:] if sum(len(cgroup_procs.processes(node)) for node in nodes) >= 3 else []

    try:
        pids = live.until(racing, "the races to begin")
        assert len(pids) >= 5, "janitor, daemon and its side, residents"
        watched = []
        for pid in pids:
            with suppress(ProcessLookupError):  # a hog that has died since
                watched.append(os.pidfd_open(pid))
        (mine,) = live.until(lambda: pins_of(pids), "the daemon to be known by its lock")
        process.send_signal(number)
        out, err = process.communicate(timeout=240)
    finally:
        with process:  # ended above, unless something was wrong
            process.kill()
    assert process.returncode == (-number if number == signal.SIGKILL else 130), err
    assert out == ""
    if number != signal.SIGKILL:
        assert "Traceback" not in err
    for fd in watched:
        assert readable(fd, live.TIMEOUT_S), "a process of the demo is still there"
        os.close(fd)
    live.until(lambda: not traces(process.pid), "the demo's cgroups and manifests to go")
    live.until(lambda: not mine.exists(), "the demo's pins to go")
