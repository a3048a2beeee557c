"""Trying a request again while the server is away, throttles or fails: for those that must get through in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from monitor.errors import MonitorError
from monitor.kube.backoff import BackOff
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
