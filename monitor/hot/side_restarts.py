"""When the helper process is started, killed because it hangs, and started again."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

from monitor.actions.victim import SPARED
from monitor.hot.loop import Loop
from monitor.hot.supervise import Side
from monitor.link.heartbeat import HeartbeatWatch
from monitor.link.outbox import Outbox


class SideRestarts:
    """``started`` is called before a helper is, ``lost`` when one is gone, ``receive`` when it has sent something."""

    def __init__(
        self,
        side: Side,
        outbox: Outbox,
        loop: Loop,
        *,
        started: Callable[[], None],
        lost: Callable[[], None],
        receive: Callable[[socket.socket], object],
    ) -> None:
        self._side = side
        self._heartbeat = HeartbeatWatch(outbox.stats, side.timer)
        self._outbox = outbox
        self._loop = loop
        self._started = started
        self._lost = lost
        self._channel = loop.listener(lambda _: side.sock and receive(side.sock))
        self._ends = loop.listener(self._ended)
        self._heartbeats = loop.listener(lambda _: self._heartbeat.missed())
        self._hung = ""  # why the helper was killed
        self._complaint = ""  # for the next helper to log

    def open(self) -> None:
        """Start the first side. Raises OSError."""
        self.start(time.monotonic_ns())
        self._heartbeats.register(self._side.timer.fileno(), select.EPOLLIN)

    def due_ns(self) -> int | None:
        """When to look at the helper, or to start one where there is none."""
        return self._heartbeat.next_ns if self._side.pid else self._side.next_start_ns

    def go_on(self, now_ns: int) -> None:
        """What is due. Raises OSError from a start: it is tried again when the backoff is over."""
        if self._side.pid:
            self._look(now_ns)
        else:
            self.start(time.monotonic_ns())

    def start(self, now_ns: int) -> None:
        """Raises OSError."""
        side = self._side
        self._started()
        self._heartbeat.begin(now_ns)
        if not side.adopt(now_ns):
            side.start(now_ns)
        assert side.sock is not None
        self._outbox.stats.add("side_starts")
        try:
            SPARED.add(side.pid)
            self._channel.register(side.sock.fileno(), select.EPOLLIN)
            self._ends.register(side.pidfd, select.EPOLLIN)
        except OSError:  # one that is not heard, or not spared, is none
            side.kill(now_ns)
            side.leave()
            self._without_side()
            raise
        self._outbox.resend()

    def _look(self, now_ns: int) -> None:
        """Kill a helper that hangs; do not wait for one that does not die."""
        if self._side.is_overdue(now_ns):
            self._complaint = f"the helper process {self._hung}: it was killed, does not end, and another was started"
            self._side.leave()
            self._without_side()
            return
        self._side.forget_read()
        why = self._heartbeat.look(now_ns, self._side.pid)
        if why and not self._side.is_killed:
            self._hung = why
            self._outbox.stats.add("side_hangs")
            self._side.kill(now_ns)

    def _ended(self, pidfd: int) -> None:
        """The epoll forgets descriptors as they are closed."""
        if pidfd != self._side.pidfd:
            self._side.collect()  # killed long ago
            return
        killed = self._side.is_killed
        status = self._side.reap()
        self._without_side()
        if not self._loop.is_stopping:
            why = f"{self._hung}: it was killed" if killed else f"ended (wait status {status})"
            self._complaint = f"the helper process {why} and was started again"

    def _without_side(self) -> None:
        self._outbox.side_lost()
        self._lost()

    def complain(self) -> None:
        """Have the helper log why the one before it ended, once there is one."""
        if self._complaint and self._side.sock is not None:
            self._outbox.log("warning", self._complaint)
            self._complaint = ""
