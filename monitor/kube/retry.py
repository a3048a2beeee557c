"""Trying a request again while the server is away, throttles or fails: for those that must get through in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import random
from typing import Any, TypeVar

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


class BackOff:
    """How long to wait before the next try, as client-go's reflector does: 0.8 s, doubling to 30 s. Up to as much again
    is added by chance, so that 5,000 nodes do not come back in step. After a success the caller calls `reset`.
    """

    def __init__(self, first_s: float = 0.8, cap_s: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._first_s = self._pause_s = first_s
        self._cap_s = cap_s

    def next_s(self, error: Exception | None = None) -> float:
        """Seconds to wait now; at least what the server asked for, of which no more than ten times the cap."""
        pause_s, self._pause_s = self._pause_s, min(self._cap_s, 2 * self._pause_s)
        pause_s = min(self._cap_s, pause_s * (1 + random()))
        asked_s = error.retry_after_s if isinstance(error, ApiError) else None
        if asked_s is None:
            return pause_s
        return max(pause_s, min(asked_s, 10 * self._cap_s) + random() * self._first_s)

    def reset(self) -> None:
        self._pause_s = self._first_s


def passes(error: KubeError) -> bool:
    """Whether the same request may succeed later, without a change by an operator."""
    if isinstance(error, TooManyRequests):
        return not error.budget_blocks
    return isinstance(error, ServerError | TransportError) and not isinstance(error, CertificateError)


class Retry(BackOff):
    """When to ask again. The first failure is a line of the log, and the first success after it."""

    def __init__(self, log: Callable[..., object], **pauses: Any) -> None:
        super().__init__(**pauses)
        self.due = 0.0
        self.problem = ""  # the last error while it lasts
        self._log = log

    def failed(self, error: Exception, text: str, level: str = "warning", **fields: object) -> None:
        self.due = self.clock() + self.next_s(error)
        if not self.problem:
            self._log(level, text, **fields, problem=str(error))
        self.problem = str(error)

    def works(self, text: str, **fields: object) -> None:
        self.reset()
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
            pause_s = back_off.next_s(error)
            if not passes(error) or clock() + pause_s > deadline:
                raise
        wait(pause_s)
