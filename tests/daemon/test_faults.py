"""System calls of the hot process that fail: the daemon goes on, and evicts.

Every call that it makes through Python, with every errno that it may give, in the real process on a live node
(tests/faulty/sitecustomize.py makes them fail there). Real limits of descriptors beside them.
"""

import errno
import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from monitor.lab.daemon import LabDaemon
from monitor.lab.node import LabNode
from tests import live
from tests.daemon.hot_node import evicted, hot_node

pytestmark = [pytest.mark.kernel, pytest.mark.once]

HARD = ("--enforce", "--eviction-hard", "memory.available<96Mi")
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
GONE = (errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EINVAL)
ODD = (errno.EIO, errno.EACCES, errno.EPERM, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.EOPNOTSUPP)
#: What the loop and all it uses calls through Python -> what that may fail with.
CALLS: dict[str, tuple[int, ...]] = {
    "pidfd_open": (*SHORT, *GONE, *ODD),
    "signal": (*GONE, errno.EIO, errno.EAGAIN, errno.ENOMEM, errno.EINTR),
    "open": (*SHORT, *GONE, *ODD),
    "scandir": (*SHORT, *GONE, *ODD),
    "stat": (errno.ENOMEM, *ODD),  # not ENOENT: the node's cgroup is gone then, and the daemon ends
    "read": (errno.EIO, errno.ENOMEM, errno.ENODEV, errno.EAGAIN, errno.EOPNOTSUPP),
    "pread": (errno.EIO, errno.ENOMEM, errno.ENODEV, errno.EAGAIN, errno.EOPNOTSUPP),
    "getsid": (errno.ESRCH, errno.EPERM),
    "epoll.poll": (errno.EINTR, errno.ENOMEM, errno.EINVAL),
    "epoll.register": (errno.ENOSPC, errno.ENOMEM, errno.EEXIST, errno.EPERM),
    "epoll.unregister": (errno.ENOENT, errno.EBADF),
    "poll.poll": (errno.ENOMEM, errno.EINVAL, errno.EINTR),
    "recv": (errno.ENOMEM, errno.EIO, errno.EINTR),
    "send": (errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN, errno.EPIPE),
}
TIMES = 12
#: What these say is the truth, where the kernel says it: the cgroup, or the process behind a pidfd, is there no more.
TRUE = {"signal": {errno.ESRCH}, "open": {errno.ENOENT, errno.ENODEV}, "scandir": {errno.ENOENT, errno.ENODEV}}


