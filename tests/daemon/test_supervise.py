"""The helper process as the hot one starts, loses and ends it."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.errors import EXIT_CANNOT
from monitor.hot import supervise
from monitor.hot.loop import Guard, Loop
from monitor.hot.supervise import Side, SideRestarts
from monitor.kernel.loader import package_path
from monitor.kernel.procfs import readable
from monitor.link import channel, upgrade
from monitor.link.counters import SharedStats
from monitor.link.messages import NAMES, LogLine
from monitor.link.outbox import Outbox
from monitor.settings.config import RunConfig
from monitor.side import main as side_process
from tests import live

pytestmark = [pytest.mark.kernel, pytest.mark.once]


@pytest.fixture
def side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Side]:
    monkeypatch.setenv("PYTHONPATH", package_path())
    stats = SharedStats.create()
    (tmp_path / "pods").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = replace(
            RunConfig(), pods=f"manifests:{tmp_path / 'pods'}", state_dir=str(tmp_path), listen_fd=listener.fileno()
        )
        config_fd = config.to_memfd()
        made = Side(config_fd, stats.fd, listener.fileno())
        yield made
        made.stop()
        os.close(config_fd)
    os.close(stats.fd)


def hear(side: Side, kind: str) -> None:
    """Wait for a message of this type."""
    while True:
        assert readable(side.sock, live.TIMEOUT_S), f"no {kind!r}"
        for message in channel.drain(side.sock):
            assert message is not None, "the side closed the channel"
            if NAMES.get(type(message)) == kind:
                return


def started(side: Side) -> None:
    side.start(time.monotonic_ns())
    hear(side, "synced")


def ended(side: Side) -> int:
    assert readable(side.pidfd, live.TIMEOUT_S)
    return side.reap()


def test_its_death_is_seen_it_starts_again_ends_with_the_channel_and_leaves_no_zombie(side: Side) -> None:
    begin = time.monotonic_ns()
    side.start(begin)
    hear(side, "synced")
    assert side.next_start_ns > begin
    for fd in (side.pidfd, side.sock.fileno() if side.sock else -1):
        assert not os.get_inheritable(fd)
    os.kill(side.pid, signal.SIGKILL)
    assert os.WTERMSIG(ended(side)) == signal.SIGKILL
    assert side.pid == 0
    side.start(time.monotonic_ns())
    pid = side.pid
    hear(side, "synced")
    side.stop()
    assert (side.pid, side.pidfd, side.sock) == (0, -1, None)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)
    side.stop()  # nothing to end is no error


def test_one_that_needs_its_time_gets_it(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks, recorder, alerts, files and the log beside incidents: the first of a new state dir makes the store."""
    assert supervise._STOP_S > side_process._INCIDENTS_S + 5 * side_process._CLOSE_S
    started(side)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: pytest.fail("it is killed"))
    os.kill(side.pid, signal.SIGSTOP)
    later = threading.Timer(0.5, os.kill, (side.pid, signal.SIGCONT))
    later.start()
    side.stop()
    later.join()
    assert side.pid == 0


def test_the_next_one_waits_until_a_killed_one_may_have_ended(side: Side) -> None:
    """It undoes what a dead one changed, once, as it starts."""
    started(side)
    side._started_ns = 0  # for long enough to be started again at once
    now = time.monotonic_ns()
    side.kill()
    assert side.next_start_ns >= now + supervise._ENDS_NS


def test_a_stopped_one_is_killed_in_the_end(side: Side) -> None:
    started(side)
    os.kill(side.pid, signal.SIGSTOP)
    pid = side.pid
    side.stop(timeout_s=0.05)
    assert not live.alive(pid)
    assert side.pid == 0


