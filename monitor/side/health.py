"""Whether both processes turn, and whether decisions can be made."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from monitor.link.messages import Turn
from monitor.side.disk_watch import DiskWatch
from monitor.side.export.log import Log
from monitor.side.node_state import Figures, NodeState, wait_until
from monitor.side.pod_watch import PodWatch

#: A hot loop that has not published for this long gets a request that makes it turn.
_QUIET_NS = 5_000_000_000
_PROBE_TIMEOUT_S = 2.0


@dataclass(eq=False)
class Health:
    """``wake()`` makes the helper's main loop turn."""

    node: NodeState
    figures: Figures
    wake: Callable[[], None]
    watch: PodWatch
    disks: DiskWatch
    turns: int = 0  # of the helper's main loop

    def hot_lives(self) -> bool:
        """Whether the hot loop turns. A message makes a quiet loop turn; may wait 2 s."""
        stats = self.figures.stats
        if time.monotonic_ns() - stats.get("published_ns") < _QUIET_NS:
            return True
        loops = stats.get("loops")
        return self.figures.send(Turn()) and wait_until(lambda: stats.get("loops") != loops, _PROBE_TIMEOUT_S)

    def side_lives(self) -> bool:
        """Whether the helper's main loop turns when it is woken; may wait 2 s."""
        turns = self.turns
        self.wake()
        return wait_until(lambda: self.turns != turns, _PROBE_TIMEOUT_S)

    def not_ready(self) -> str:
        """Why decisions cannot be made yet; "" when they can."""
        stalled_s = self.watch.stalled_s()
        if stalled_s:
            return f"looking at the pods ({self.node.config.pods}) has been hanging for {stalled_s:.0f} s"
        hung_s = self.disks.stalled_s()
        if hung_s:
            return f"looking at the disks has been hanging for {hung_s:.0f} s"
        if not self.node.synced:
            return "the pods are not known yet"
        if not self.figures.stats.get("ready_ns"):
            return "the hot process is starting"
        state = self.node.state
        if state is None:
            return "the hot process has not reported its state yet"
        if not state.ready:
            return "the hot process is not ready: its counters are not complete yet"
        return ""


_EVERY_S = 20.0
#: Checks in a row at which it has not turned: a minute, as systemd's watchdog has 30 s. Before its first turn it
#: compiles, a minute on a very slow machine.
_MOST, _AT_START = 3, 9


class HotWatch:
    """Ends a hot process that hangs, so that the service manager or the kubelet starts it again.

    It uses no channel that others can fill up: a client that opens 1,000 connections a second delays a probe of
    --listen for minutes, and a liveness probe would have outrace killed in a loop.
    """

    def __init__(self, hot_pid: int, health: Health, log: Log, kill: Callable[[int], object] | None = None) -> None:
        self._health, self._log = health, log
        self._hot = os.pidfd_open(hot_pid)
        self._kill = kill or (lambda pidfd: signal.pidfd_send_signal(pidfd, signal.SIGKILL))
        self._loops, self._missed = 0, 0

    def start(self) -> None:
        threading.Thread(target=self._run, name="hot watch", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(_EVERY_S):
            self.look()

    def look(self) -> None:
        """May wait 2 s."""
        lives, loops = self._health.hot_lives(), self._health.figures.stats.get("loops")
        self._missed = 0 if lives or loops != self._loops else self._missed + 1
        self._loops = loops
        if self._missed >= (_MOST if loops else _AT_START):
            self._log.error("the hot loop stands still: it is killed, to be started again", looks=self._missed)
            with suppress(ProcessLookupError):
                self._kill(self._hot)