class Faults:
    """The plan of what fails, and how often it has."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "fault"
        self.set()

    def set(self, **plan: Any) -> None:
        whole = self.path.with_suffix(".new")
        whole.write_text(json.dumps(plan))
        whole.rename(self.path)

    @property
    def hits(self) -> int:
        return int(Path(f"{self.path}.hits").read_text() or 0)  # made, and not yet written

    def apply(self, daemon: LabDaemon, **plan: Any) -> None:
        """Have it fail from now on."""
        hits = Path(f"{self.path}.hits")
        hits.unlink(missing_ok=True)
        self.set(**plan)
        os.kill(daemon.pid, signal.SIGUSR1)
        live.until(hits.exists, "the plan to be read")


node = live.fixture(hot_node, 192)


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    made = Faults(tmp_path)
    monkeypatch.setenv("OUTRACE_FAULT", str(made.path))
    monkeypatch.setenv("PYTHONPATH", str(live.ROOT / "tests" / "faulty"))
    return made


def goes_on(daemon: LabDaemon, since: int) -> None:
    """It has not ended."""
    assert daemon.process.poll() is None, "\n".join(str(r) for r in daemon.log[since:])
    assert daemon.get("/readyz")[0] == 200


@pytest.mark.parametrize("call", CALLS)
def test_whatever_fails_it_goes_on_and_evicts(node: LabNode, faults: Faults, call: str) -> None:
    with live.daemon(node, *HARD) as daemon:
        hit = 0
        for number in CALLS[call]:
            since = len(daemon.log)
            pod = node.add_pod(f"hog{number}")
            live.message(daemon, "pod found", since, uid=pod.uid)
            faults.apply(daemon, call=call, errno=number, times=TIMES)
            if call == "recv":  # made only when the helper says something: on a quiet machine not once in a race
                node.add_pod(f"later{number}")
                live.until(lambda: faults.hits > 0, "a message of the side")
            hog = node.start_hog(pod, mib=120)
            hog.go()
            if number in TRUE.get(call, ()):
                time.sleep(0.5)  # the hog may live: what it is in is gone, as the call says
            else:
                assert hog.wait() == -signal.SIGKILL
            if call == "epoll.unregister":  # made when the end of the hog is reported
                live.until(lambda: faults.hits > 0, "its end to be reported")
            hit += faults.hits
            faults.apply(daemon)
            goes_on(daemon, since)
            node.end(hog)
            node.remove_pod(pod)
        assert hit, "this call was never made"
        live.ended(daemon)


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("pidfd_open", errno.EIO),
        ("pidfd_open", errno.EMFILE),
        ("signal", errno.EIO),
        ("scandir", errno.EIO),
        ("open", errno.EMFILE),
        ("open", errno.ENODEV),
    ],
)
def test_a_pod_that_cannot_be_evicted_loses_its_turn(node: LabNode, faults: Faults, call: str, number: int) -> None:
    """All that is about it fails for as long as it lives; the next pod is evicted, and the log names which and why."""
    with live.daemon(node, *HARD) as daemon:
        sick, next_one = node.add_pod("sick"), node.add_pod("next")
        live.message(daemon, "pod found", uid=sick.uid)
        live.message(daemon, "pod found", uid=next_one.uid)
        # Before it is prepared: a victim with a descriptor is killed by that.
        whose = {"procs": str(sick.containers["c0"] / "cgroup.procs")}
        if call in ("open", "scandir"):
            whose = {"path": str(sick.cgroup)}
        faults.apply(daemon, call=call, errno=number, times=10**9, **whose)
        # The second one grows on, which lifts the brake on evictions that do not help.
        hogs = [node.start_hog(sick, mib=60), node.start_hog(next_one, mib=110, rate=30)]
        for hog in hogs:
            hog.go()
        live.message(daemon, "evicting", pod="lab/next")
        assert hogs[1].wait() == -signal.SIGKILL
        assert live.alive(hogs[0].pid)
        if number != errno.ENODEV:  # which says that the cgroup is gone
            logged = daemon.wait_for(lambda r: r.get("errno") == errno.errorcode[number] and r.get("pod") == "lab/sick")
            assert logged["level"] == "error"
            live.until(lambda: errors(daemon) > 0, "the errors to be counted")
        goes_on(daemon, 0)
        faults.apply(daemon)
        live.ended(daemon)


def errors(daemon: LabDaemon) -> float:
    return sum(value for name, value in daemon.metrics().items() if name.startswith("outrace_errors_total"))


def test_without_a_descriptor_it_goes_on_and_evicts_who_is_prepared(node: LabNode) -> None:
    """The real limit: whatever opens anything fails."""
    pod = node.add_pod("hog")
    with live.daemon(node, *HARD) as daemon:
        hog = node.start_hog(pod, mib=120)
        live.until(lambda: prepared(daemon, hog.pid), "a pidfd of the hog")
        hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)[1]
        used = {int(fd) for fd in os.listdir(f"/proc/{daemon.pid}/fd")}
        first_free = next(fd for fd in range(1024) if fd not in used)
        # One lower: the process may have opened the last of them for a moment only.
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (first_free - 1, hard))
        try:
            hog.go()
            assert hog.wait() == -signal.SIGKILL
            turns = live.metric(daemon, "loops_total")
            live.until(lambda: live.metric(daemon, "loops_total") > turns + 3, "turns in which nothing can be opened")
            goes_on(daemon, 0)
        finally:
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (hard, hard))
        evicted(daemon, pod)
        assert errors(daemon) > 0
        another = node.add_pod("another")
        live.killed_hog(node, another, 120)
        evicted(daemon, another)
        goes_on(daemon, 0)
        live.ended(daemon)


def prepared(daemon: LabDaemon, pid: int) -> bool:
    for fd in os.listdir(f"/proc/{daemon.pid}/fdinfo"):
        try:
            if f"Pid:\t{pid}\n" in Path(f"/proc/{daemon.pid}/fdinfo/{fd}").read_text():
                return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize("call", ["posix_spawn", "socketpair", "pidfd_open", "epoll.register"])
def test_a_side_that_cannot_be_started_is_tried_again(node: LabNode, faults: Faults, call: str) -> None:
    pod = node.add_pod("hog")
    with live.daemon(node, *HARD) as daemon:
        (side,) = live.children(daemon.pid)
        faults.apply(daemon, call=call, errno=errno.EMFILE, times=2)
        os.kill(side, signal.SIGKILL)
        live.until(lambda: faults.hits == 2, "two tries")
        live.until(lambda: daemon.get("/readyz")[0] == 200, "another side")
        live.killed_hog(node, pod, 120)
        evicted(daemon, pod)
        assert errors(daemon) >= 2
        live.until(lambda: len(live.children(daemon.pid)) == 1, "one side, and no zombie")
        live.ended(daemon)
