"""The daemon's two processes on a lab node: stopped, killed, ended, a second daemon, and what is lost meanwhile."""

import os
import signal
import sys
from pathlib import Path

import pytest

from monitor.lab.daemon import LabDaemon
from monitor.lab.node import LabNode
from tests import live
from tests.daemon.hot_node import IN_KERNEL, armed_for, evicted, hard, hot_node

pytestmark = pytest.mark.kernel

node = live.fixture(hot_node)


def side_of(daemon: LabDaemon) -> int:
    (pid,) = live.children(daemon.pid)
    return pid


@pytest.mark.once
def test_it_ends_although_it_was_started_with_signals_blocked(node: LabNode) -> None:
    """And cleanly. A mask is inherited by exec: a process that waits for signals in a thread has them blocked."""
    block = "import os, signal, sys; signal.pthread_sigmask(0, (2, 15)); os.execvp(sys.argv[1], sys.argv[1:])"
    with live.daemon(node, "--enforce", *hard(64), wrapper=(sys.executable, "-c", block)) as daemon:
        side = side_of(daemon)
        for pid in (daemon.pid, side):
            (mask,) = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("SigBlk")]
            assert int(mask.split()[1], 16) & (1 << 1 | 1 << 14) == 0
        assert live.metric(daemon, "armed") == 1
        live.ended(daemon)
        assert not live.alive(side)
        assert [r for r in daemon.log if r.get("raw")] == [], "something that is no log record was printed"
        assert [r["msg"] for r in daemon.log if r.get("level") == "error"] == []
    # Detached, and the OOM chain still attached.
    with live.Watching(attach=False) as watch:
        node.fill(node.add_pod("p"), 8)
        assert watch.counted()["evaluated"] == 0
    assert (live.pin_dir() / "link_on_mark_victim").exists()


#: `outrace run`, which gets a SIGHUP as it becomes the hot process.
HANGS_UP = """
import os, sys
real, sys.argv = os.execv, ["outrace", *sys.argv[sys.argv.index("monitor.cli.main") + 1:]]
os.execv = lambda *about: (os.kill(os.getpid(), 1), real(*about))
from monitor.cli.main import main
main()
"""


@pytest.mark.once
def test_sighup_ends_nothing_and_the_log_names_what_to_do(node: LabNode) -> None:
    """During the start as well, and once it runs."""
    with live.daemon(node, wrapper=(sys.executable, "-c", HANGS_UP)) as daemon:
        side = side_of(daemon)
        during = live.message(daemon, "SIGHUP is ignored: a restart reads the configuration again")
        assert during["remedy"] == "outrace config check with the service's options, then systemctl restart outrace"
        since = len(daemon.log)
        os.kill(daemon.pid, signal.SIGHUP)
        live.message(daemon, during["msg"], since)
        assert side_of(daemon) == side
        live.ended(daemon)


@pytest.mark.once
def test_hot_killed_leaves_no_side_and_the_next_one_starts(node: LabNode) -> None:
    pod = node.add_pod("hog")
    with live.daemon(node, *IN_KERNEL, *hard(16)) as daemon:
        side = os.pidfd_open(side_of(daemon))
        node.fill(pod, 8)
        armed_for(pod)
        os.kill(daemon.pid, signal.SIGKILL)
        assert daemon.process.wait(live.TIMEOUT_S) == -signal.SIGKILL
        live.ends(side, fd=True)
        os.close(side)
    # Its trigger is still armed, but the program that would pull it went with the descriptors.
    crosser = node.fill(pod, 108)
    assert crosser.process.poll() is None
    with live.daemon(node, "--enforce", *hard(16)) as daemon:
        evicted(daemon, pod)
        assert crosser.wait() == -signal.SIGKILL
        live.ended(daemon)
