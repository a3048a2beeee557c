"""Commands without options ask the daemon that runs here: its node, its pods, its thresholds, its state directory.

Real daemons on real cgroups: killed ones, a second one, and hostile clients.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.daemons import described
from monitor.errors import MonitorError
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from monitor.link import daemon_socket
from monitor.side.endpoints import MAX_COMMANDS
from tests import live
from tests.commands import called
from tests.daemon.hot_node import hard
from tests.live import one_line

pytestmark = [pytest.mark.kernel, pytest.mark.once]

NODE_MIB = 256
POLLED = ("--hooks", "poll")


@pytest.fixture
def run_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of commands, and of daemons `within` it. Its path is longer than that of a socket may be."""
    base = Path(tempfile.mkdtemp())
    directory = base / ("r" * 60) / ("d" * 60)
    monkeypatch.setenv("OUTRACE_RUN_DIR", str(directory))
    monkeypatch.setattr("monitor.cli.daemons._TIMEOUT_S", live.TIMEOUT_S)
    yield directory
    shutil.rmtree(base)


node = live.fixture(LabNode, "socket", NODE_MIB * MIB)


def shown(*arguments: str) -> dict[str, Any]:
    done = called(*arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def within(run_dir: Path) -> tuple[str, str]:
    """A daemon that is started by this has its socket there."""
    return ("env", f"OUTRACE_RUN_DIR={run_dir}")


def sockets(run_dir: Path) -> list[str]:
    return sorted(os.listdir(run_dir)) if run_dir.exists() else []


def test_commands_without_options_show_the_daemons_node(node: LabNode, run_dir: Path, tmp_path: Path) -> None:
    node.fill(node.add_pod("web", "Burstable", request=32 * MIB), 20)
    own = tmp_path / "outrace.yaml"
    own.write_text("eviction-soft: memory.available<64Mi\neviction-soft-grace-period: memory.available=30s\n")
    with live.daemon(node, *hard(48), "--config", str(own), wrapper=within(run_dir)) as daemon:
        assert sockets(run_dir) == ["daemon.lock", "daemon.sock"]
        modes = [
            stat.S_IMODE(path.stat().st_mode) for path in (run_dir / "daemon.sock", run_dir / "daemon.lock", run_dir)
        ]
        assert modes == [0o600, 0o640, 0o700]
        own.write_text("eviction-soft: memory.available<99Mi\neviction-soft-grace-period: memory.available=30s\n")

        frame = shown("top", "--once")
        assert frame["source"].startswith(f"daemon {daemon.state_dir.name} (pid {daemon.pid}")
        assert (frame["node"]["cgroup"], frame["node"]["capacity"]) == (str(node.cgroup), NODE_MIB * MIB)
        assert [one["name"] for one in frame["pods"]] == ["web"]
        assert {one["quantity"] for one in frame["thresholds"]} == {48 * MIB, 64 * MIB}

        explained = shown("explain", "lab/web")
        assert (explained["node"]["cgroup"], explained["node"]["held_conditions"]) == (str(node.cgroup), [])
        assert [one["pod"] for one in explained["order"]] == ["lab/web"]

        configured = shown("config", "show")
        thresholds = {(one["kind"], one["value"], one["origin"]) for one in configured["thresholds"]}
        assert thresholds >= {("hard", "48Mi", "--eviction-hard"), ("soft", "64Mi", f"{own}: eviction-soft")}
        assert configured["daemon"]["state_dir"] == str(daemon.state_dir)
        assert {one["name"]: one["value"] for one in configured["settings"]}["node-cgroup"] == str(node.cgroup)

        assert [one["pid"] for one in shown("doctor")["daemons"]] == [daemon.pid]
        # (Tests share a state directory in a guest: incidents of earlier ones may be there.)
        assert shown("incidents", "list") == shown("incidents", "list", "--state-dir", str(daemon.state_dir))

        # An option that describes a node is used as before there was a socket.
        other = shown("top", "--once", "--node-cgroup", node.cgroup.name)
        assert (other["source"], other["thresholds"][0]["quantity"]) == ("cgroup files", 100 * MIB)
        assert "daemons" not in shown("doctor", "--state-dir", str(daemon.state_dir))
    one_line(called("top", "--once"), 1, "no outrace daemon runs here")


def test_a_second_daemon_is_refused_and_a_new_side_replaces_the_socket(node: LabNode, run_dir: Path) -> None:
    """Two daemons on a machine would both evict. The socket of one that was killed keeps no other from starting."""
    run_dir.mkdir(parents=True, mode=0o700)
    with daemon_socket.opened(run_dir) as directory, socket.socket(socket.AF_UNIX) as dead:
        dead.bind(daemon_socket.address(directory))
    one_line(called("top", "--once"), 1, "no outrace daemon runs here")
    with LabDaemon(node, *POLLED, wrapper=within(run_dir)) as daemon:
        live.until(lambda: called("config", "show").stdout.startswith("daemon "), "its socket")
        with pytest.raises(MonitorError, match=f"another outrace .pid {daemon.pid}. is running on run directory"):
            LabDaemon(node, *POLLED, wrapper=within(run_dir)).start()
        (first,) = live.children(daemon.pid)
        os.kill(first, signal.SIGKILL)
        live.until(lambda: answered_by_another(run_dir, first), "the next side")
        live.kill_both(daemon)
        assert sockets(run_dir) == ["daemon.lock", "daemon.sock"]
        one_line(called("explain"), 1, "no outrace daemon runs here")
        daemon.start()
        assert shown("top", "--once")["node"]["cgroup"] == str(node.cgroup)


def answered_by_another(run_dir: Path, first: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return described(run_dir / daemon_socket.SOCKET).info.side_pid != first
    return False


def test_hostile_clients_cost_the_side_a_bounded_number_of_descriptors(node: LabNode, run_dir: Path) -> None:
    """More connections than are served, large heads, clients that send nothing or never read: commands are answered
    beside them.
    """
    hostile = [b"", b"GET /daemon HTTP/1.1\r\n\r\n" * 400, b"x" * 20_000, b"POST / HTTP/1.1\r\n\r\n"]
    with live.daemon(node, *hard(48), wrapper=within(run_dir)) as daemon, daemon_socket.opened(run_dir) as directory:
        side = shown("doctor")["daemons"][0]["side_pid"]
        before = len(os.listdir(f"/proc/{side}/fd"))
        with contextlib.ExitStack() as stack:
            for number in range(3 * MAX_COMMANDS):
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.settimeout(5.0)
                with contextlib.suppress(OSError):  # closed to make room
                    client.connect(daemon_socket.address(directory))
                    client.sendall(hostile[number % 4])
            assert shown("top", "--once")["node"]["cgroup"] == str(node.cgroup)
            assert len(os.listdir(f"/proc/{side}/fd")) < before + 2 * MAX_COMMANDS  # it reads files at any moment
            assert daemon.get("/healthz")[0] == 200


def test_a_run_directory_where_others_can_write_is_not_used(node: LabNode, run_dir: Path) -> None:
    """Root's commands would believe the socket of anybody. The daemon goes on without one."""
    run_dir.mkdir(parents=True)
    run_dir.chmod(0o777)
    with LabDaemon(node, *POLLED, wrapper=within(run_dir)) as daemon:
        line = live.message(daemon, "commands cannot ask this daemon: no socket in the run directory")
        assert line["run_dir"] == str(run_dir)
        assert daemon.get("/readyz")[0] == 200
        one_line(called("top", "--once"), 1, "can be written by others", "--no-daemon")
    assert sockets(run_dir) == []


def test_without_a_daemon_figures_need_no_daemon(run_dir: Path) -> None:
    for arguments in (("top", "--once"), ("explain",)):
        one_line(called(*arguments), 1, "no outrace daemon runs here", "outrace run", "--no-daemon")
    assert shown("top", "--once", "--no-daemon")["source"].startswith("cgroup files")
    # The configuration and stored incidents are no figures: they are shown, with a line on stderr.
    for arguments in (("config", "show"), ("incidents", "list")):
        done = called(*arguments)
        assert done.returncode == 0
        assert "no daemon runs here" in done.stderr.splitlines()[0]
    assert set(shown("config", "show")) == {"thresholds", "settings", "warnings"}
    assert called("config", "show", "--no-daemon").stderr == ""
    assert "daemons" not in shown("doctor")
