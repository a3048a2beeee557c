"""A thread with a bounded queue, for work that may block (files, a stuck stderr) and must not delay its sender.

What finds no room is dropped and counted. A worker that retries keeps a job that failed with an OSError (a full disk)
and tries it again until it succeeds, so nothing is reordered and nothing is lost while there is room. A MonitorError
does not pass: the job is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from monitor.errors import MonitorError

Job = Callable[[], object]


class Worker:
    """Runs jobs one after the other on its own daemon thread.

    ``on_error(error)``, of an OSError or MonitorError, is called at the first failure of a row with the same errno or
    text, ``on_recovered()`` at the first success after that. ``retry_s`` (seconds) is the pause between two tries of a
    failed job; None drops it.
    """

    def __init__(
        self,
        name: str,
        capacity: int = 1024,
        *,
        retry_s: float | None = None,
        on_error: Callable[[Any], object] | None = None,
        on_recovered: Callable[[], None] | None = None,
    ) -> None:
        self.dropped = 0
        self.failing: OSError | MonitorError | None = None  # the last error while it lasts
        self._capacity = capacity
        self._retry_s = retry_s
        self._on_error = on_error
        self._on_recovered = on_recovered
        self._jobs: dict[object, tuple[Job, bool]] = {}  # key -> the job that waits, whether it is final
        self._running: list[object] = []  # the key of the job under way
        self._given_up: list[object] = []  # the same of those that failed in the end, after `close`
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, key: object = None, final: bool = True) -> bool:
        """Queue a job, in the place of one with the same ``key`` that waits, unless that is ``final`` and this is not.

        Without room the oldest job that is not ``final`` is dropped, as a newer one will come; else this one. False if
        a final one was dropped.
        """
        key = object() if key is None else key
        with self._changed:
            if not final and self._jobs.get(key, (job, False))[1]:
                return True
            self._jobs[key] = job, final
            self._changed.notify()
            if len(self._jobs) <= self._capacity:
                return True
            self.dropped += 1
            _, is_final = self._jobs.pop(next((one for one, (_, last) in self._jobs.items() if not last), key))
            return not is_final

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    @property
    def undone(self) -> list[object]:
        """The keys of the jobs that wait, run, or failed in the end."""
        with self._changed:
            return [*self._given_up, *self._running, *self._jobs]

    def close(self, timeout_s: float) -> bool:
        """Finish what is queued, for at most ``timeout_s`` seconds; True if there is nothing left to run. A job that
        fails is tried once more, without a pause.
        """
        self._closing.set()
        with self._changed:
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            is_last = False
            while not self._attempt(job):
                if self._retry_s is None or is_last or isinstance(self.failing, MonitorError):
                    self.dropped += 1
                    self._given_up += self._running if is_last else []
                    break
                is_last = self._closing.wait(self._retry_s)

    def _next(self) -> Job | None:
        with self._changed:
            self._running = []
            self._changed.wait_for(lambda: self._jobs or self._closing.is_set())
            if not self._jobs:
                return None
            key = next(iter(self._jobs))
            self._running = [key]
            return self._jobs.pop(key)[0]

    def _attempt(self, job: Job) -> bool:
        try:
            job()
        except (OSError, MonitorError) as error:  # another one ends the thread, and is a defect
            new = _kind(self.failing) != _kind(error)
            self.failing = error
            if new and self._on_error is not None:
                self._on_error(error)
            return False
        if self.failing is not None:
            self.failing = None
            if self._on_recovered is not None:
                self._on_recovered()
        return True


def _kind(error: OSError | MonitorError | None) -> object:
    return error.errno if isinstance(error, OSError) else error and str(error)


#: A turn that takes longer than this many seconds hangs: 110 manifests take a tenth of one.
STALLED_S = 5.0


class WatchedThread(threading.Thread):
    """Calls ``turn()`` until ``closing`` is set; each returns how many seconds to rest after it, None: until `wake`. It
    can be seen to hang in one.

    An exception of a turn sets that, and ``on_failure`` gets it.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float | None],
        closing: threading.Event,
        on_failure: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.closing = closing
        self._turn, self._on_failure, self._clock = turn, on_failure, clock
        self._wake = threading.Event()
        self._began: float | None = None  # the turn under way, monotonic seconds
        self.wake = self._wake.set

    def run(self) -> None:
        try:
            while not self.closing.is_set():
                began = self._clock()
                self.begin_turn()
                rest_s = self._turn()
                self._began = None
                self.rest(rest_s, self._clock() - began)
            self.at_end()
        except Exception as error:  # noqa: BLE001 - a thread that ends in silence would be worse
            self._began = None
            self.closing.set()
            self._on_failure(error)

    def rest(self, rest_s: float | None, took_s: float) -> None:
        self._wake.wait(rest_s)
        self._wake.clear()

    def at_end(self) -> None:
        """What is to be done when `closing` is set."""

    def begin_turn(self) -> None:
        """Called within a long turn, to show that it does not hang."""
        self._began = time.monotonic()

    def stalled_s(self) -> float:
        """For how long the turn under way has been hanging; 0 if it does not."""
        began = self._began
        took_s = 0.0 if began is None else time.monotonic() - began
        return took_s if took_s > STALLED_S else 0.0
