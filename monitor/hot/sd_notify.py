"""What a service manager is sent (sd_notify(3)): ready, alive, stopping. Nothing where there is none.

systemd gives NOTIFY_SOCKET, and WATCHDOG_USEC with WatchdogSec=: when the hot loop has reported nothing for so
long, the service is killed and started again. The hot loop reports it itself, because it is the one that must not hang.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress


class Service:
    """The socket of the service manager. Never waits: what its queue cannot take is lost, but `alive` repeats, and says
    too that it is ready.
    """

    def __init__(self) -> None:
        # Left where they are: what this process becomes by an execv has to go on sending.
        path = os.environ.get("NOTIFY_SOCKET", "")
        usec, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
        self.is_there = bool(path)
        self._unsent = ""  # that it is ready
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        mine = path and usec.isdecimal() and pid in ("", str(os.getpid()))
        #: Half of what is allowed, as sd_watchdog_enabled(3) recommends.
        self._every_ns = int(usec) * 1000 // 2 if mine else 0
        self._next_ns: int | None = 0 if self._every_ns else None

    def send(self, text: str) -> bool:
        if self.is_there:
            with suppress(OSError):  # full, or the manager is being replaced
                self._sock.sendto(text.encode(), self._address)
                return True
        return False

    def ready(self, status: str) -> None:
        text = f"READY=1\nSTATUS={status}"
        self._unsent = "" if self.send(text) else f"{text}\n"

    def due_ns(self) -> int | None:
        """When `alive` is due (CLOCK_MONOTONIC); None without a watchdog."""
        return self._next_ns

    def alive(self, now_ns: int) -> None:
        """The loop turns. 5 us, twice in the watchdog's time."""
        if self._next_ns is not None and now_ns >= self._next_ns and self.send(f"{self._unsent}WATCHDOG=1"):
            self._next_ns, self._unsent = now_ns + self._every_ns, ""

    def stopping(self) -> None:
        """The daemon ends on request; the last message that is sent."""
        self.send("STOPPING=1")
        self.close()

    def close(self) -> None:
        self.is_there = False
        self._sock.close()
