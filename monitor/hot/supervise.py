"""Starting the helper process and starting it again when it dies.

The hot process is its parent. Its loop never waits for it; its end does, for 20 s at most.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from monitor.actions.victim import SPARED
from monitor.hot.loop import Loop
from monitor.kernel import python
from monitor.kernel.timer import Timer
from monitor.kernel.troubles import TROUBLES
from monitor.link import channel
from monitor.link.heartbeat import MISSED_NS
from monitor.link.outbox import Outbox
from monitor.link.upgrade import CODE, MINE
from monitor.settings.config import CHANNEL_FD, CONFIG_FD, HEARTBEAT_FD, SIDE, STATS_FD

#: How long a helper that is to end may take to store what it knows (8 s for incidents, 2 s for each other thing).
_STOP_S = 20.0
#: From one start to the next at least; doubled for each further side that dies before `_STEADY_NS`, after the first
#: three, up to `_MOST_NS`.
_BACKOFF_NS, _STEADY_NS, _MOST_NS = 2_000_000_000, 10_000_000_000, 60_000_000_000
_QUICK = 3
#: A killed helper gets so long to end before the next one undoes what a dead one changed.
_ENDS_NS = 500_000_000


class Side:
    """The child: its socket, its pidfd, and when it may be started again.

    What is sent while there is none waits in the channel of the next one: both ends of it are kept here.
    """

    def __init__(self, config_fd: int, stats_fd: int, listen_fd: int) -> None:
        self._now = time.monotonic_ns
        self._config_fd = config_fd
        #: What the helper winds up with each turn (`monitor.link.heartbeat`).
        self.timer = Timer()
        self._stats_fd = stats_fd
        self._listen_fd = listen_fd
        self.sock: socket.socket | None = None
        self._end: socket.socket | None = None  # the helper's end of it
        self.pid = 0
        self.pidfd = -1
        self.next_start_ns = 0
        self._started_ns = 0
        self._failures = 0  # sides in a row that died early
        self._leaving: dict[int, int] = {}  # pidfd -> pid of killed ones that are still there

    def start(self, now_ns: int) -> None:
        """Start it with the descriptors it needs and nothing else. One posix_spawn, about 1 ms. Raises OSError."""
        self.next_start_ns = now_ns + _BACKOFF_NS
        self._open_channel()
        assert self._end is not None
        named = {
            CONFIG_FD: self._config_fd,
            STATS_FD: self._stats_fd,
            CHANNEL_FD: self._end.fileno(),
            HEARTBEAT_FD: self.timer.fileno(),
        }
        # One arena for all threads: the allocator keeps 2.5 MB more with one for each (500 pods).
        env = os.environ | {name: str(fd) for name, fd in named.items()} | {CODE: MINE, "MALLOC_ARENA_MAX": "1"}
        fds = (*named.values(), self._listen_fd)
        for fd in fds:
            os.set_inheritable(fd, True)
        try:
            # Signals back to their defaults: ours are handled. SIGHUP waits until the helper ignores it.
            pid = os.posix_spawn(
                sys.executable,
                python.command("monitor.side.main"),
                env,
                setsigmask=[signal.SIGHUP],
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
            )
        finally:
            for fd in fds:
                os.set_inheritable(fd, False)
        try:
            self.pidfd = os.pidfd_open(pid)
        except OSError:  # without a pidfd its end would not be noticed
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self.pid, self._started_ns = pid, now_ns

    def _open_channel(self) -> None:
        if self.sock is None:
            self.sock, self._end = channel.pair()

    def kill(self) -> None:
        """SIGKILL to one that hangs. The next one does not wait for its end, which may never come."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except OSError as error:
            TROUBLES.note("side", error)
        self._leaving[self.pidfd] = self.pid
        self.pidfd, self.pid = -1, 0
        self._lost()
        # The next one undoes what a dead one changed: most have ended by then.
        self.next_start_ns = max(self.next_start_ns, self._now() + _ENDS_NS)

    def collect(self) -> None:
        """Reap the killed helpers that are gone by now."""
        for pidfd, pid in list(self._leaving.items()):
            try:
                gone = os.waitpid(pid, os.WNOHANG)[0] != 0
            except ChildProcessError:
                gone = True
            if gone:
                del self._leaving[pidfd]
                os.close(pidfd)

    def _lost(self) -> None:
        """It is gone, or as good as: plan the next one."""
        self._close_channel()
        try:
            self._open_channel()
        except OSError as error:  # no descriptor now: tried again when the next one is started
            TROUBLES.note("side", error)
        early = self._now() < self._started_ns + _STEADY_NS
        self._failures = self._failures + 1 if early else 0
        if early:
            pause_ns = min(_BACKOFF_NS << max(0, self._failures - _QUICK), _MOST_NS)
            self.next_start_ns = self._started_ns + pause_ns

    def hand_over(self) -> None:
        """Leave it, and the counters it reads, to the program this process becomes by execv (see `adopt`)."""
        assert self.sock is not None
        assert self._end is not None
        kept = (self.sock.fileno(), self._end.fileno(), self.timer.fileno())
        for fd in (*kept, self._stats_fd):
            os.set_inheritable(fd, True)
        os.environ[STATS_FD] = str(self._stats_fd)
        os.environ[SIDE] = " ".join(map(str, (self.pid, *kept)))

    def adopt(self, now_ns: int) -> None:
        """Take over the child that this process started before its execv."""
        pid, fd, end, timer = map(int, os.environ.pop(SIDE).split())
        self.next_start_ns = now_ns + _BACKOFF_NS
        self.sock, self._end = socket.socket(fileno=fd), socket.socket(fileno=end)
        for inherited in (fd, end, timer):
            os.set_inheritable(inherited, False)
        os.dup2(timer, self.timer.fileno(), inheritable=False)
        os.close(timer)
        self.pid, self._started_ns = pid, now_ns
        self.pidfd = os.pidfd_open(pid)  # works for a child that has ended too: it is ours to collect

    def reap(self) -> int:
        """Collect the dead child: its wait status (0 if it was not ours to collect)."""
        status = 0
        if self.pid:
            with suppress(ChildProcessError):
                _, status = os.waitpid(self.pid, os.WNOHANG)
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.pid, self.pidfd = 0, -1
        self._lost()
        return status

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """Close the channel, which ends the helper; kill it if it does not end in time."""
        if self.pid:
            self._close_channel()
            self._kill_unless_ended(timeout_s)
            self.reap()
        self._close_channel()

    def _close_channel(self) -> None:
        for end in (self.sock, self._end):
            if end is not None:
                end.close()
        self.sock = self._end = None

    def _kill_unless_ended(self, timeout_s: float) -> None:
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            poller.poll(1000)


