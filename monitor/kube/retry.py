"""Trying a request again while the server is away, throttles or fails: for those that must get through in the end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from monitor.errors import MonitorError
from monitor.kube.errors import (
    ApiError,
    Cancelled,
    CertificateError,
    KubeError,
    ServerError,
    TooManyRequests,
    TransportError,
)

T = TypeVar("T")

RESET_S = 120.0


class BackOff:
    """How long to wait before the next try, as client-go's reflector does: 0.8 s, doubling to 30 s, each with jitter.

    `next_s` doubles with every failure; after `RESET_S` without one it begins anew.

    Up to ``jitter`` times the pause is added by chance, so that 5,000 nodes do not come back in step.
    """

    def __init__(
        self,
        first_s: float = 0.8,
        cap_s: float = 30.0,
        jitter: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._first_s = self._pause_s = first_s
        self._cap_s = cap_s
        self._jitter = jitter
        self._clock = clock
        self._chance = chance
        self._failed_at: float | None = None

    def next_s(self, retry_after_s: float | None = None) -> float:
        """Seconds to wait now; at least what the server asked for, of which no more than ten times the cap."""
        now = self._clock()
        if self._failed_at is not None and now - self._failed_at > RESET_S:
            self.reset()
        self._failed_at = now
        pause_s, self._pause_s = self._pause_s, min(self._cap_s, 2 * self._pause_s)
        pause_s = min(self._cap_s, pause_s * (1 + self._jitter * self._chance()))
        if retry_after_s is None:
            return pause_s
        asked_s = min(retry_after_s, 10 * self._cap_s)
        return max(pause_s, asked_s + self._jitter * self._chance() * self._first_s)

    def reset(self) -> None:
        """Begin anew: it works again."""
        self._pause_s = self._first_s
        self._failed_at = None


def passes(error: KubeError) -> bool:
    """Whether the same request may succeed later, without a change by an operator."""
    if isinstance(error, TooManyRequests):
        return not error.budget_blocks
    return isinstance(error, ServerError | TransportError) and not isinstance(error, CertificateError)


class Retry:
    """When to ask again. The first failure is a line of the log, and the first success after it."""

    def __init__(self, log: Callable[..., object], back_off: BackOff, clock: Callable[[], float]) -> None:
        self.due = 0.0
        self.problem = ""  # the last error while it lasts
        self._log = log
        self._back_off = back_off
        self._clock = clock

    def failed(self, error: MonitorError, text: str, level: str = "warning", **fields: object) -> None:
        self.due = self._clock() + self._back_off.next_s(error.retry_after_s if isinstance(error, ApiError) else None)
        if not self.problem:
            self._log(level, text, **fields, problem=str(error))
        self.problem = str(error)

    def works(self, text: str, **fields: object) -> None:
        self._back_off.reset()
        if self.problem:
            self.problem = ""
            self._log("info", text, **fields)


def turning(turn: Callable[[], float | None], stop: threading.Event, woken: threading.Event) -> None:
    """Call ``turn`` until ``stop`` is set: again after the seconds that it returns, or when ``woken`` is set."""
    while not stop.is_set():
        try:
            wait_s = turn()
        except Cancelled:
            return
        woken.wait(wait_s)
        woken.clear()


def retrying(
    call: Callable[[], T],
    total_s: float,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> T:
    """What ``call`` returns, tried again for ``total_s`` seconds after errors that pass. Then the last error.

    ``call`` must be one that may be carried out twice: an answer may have been lost.
    """
    back_off = BackOff(first_s=0.1, cap_s=5.0, clock=clock)
    deadline = clock() + total_s
    while True:
        try:
            return call()
        except KubeError as error:
            after_s = error.retry_after_s if isinstance(error, ApiError) else None
            pause_s = back_off.next_s(after_s)
            if not passes(error) or clock() + pause_s > deadline:
                raise
        wait(pause_s)
