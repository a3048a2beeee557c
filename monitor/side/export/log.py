"""The log: one line per event on stderr, logfmt or JSON, never waited for by its writer.

Fields are the event's own data (bytes, nanoseconds), so a line can be read by a person and by a program. Under
systemd a line begins with its ``<priority>``, which journald takes off again (sd-daemon(3)).
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from monitor.side.worker import Worker

# Log lines that a pod can cause: some of each kind are written, the rest is one line with their number. One pod
# caused 26,151 lines in 12 s. They fill the disk, and they push what matters out of the journal, which drops
# all lines beyond 10,000 in 30 s (RateLimitBurst= of journald.conf).
#: Lines of one kind about one pod in so many seconds.
BURST, INTERVAL_NS = 30, 10_000_000_000
#: Pods and kinds that are kept apart; beyond that all others are one.
_MOST = 4096
_OTHERS = "(others)"
_NO_POD = "(no pod)"


class LogBudget:
    """Logs what it is called with, or counts it; `flush` logs from time to time how many were not written."""

    def __init__(self, log: Callable[..., object], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.left_out: Counter[str] = Counter()  # lines by pod, since the start
        self._log = log
        self._clock = clock
        self._since_ns = 0  # when the interval began
        self._lines: Counter[tuple[str, str, str]] = Counter()  # in it: by pod, message and level
        self._lock = threading.RLock()

    def __call__(self, level: str, message: str, /, **fields: Any) -> None:
        """One line about the ``pod`` of the fields.

        A user's units have one budget: the user makes 1,000 a second, each with a name of its own. What is in no pod
        has one too.
        """
        pod = fields.get("pod")
        of = pod.partition("/")[0] if pod is not None and pod.startswith("user-") else pod or _NO_POD
        with self._lock:
            self.flush()
            if not self._lines:
                self._since_ns = self._clock()
            key = of, message, level
            if key not in self._lines and len(self._lines) >= _MOST:
                key = _OTHERS, message, level
            self._lines[key] += 1
            if self._lines[key] <= BURST:
                self._log(level, message, **fields)
            elif pod is not None:
                if len(self.left_out) >= _MOST and pod not in self.left_out:  # of pods that were gone before
                    del self.left_out[next(iter(self.left_out))]
                self.left_out[pod] += 1

    def flush(self, *, at_once: bool = False) -> None:
        """Log what was left out in an interval that is over, or, ``at_once``, in this one."""
        with self._lock:
            took_ns = self._clock() - self._since_ns
            if not at_once and took_ns < INTERVAL_NS:
                return
            lines, self._lines = self._lines, Counter()
            for (pod, message, level), n in lines.items():
                if n > BURST:
                    about = {"pod": pod, "of": message, "lines": n - BURST}
                    self._log(level, "more of the same", **about, seconds=round(took_ns / 1e9, 1))


#: syslog priorities
PRIORITIES: Mapping[str, int] = {"debug": 7, "info": 6, "warning": 4, "error": 3}

#: How long a write waits for a non-blocking stderr (a terminal shared with another program) before it tries again, in
#: ms.
_WAIT_MS = 1000


def under_journal(fd: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether ``fd`` is the stream systemd connected to the journal: JOURNAL_STREAM names its device and inode."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))


def _quote(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
    if text and text.isprintable() and not any(c in ' "=\\' for c in text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def format_line(
    level: str, message: str, fields: Mapping[str, Any], *, style: str = "logfmt", now: float, journal: bool = False
) -> str:
    """One log line without its newline. ``now`` is Unix time in seconds; journald has its own clock and gets none.

    ``style`` is ``logfmt`` or ``json``. Unknown levels are printed as they are, with the priority of ``info``.
    """
    prefix = f"<{PRIORITIES.get(level, 6)}>" if journal else ""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
    head: dict[str, Any] = {} if journal else {"ts": stamp}
    record = {**head, "level": level, "msg": message}
    record.update((key, value) for key, value in fields.items() if key not in record)
    if style == "json":
        return prefix + json.dumps(record, separators=(",", ":"), default=str)
    return prefix + " ".join(f"{key}={_quote(value)}" for key, value in record.items())


def write_all(fd: int, data: bytes) -> None:
    """Write everything, also to a descriptor that another process made non-blocking. Raises OSError."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            waiter = select.poll()
            waiter.register(fd, select.POLLOUT)
            waiter.poll(_WAIT_MS)


class Log:
    """Writes log lines to a descriptor: directly, or through a `Worker` so that a stuck reader holds up no thread."""

    def __init__(self, style: str = "logfmt", fd: int = 2, worker: Worker | None = None) -> None:
        self.style = style
        self.fd = fd
        self.worker = worker
        self._journal = under_journal(fd)
        self.budget = LogBudget(self)  # for lines that a pod can cause any number of

    @property
    def dropped(self) -> int:
        """Lines that found no room before the worker."""
        return 0 if self.worker is None else self.worker.dropped

    def __call__(self, level: str, message: str, /, **fields: Any) -> None:
        """Log one event; fields keep their order. A line that cannot be written is counted by the worker as dropped."""
        now = time.time()

        def write() -> None:
            line = format_line(level, message, fields, style=self.style, now=now, journal=self._journal)
            write_all(self.fd, line.encode(errors="backslashreplace") + b"\n")

        if self.worker is None:
            write()
        else:
            self.worker.submit(write)

    def info(self, message: str, /, **fields: Any) -> None:
        self("info", message, **fields)

    def warning(self, message: str, /, **fields: Any) -> None:
        self("warning", message, **fields)

    def error(self, message: str, /, **fields: Any) -> None:
        self("error", message, **fields)

    def failed(self, message: str, error: OSError, /, **fields: Any) -> None:
        """An error of the operating system."""
        self.error(message, **fields, errno=error.errno, problem=error.strerror)
