"""A thread that works in turns and can be seen to hang in one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from monitor.kernel.sched import take_time


class WatchedThread:
    """A thread that rests between its turns, can be woken, and shows for how long it has been busy with one."""

    def __init__(self, name: str, body: Callable[[WatchedThread], None]) -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._body = body
        self._wake = threading.Event()
        self._began: float | None = None

    def _run(self) -> None:
        take_time()
        self.begin_turn()
        self._body(self)
        self._began = None

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def rest(self, timeout_s: float | None) -> None:
        """Wait to be woken, for ``timeout_s`` seconds at most (None: for ever)."""
        self._began = None
        self._wake.wait(timeout_s)
        self._wake.clear()
        self.begin_turn()

    def begin_turn(self) -> None:
        self._began = time.monotonic()

    def busy_s(self) -> float:
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def join(self, timeout_s: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout_s)
