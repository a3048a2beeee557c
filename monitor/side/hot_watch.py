"""Ends a hot process that hangs, so that the service manager or the kubelet starts it again.

It uses no channel that others can fill up: a client that opens 1,000 connections a second delays a probe of --listen
for minutes, and a liveness probe would have outrace killed in a loop.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

from monitor.side.node_state import NodeState

_EVERY_S = 20.0
#: Checks in a row at which it has not turned: a minute, as systemd's watchdog has 30 s. Before its first turn it
#: compiles, a minute on a very slow machine.
_MOST, _AT_START = 3, 9


class HotWatch:
    def __init__(self, node: NodeState, every_s: float = _EVERY_S, kill: Callable[[int], object] | None = None) -> None:
        self._node, self._every_s = node, every_s
        self._hot = os.pidfd_open(node.hot_pid)
        self._kill = kill or (lambda pidfd: signal.pidfd_send_signal(pidfd, signal.SIGKILL))
        self._loops, self._missed = 0, 0

    def start(self) -> None:
        threading.Thread(target=self._run, name="hot watch", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._every_s):
            self.look()

    def look(self) -> None:
        """May wait 2 s."""
        lives, loops = self._node.hot_lives(), self._node.stats.get("loops")
        self._missed = 0 if lives or loops != self._loops else self._missed + 1
        self._loops = loops
        if self._missed >= (_MOST if loops else _AT_START):
            self._node.log.error("the hot loop stands still: it is killed, to be started again", looks=self._missed)
            with suppress(ProcessLookupError):
                self._kill(self._hot)
