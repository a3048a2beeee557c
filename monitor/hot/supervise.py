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
from contextlib import suppress

from monitor.kernel import python
from monitor.kernel.timer import Timer
from monitor.kernel.troubles import TROUBLES
from monitor.link import channel
from monitor.link.upgrade import CODE, MINE
from monitor.settings.config import CHANNEL_FD, CONFIG_FD, HEARTBEAT_FD, LEFT_FDS, SIDE, STATS_FD

#: How long a helper that is to end may take to store what it knows (8 s for incidents, 2 s for each other thing).
_STOP_S = 20.0
#: From one start to the next at least; doubled for each further side that dies before `_STEADY_NS`, after the first
#: three, up to `_MOST_NS`.
_BACKOFF_NS, _STEADY_NS, _MOST_NS = 2_000_000_000, 10_000_000_000, 60_000_000_000
_QUICK = 3
#: A killed side that is not gone by now is in a system call that does not end: it is not waited for any longer.
_KILLED_NS = 500_000_000
#: Channels kept of sides that died before they read everything.
_MOST_LEFT = 4


class Side:
    """The child: its socket, its pidfd, and when it may be started again.

    What is sent while there is none waits in the channel of the next one, and what one has not read when it dies is
    given to the next as well: both ends of a channel are kept here.
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
        self._left: list[socket.socket] = []  # the ends of those that died, with what they had not read
        self.pid = 0
        self.pidfd = -1
        self.next_start_ns = 0
        self._started_ns = self._killed_ns = 0
        self._failures = 0  # sides in a row that died early
        self._leaving: dict[int, int] = {}  # pidfd -> pid of killed ones that are still there

    def start(self, now_ns: int) -> None:
        """Start it with the descriptors it needs and nothing else. One posix_spawn, about 1 ms. Raises OSError."""
        self.next_start_ns = now_ns + _BACKOFF_NS
        self._open_channel()
        assert self.sock is not None
        assert self._end is not None
        env = dict(os.environ)
        env[CONFIG_FD], env[STATS_FD], env[CHANNEL_FD] = (
            str(self._config_fd),
            str(self._stats_fd),
            str(self._end.fileno()),
        )
        env[HEARTBEAT_FD] = str(self.timer.fileno())
        env[CODE] = MINE
        env[LEFT_FDS] = " ".join(str(left.fileno()) for left in self._left)
        fds = [self._config_fd, self._stats_fd, self._listen_fd, self.timer.fileno(), self._end.fileno()]
        fds += [left.fileno() for left in self._left]
        for fd in fds:
            os.set_inheritable(fd, True)
        try:
            # Signals back to their defaults: ours are handled.
            pid = os.posix_spawn(
                sys.executable,
                python.command("monitor.side.main"),
                env,
                setsigmask=[],
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
        self.pid, self._started_ns, self._killed_ns = pid, now_ns, 0

    def take_config(self, config_fd: int) -> None:
        """The next one reads its configuration from this descriptor; the one before is closed."""
        os.close(self._config_fd)
        self._config_fd = config_fd

    def _open_channel(self) -> None:
        if self.sock is None:
            self.sock, self._end = channel.pair()

    def kill(self, now_ns: int) -> None:
        """SIGKILL to one that hangs; its end is heard of by its pidfd, or `is_overdue` reports that it does not end."""
        self._killed_ns = now_ns
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except OSError as error:
            TROUBLES.note("side", error)

    def is_overdue(self, now_ns: int) -> bool:
        """Whether it was killed and should have been gone by now."""
        return self.is_killed and now_ns > self._killed_ns + _KILLED_NS

    @property
    def is_killed(self) -> bool:
        """Whether it was killed and is not gone yet."""
        return bool(self.pid and self._killed_ns)

    def leave(self) -> None:
        """Stop waiting for the killed helper: only its end is still to come."""
        self._leaving[self.pidfd] = self.pid
        self.pidfd, self.pid = -1, 0
        self._lost()

    def collect(self) -> None:
        """Reap the helpers that are gone by now, also where their end was not noticed."""
        for pidfd, pid in list(self._leaving.items()):
            try:
                gone = os.waitpid(pid, os.WNOHANG)[0] != 0
            except ChildProcessError:
                gone = True
            if gone:
                del self._leaving[pidfd]
                os.close(pidfd)

    def forget_read(self) -> None:
        """Close the channels of dead ones that were read to the end."""
        for left in [left for left in self._left if channel.is_read(left)]:
            self._left.remove(left)
            left.close()

    def _lost(self) -> None:
        """It is gone, or as good as: keep what it did not read, and plan the next one."""
        if self.sock is not None:
            self.sock.close()
        if self._end is not None:
            self._left.append(self._end)
        self.sock = self._end = None
        for old in self._left[:-_MOST_LEFT]:
            self._left.remove(old)
            old.close()
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

    def adopt(self, now_ns: int) -> bool:
        """Take over the child that this process started before its execv; False if there is none."""
        if SIDE not in os.environ:
            return False
        pid, fd, end, timer = map(int, os.environ.pop(SIDE).split())
        self.next_start_ns = now_ns + _BACKOFF_NS
        self.sock, self._end = socket.socket(fileno=fd), socket.socket(fileno=end)
        for inherited in (fd, end, timer):
            os.set_inheritable(inherited, False)
        os.dup2(timer, self.timer.fileno(), inheritable=False)
        os.close(timer)
        self.pid, self._started_ns = pid, now_ns
        self.pidfd = os.pidfd_open(pid)  # works for a child that has ended too: it is ours to collect
        return True

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
        while self._left:
            self._left.pop().close()

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
