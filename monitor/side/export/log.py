"""The log: one line per event on stderr, logfmt or JSON, never waited for by whoever writes it.

Fields are the event's own data (bytes, nanoseconds), so a line can be read by a person and by a program. Under
systemd it becomes an entry of the journal with these fields (`monitor.side.export.journald`); where that socket is not
there, a line that begins with its ``<priority>``, which journald takes off again (sd-daemon(3)).
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Mapping
from typing import Any

from monitor.side.export import journald
from monitor.side.export.journald import Journal
from monitor.side.worker import Worker

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
    """Write everything, also to a descriptor somebody made non-blocking. Raises OSError."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            waiter = select.poll()
            waiter.register(fd, select.POLLOUT)
            waiter.poll(_WAIT_MS)


class Log:
    """Writes log lines to a descriptor: directly, or through a `Worker` so that a stuck reader holds up nobody."""

    def __init__(self, style: str = "logfmt", fd: int = 2, worker: Worker | None = None) -> None:
        self.style = style
        self.fd = fd
        self.worker = worker
        self._journal = under_journal(fd)
        self._native = Journal() if self._journal and os.path.exists(journald.SOCKET) else None

    def __call__(self, level: str, message: str, /, **fields: Any) -> None:
        """Log one event; fields keep their order. A line that cannot be written is counted by the worker as dropped."""
        now = time.time()
        if self.worker is None:
            self._write(level, message, fields, now)
        else:
            self.worker.submit(lambda: self._write(level, message, fields, now))

    def _write(self, level: str, message: str, fields: Mapping[str, Any], now: float) -> None:
        if self._native is not None:
            shown = " ".join([message, *(f"{key}={_quote(value)}" for key, value in fields.items())])
            try:
                self._native.send(journald.entry(shown, PRIORITIES.get(level, 6), message, fields))
                return
            except OSError:
                pass  # journald is being restarted: its stream takes the line
        line = format_line(level, message, fields, style=self.style, now=now, journal=self._journal)
        write_all(self.fd, line.encode(errors="backslashreplace") + b"\n")

    def info(self, message: str, /, **fields: Any) -> None:
        self("info", message, **fields)

    def warning(self, message: str, /, **fields: Any) -> None:
        self("warning", message, **fields)

    def error(self, message: str, /, **fields: Any) -> None:
        self("error", message, **fields)

    def failed(self, message: str, error: OSError, /, **fields: Any) -> None:
        """An error of the operating system."""
        self.error(message, **fields, errno=error.errno, problem=error.strerror)