@dataclass(eq=False)
class SideRestarts:
    """``started`` is called before a helper is, ``lost`` when one is gone, ``receive`` when it has sent something.

    When the timer that the helper winds up (`monitor.link.heartbeat`) has run out, the hot process waits as long again,
    awake: after a time in which both stood still, as in a frozen virtual machine, the helper turns first.
    """

    side: Side
    outbox: Outbox
    loop: Loop
    started: Callable[[], None]
    lost: Callable[[], None]
    receive: Callable[[socket.socket], object]

    def __post_init__(self) -> None:
        self._look_ns: int | None = None  # when to look whether it has turned; None: when the timer has run out
        self._ping_ns = 0  # its last turn, when it had

    def open(self) -> None:
        """Take over the side that `outrace run` started. Raises OSError."""
        self._begin(self.side.adopt)
        self.loop.register(self.side.timer.fileno(), self._missed)

    def due_ns(self) -> int | None:
        """When to look at the helper, or to start one where there is none."""
        return self._look_ns if self.side.pid else self.side.next_start_ns

    def go_on(self, now_ns: int) -> None:
        """What is due. Raises OSError from a start: it is tried again when the backoff is over."""
        stats, self._look_ns = self.outbox.stats, None
        if not self.side.pid:
            self._begin(self.side.start)
        elif stats.get("side_heartbeat_ns") == self._ping_ns:  # else it has wound up the timer
            stats.add("side_hangs")
            self.side.kill()
            self._without_side("hung, was killed")

    def _begin(self, how: Callable[[int], None]) -> None:
        side, self._look_ns = self.side, None
        self.started()
        side.collect()  # also one whose end was not noticed
        self.outbox.stats.set("side_heartbeat_ns", 0)
        how(time.monotonic_ns())
        side.timer.set(MISSED_NS)  # that of an adopted one has only now come
        assert side.sock is not None
        self.outbox.stats.add("side_starts")
        try:
            SPARED.add(side.pid)
            self.loop.register(side.sock.fileno(), lambda _: side.sock and self.receive(side.sock))
            self.loop.register(side.pidfd, self._ended)
        except OSError:  # one that is not heard, or not spared, is none
            side.kill()
            self._without_side()
            raise
        self.outbox.resend()

    def _missed(self, _: int) -> None:
        self.side.timer.acknowledge()
        self._ping_ns = self.outbox.stats.get("side_heartbeat_ns")
        self._look_ns = time.monotonic_ns() + MISSED_NS

    def _ended(self, pidfd: int) -> None:
        """The epoll forgets descriptors as they are closed."""
        if pidfd != self.side.pidfd:
            self.side.collect()  # killed before
        else:
            self._without_side(f"ended (wait status {self.side.reap()})")

    def _without_side(self, why: str = "") -> None:
        self.outbox.side_lost()
        if why and not self.loop.is_stopping:  # the next one logs it
            self.outbox.log("warning", f"the helper process {why} and was started again")
        self.lost()
