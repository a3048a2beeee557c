"""A thread that works in turns and can be seen to hang in one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from monitor.kernel.sched import take_time


class WatchedThread:
    """Calls ``turn()`` until ``closing`` is set; each returns how many seconds to rest after it, None: until `wake`.

    What a turn raises goes to ``on_failure`` and ends the thread.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float | None],
        closing: threading.Event,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._turn = turn
        self._closing = closing
        self._on_failure = on_failure
        self._wake = threading.Event()
        self._began: float | None = None  # the turn under way, monotonic seconds
        self.start = self._thread.start
        self.wake = self._wake.set

    def _run(self) -> None:
        take_time()
        try:
            while not self._closing.is_set():
                self.begin_turn()
                rest_s = self._turn()
                self._began = None
                self._wake.wait(rest_s)
                self._wake.clear()
        except Exception as error:  # noqa: BLE001 - a thread that ends in silence would be worse
            self._began = None
            self._on_failure(error)

    def begin_turn(self) -> None:
        """Called within a long turn: it moves."""
        self._began = time.monotonic()

    def busy_s(self) -> float:
        """For how long the turn under way has lasted; 0 between two."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def join(self, timeout_s: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout_s)
