"""The kernel's process connector: real forks and execs, and refusals with their remedy."""

import errno
import os
import platform
import re
import subprocess
import sys
from unittest.mock import Mock

import pytest

from monitor.actions.procfeed import _ANSWER, _REMEDY, _subscribe, new_process
from tests.commands import run, without
from tests.live import environment
from tests.seccomp import refusing_netlink

pytestmark = pytest.mark.live

CONNECTOR = """
import select, subprocess, sys
from monitor.actions.procfeed import ConnectorFeed
from monitor.errors import MonitorError
seen, lost = [], [True]
try:
    feed = ConnectorFeed(seen.append, lambda: lost.append(True))
except MonitorError as error:
    sys.exit(f"refused: {error}")
poll = select.poll()
poll.register(feed.fileno(), select.POLLIN)
pid = 0
while seen.count(pid) < 2:
    if lost:  # others fork faster than this reads
        lost.clear()
        pid = int(subprocess.run(["/bin/sh", "-c", "echo $$"], stdout=subprocess.PIPE, check=True).stdout)
    assert poll.poll(100_000), f"no event for {pid} in {seen}"
    feed.consume()
feed.close()
print("fork and exec")
"""


def test_process_connector_reports_real_forks_and_execs(pytestconfig: pytest.Config) -> None:
    done = connect()
    if "refused: " in done.stderr:
        if pytestconfig.getoption("--require-kernel") and os.strerror(errno.EPROTONOSUPPORT) not in done.stderr:
            # A guest's kernel may lack it, and refuses for nothing else.
            pytest.fail(done.stderr.strip(), pytrace=False)
        pytest.skip(done.stderr.strip())
    assert (done.stdout, done.returncode) == ("fork and exec\n", 0), done.stderr


def connect(before: str = "", *wrapper: str) -> subprocess.CompletedProcess[str]:
    """CONNECTOR in a process of its own: pyroute2 leaves an event loop behind, which would be a warning in a later
    test.
    """
    return run(*wrapper, sys.executable, "-W", "ignore", "-c", before + CONNECTOR, env=environment())


@pytest.mark.once
@pytest.mark.parametrize(
    ("wrapper", "why"),
    [
        (refusing_netlink(errno.EAFNOSUPPORT), os.strerror(errno.EAFNOSUPPORT)),
        (refusing_netlink(errno.EPERM), os.strerror(errno.EPERM)),
        (("unshare", "--net"), os.strerror(errno.ECONNREFUSED)),
        # The kernel answers nothing there, as one without CONFIG_PROC_EVENTS.
        (("unshare", "--pid", "--fork"), "no answer within 1 s"),
    ],
    ids=["family", "forbidden", "network", "pid"],
)
def test_a_refused_process_connector_is_one_line_with_its_remedy(wrapper: tuple[str, ...], why: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root for a namespace")
    done = connect("", *wrapper)
    assert done.returncode == 1, done.stderr
    assert done.stderr == f"refused: the process connector cannot be used: {why}; {_REMEDY}\n"


def test_without_pyroute2_the_remedy_is_to_install_it() -> None:
    assert "; pip install pyroute2" in connect("import sys; sys.modules['pyroute2'] = None\n").stderr


def test_before_linux_6_6_the_process_connector_needs_cap_net_admin(pytestconfig: pytest.Config) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: nothing to take away")
    done = connect("", *without("net_admin"))
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if (int(release[1]), int(release[2])) < (6, 6):
        assert _REMEDY in done.stderr
    elif "refused: " in done.stderr and not pytestconfig.getoption("--require-kernel"):
        pytest.skip(done.stderr.strip())
    else:
        assert done.returncode == 0, done.stderr


def test_events_lost_before_the_answer_refuse_nothing() -> None:
    answer = _ANSWER.pack(os.getpid() + 1, 0, 0)
    flooded = Mock(recv=Mock(side_effect=[OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS)), answer]))
    _subscribe(flooded)
    assert flooded.recv.call_count == 2


@pytest.mark.parametrize("length", [0, 1, 36, 67])
def test_a_short_datagram_is_no_process(length: int) -> None:
    assert new_process(bytes(length)) is None