def test_a_signal_that_is_ignored_here_is_not_in_it(side: Side) -> None:
    """But SIGHUP: that reaches a whole unit or terminal, and the hot process logs it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        side.start(time.monotonic_ns())
    finally:
        signal.signal(signal.SIGTERM, before)
    hear(side, "synced")
    with open(f"/proc/{side.pid}/status") as file:
        ignored = next(int(line.split()[1], 16) for line in file if line.startswith("SigIgn:"))
    assert not ignored >> (signal.SIGTERM - 1) & 1
    assert ignored >> (signal.SIGHUP - 1) & 1


def test_what_is_sent_while_there_is_none_is_read_by_the_next_one(
    side: Side, capfd: pytest.CaptureFixture[str]
) -> None:
    started(side)
    os.kill(side.pid, signal.SIGKILL)
    ended(side)
    assert channel.send(side.sock, LogLine("info", "to nobody"))
    side.start(time.monotonic_ns())
    live.until(lambda: "to nobody" in capfd.readouterr().err, "the next one to log it")


def test_one_that_dies_at_once_again_and_again_is_started_ever_more_seldom(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0]
    side._now = lambda: now[0]
    monkeypatch.setattr(sys, "executable", "/bin/false")
    pauses = []
    for _ in range(9):
        side.start(now[0])
        ended(side)
        pauses.append((side.next_start_ns - now[0]) // 10**9)
        now[0] = side.next_start_ns
    assert pauses == [2, 2, 2, 4, 8, 16, 32, 60, 60]
    # One that has lived is no loop.
    side.start(now[0])
    now[0] += supervise._STEADY_NS
    ended(side)
    assert side.next_start_ns < now[0]
    side.start(now[0])
    ended(side)
    assert side.next_start_ns == now[0] + supervise._BACKOFF_NS


def test_one_that_does_not_even_die_is_left_behind(side: Side) -> None:
    """SIGKILL does not end a process in an endless system call (a dead file server); a frozen cgroup of v1 is one."""
    with live.freezer() as frozen:
        started(side)
        first, pidfd = side.pid, side.pidfd
        live.freeze(frozen, first)
        side.kill()
        assert (side.pid, side.pidfd) == (0, -1)
        started(side)
        assert side.pid != first
        assert live.alive(first)
        side.collect()
        assert live.alive(first), "it has not ended"
    assert readable(pidfd, live.TIMEOUT_S)  # thawed
    side.collect()
    with pytest.raises(ChildProcessError):
        os.waitpid(first, 0)


def test_one_that_hangs_is_killed_and_replaced(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, so it winds up no timer any more."""
    monkeypatch.setattr(supervise, "MISSED_NS", 1_000_000)
    stats, lost = SharedStats(side._stats_fd), list[int]()
    loop = Loop(Guard(stats), stats)
    outbox = Outbox(lambda: side.sock, stats)
    restarts = SideRestarts(side, outbox, loop, lambda: None, lambda: lost.append(side.pid), lambda _: None)
    loop.set_timers([("side", restarts.due_ns, restarts.go_on)])
    restarts._begin(side.start)
    loop.register(side.timer.fileno(), restarts._missed)
    first = os.pidfd_open(side.pid)
    hear(side, "synced")
    restarts._missed(0)
    live.until(lambda: stats.get("side_heartbeat_ns") != restarts._ping_ns, "another turn")
    restarts.go_on(0)
    assert (lost, restarts.due_ns()) == ([], None), "it turns"
    os.kill(side.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, side.pid, os.WSTOPPED)
    side.timer.set(1)  # of those that it wound up, none is left
    live.until(lambda: loop.turn() or lost, "it to be found hung")
    live.ends(first, fd=True)
    os.close(first)
    assert (lost, stats.get("side_hangs")) == ([0], 1)
    side.next_start_ns = 0
    loop.turn()
    assert (stats.get("side_starts"), side.pid > 0) == (2, True)
    monkeypatch.undo()
    hear(side, "synced")


def test_a_side_that_cannot_be_watched_is_not_left_alone(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    spawned: list[int] = []

    def refused(pid: int) -> int:
        spawned.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refused)
    with pytest.raises(OSError, match="Too many open files"):
        side.start(time.monotonic_ns())
    assert (side.pid, side.pidfd) == (0, -1)
    with pytest.raises(ChildProcessError):
        os.waitpid(spawned[0], 0)
    monkeypatch.undo()


def test_a_side_of_another_version_does_not_start(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules below the daemon were replaced by an upgrade; until its restart, the hot process goes on alone."""
    monkeypatch.setattr(supervise, "MINE", "another file")
    side.start(time.monotonic_ns())
    assert readable(side.pidfd, live.TIMEOUT_S)
    assert os.waitstatus_to_exitcode(os.waitpid(side.pid, 0)[1]) == EXIT_CANNOT


def test_an_upgrade_is_seen_by_the_file_that_it_puts_in_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = tmp_path / "__init__.py"
    module.write_text("")
    monkeypatch.setattr(upgrade.monitor, "__file__", str(module))
    before = upgrade.identity()
    assert upgrade.identity() == before != "none"
    (tmp_path / "new").write_text("")
    (tmp_path / "new").rename(module)
    assert upgrade.identity() != before
    module.unlink()
    assert upgrade.identity() == "none"
