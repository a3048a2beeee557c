"""A thread with a bounded queue, for work that may block (files, a stuck stderr) and must not delay its sender.

A full queue drops the job and counts it. A worker that retries keeps a job that failed with an OSError (a full disk) at
the head of its line and tries it again until it succeeds, so nothing is reordered and nothing is lost while there is
room.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

Job = Callable[[], object]


class Worker:
    """Runs jobs one after the other on its own daemon thread.

    ``on_error(error)`` is called at the first failure of a row with the same errno, ``on_recovered()`` at the first
    success after that. ``retry_s`` (seconds) is the pause between two tries of a failed job; None drops it.
    """

    def __init__(
        self,
        name: str,
        capacity: int = 1024,
        *,
        retry_s: float | None = None,
        on_error: Callable[[OSError], None] | None = None,
        on_recovered: Callable[[], None] | None = None,
    ) -> None:
        self.dropped = 0
        self.failures = 0
        self.failing: OSError | None = None  # the last error while it lasts
        self._queue: queue.Queue[Job | None] = queue.Queue(capacity)
        self._retry_s = retry_s
        self._on_error = on_error
        self._on_recovered = on_recovered
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> bool:
        """Queue a job; False if there was no room (it is dropped and counted)."""
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            self.dropped += 1
            return False
        return True

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    @property
    def idle(self) -> bool:
        return not self._queue.unfinished_tasks

    def close(self, timeout_s: float) -> bool:
        """Finish what is queued, for at most ``timeout_s`` seconds; True if all of it was done."""
        self._closing.set()
        deadline = time.monotonic() + timeout_s
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return False
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            while not self._attempt(job):
                if self._retry_s is None or self._closing.wait(self._retry_s):
                    self.dropped += 1
                    break
            self._queue.task_done()

    def _attempt(self, job: Job) -> bool:
        try:
            job()
        except OSError as error:
            self.failures += 1
            new = self.failing is None or self.failing.errno != error.errno
            self.failing = error
            if new and self._on_error is not None:
                self._on_error(error)
            return False
        if self.failing is not None:
            self.failing = None
            if self._on_recovered is not None:
                self._on_recovered()
        return True
