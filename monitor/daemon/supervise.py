"""Starting the side process and starting it again when it dies.

The hot process is its parent and never waits for it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from monitor.daemon import channel
from monitor.daemon.config import CHANNEL_FD, CONFIG_FD, SIDE, STATS_FD

#: How long a side that is to end may take to store what it knows (8 s for incidents, 2 s for each other thing).
_STOP_S = 20.0
#: A side that dies at once is started again no sooner than this.
_BACKOFF_NS = 2_000_000_000


class Side:
    """The child: its socket, its pidfd, and when it may be started again."""

    def __init__(self, config_fd: int, stats_fd: int, listen_fd: int) -> None:
        self._config_fd = config_fd
        self._stats_fd = stats_fd
        self._listen_fd = listen_fd
        self.sock: socket.socket | None = None
        self.pid = 0
        self.pidfd = -1
        self.next_start_ns = 0

    def start(self, now_ns: int) -> None:
        """Start it with the descriptors it needs and nothing else. One posix_spawn, about 1 ms."""
        self.next_start_ns = now_ns + _BACKOFF_NS
        hot, side = channel.pair()
        env = dict(os.environ)
        env[CONFIG_FD], env[STATS_FD], env[CHANNEL_FD] = str(self._config_fd), str(self._stats_fd), str(side.fileno())
        fds = [self._config_fd, self._stats_fd, self._listen_fd, side.fileno()]
        for fd in fds:
            os.set_inheritable(fd, True)
        try:
            # -P: nothing lying in the working directory is imported as root. Signals back to their defaults: ours are
            # handled.
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-m", "monitor.daemon.side"],
                env,
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
            )
        finally:
            for fd in fds:
                os.set_inheritable(fd, False)
            side.close()
        self.pidfd = os.pidfd_open(self.pid)
        self.sock = hot

    def hand_over(self) -> None:
        """Leave it, and the counters it reads, to the program this process becomes by execv (see `adopt`)."""
        assert self.sock is not None
        for fd in (self.sock.fileno(), self._stats_fd):
            os.set_inheritable(fd, True)
        os.environ[STATS_FD] = str(self._stats_fd)
        os.environ[SIDE] = f"{self.pid} {self.sock.fileno()}"

    def adopt(self, now_ns: int) -> bool:
        """Take over the child that this process started before its execv; False if there is none."""
        if SIDE not in os.environ:
            return False
        pid, fd = map(int, os.environ.pop(SIDE).split())
        self.next_start_ns = now_ns + _BACKOFF_NS
        self.sock = socket.socket(fileno=fd)
        os.set_inheritable(fd, False)
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)  # works for a child that has ended too: it is ours to collect
        return True

    def reap(self) -> int:
        """Collect the dead child: its wait status (0 if it was not ours to collect)."""
        status = 0
        if self.pid:
            try:
                _, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                status = 0
        if self.pidfd >= 0:
            os.close(self.pidfd)
        if self.sock is not None:
            self.sock.close()
        self.sock, self.pid, self.pidfd = None, 0, -1
        return status

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """Close the channel, which ends the side; kill it if it does not end in time."""
        if not self.pid:
            return
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        import select

        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            poller.poll(1000)
        self.reap()
