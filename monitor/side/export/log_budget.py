"""Log lines that a pod can cause: some of each kind are written, the rest is one line with their number.

One pod caused 26,151 lines in 12 s. They fill the disk, and they push what matters out of the
journal, which drops everybody's lines beyond 10,000 in 30 s (RateLimitBurst= of journald.conf).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Lines of one kind about one pod in so many seconds.
BURST, INTERVAL_NS = 30, 10_000_000_000
#: Pods and kinds that are kept apart; beyond that all others are one.
_MOST = 4096
_OTHERS = "(others)"


@dataclass(slots=True)
class _Kind:
    """Lines of one kind about one pod since ``since_ns``."""

    since_ns: int
    level: str
    lines: int = 0
    left_out: int = 0


class LogBudget:
    """Logs what it is called with, or counts it; `flush` logs from time to time how many were not written."""

    def __init__(self, log: Callable[..., object], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.left_out: Counter[str] = Counter()  # lines by pod, since the start
        self._log = log
        self._clock = clock
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def __call__(self, level: str, message: str, /, **fields: Any) -> None:
        """One line about the ``pod`` of the fields, or where that is None about what ``about`` names (not written).

        A user's units have one budget: the user makes 1,000 a second, each with a name of its own.
        """
        about, pod = fields.pop("about", ""), fields.get("pod")
        of = pod.partition("/")[0] if pod is not None and pod.startswith("user-") else pod or about
        now, key = self._clock(), (of, message)
        if key not in self._kinds and len(self._kinds) >= _MOST:
            self.flush()
            key = key if len(self._kinds) < _MOST else (_OTHERS, message)
        kind = self._kinds.get(key)
        if kind is None or now - kind.since_ns >= INTERVAL_NS:
            if kind is not None:
                self._flush(key, kind, now)
            kind = self._kinds[key] = _Kind(now, level)
        kind.lines += 1
        if kind.lines <= BURST:
            self._log(level, message, **fields)
        else:
            kind.left_out += 1
            if pod is not None:
                if len(self.left_out) >= _MOST and pod not in self.left_out:  # of pods that were gone before
                    del self.left_out[next(iter(self.left_out))]
                self.left_out[pod] += 1

    def due_ns(self) -> int | None:
        """When `flush` has something to log (CLOCK_MONOTONIC); None if nothing was left out."""
        return min((kind.since_ns + INTERVAL_NS for kind in self._kinds.values() if kind.left_out), default=None)

    def flush(self, *, at_once: bool = False) -> None:
        """Log what was left out in each interval that is over, or, ``at_once``, in all of them."""
        now = self._clock()
        for key, kind in list(self._kinds.items()):
            if at_once or now - kind.since_ns >= INTERVAL_NS:
                del self._kinds[key]
                self._flush(key, kind, now)

    def forget(self, pod: str) -> None:
        """A pod is gone, and so is its count."""
        self.left_out.pop(pod, None)

    def _flush(self, key: tuple[str, str], kind: _Kind, now_ns: int) -> None:
        if kind.left_out:
            seconds = round((now_ns - kind.since_ns) / 1e9, 1)
            self._log(
                kind.level, "more of the same", pod=key[0] or None, of=key[1], lines=kind.left_out, seconds=seconds
            )
