"""A program on a terminal of a given size: a pty, what is written to it as a screen, keys, signals, its end."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.puppet import TIMEOUT_S

_SEQUENCE = re.compile(
    rb"\x1b(?:\[([?>]?)([0-9;]*)([@-~])|([()])(.)|([=>78cDEHM])|\]104\x07)"
)  # the last: own colours back
_IGNORED = b"\x07\x0e\x0f\x00"
#: What no program writes, and a screen ignores.
_MARK = b"\x0f\x00\x0e\x00\x0f"


class Screen:
    """What a terminal would show. It understands what ncurses sends to `vt100` and `xterm-256color`, and refuses all
    else: a control character of somebody's name fails the test.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.resize(columns, rows)
        self._rest = b""
        self.colours: set[int] = set()  # foreground colours that were used
        self.alternate = self.cursor_hidden = False
        self.overflows = 0  # characters beyond the last column

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.cells = [[" "] * columns for _ in range(rows)]
        self.x = self.y = 0
        self._last = " "
        self._region = 0, rows - 1  # the rows that scroll, first and last

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.cells]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def feed(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        while at < len(data):
            byte = data[at]
            if byte == 0x1B:
                found = _SEQUENCE.match(data, at)
                if found is None:
                    if len(data) - at < 32:
                        break  # the rest comes with the next read
                    raise AssertionError(f"unknown sequence {data[at : at + 32]!r}")
                self._escape(found)
                at = found.end()
                continue
            self._byte(byte)
            at += 1
        self._rest = data[at:]

    def _byte(self, byte: int) -> None:
        if 0x20 <= byte < 0x7F:
            self._put(chr(byte))
        elif byte == 0x0D:
            self.x = 0
        elif byte == 0x0A:
            top, bottom = self._region
            if self.y == bottom:
                assert not self.alternate or (top, bottom) != (0, self.rows - 1), "the live view would scroll"
                self.cells[top : bottom + 1] = [*self.cells[top + 1 : bottom + 1], [" "] * self.columns]
            self.y = min(self.rows - 1, self.y + (self.y != bottom))
        elif byte == 0x08:
            self.x = max(0, min(self.x, self.columns - 1) - 1)
        else:
            assert byte in _IGNORED, f"byte {byte:#x} reached the terminal"

    def _put(self, char: str) -> None:
        if self.x >= self.columns:
            self.overflows += 1
            return
        self.cells[self.y][self.x] = self._last = char
        self.x += 1

    def _escape(self, found: re.Match[bytes]) -> None:
        private, numbers, end = found[1], found[2], found[3]
        if end is None:
            if found[6] == b"M":  # up, scrolling down at the top of the region
                top, bottom = self._region
                if self.y == top:
                    self.cells[top : bottom + 1] = [[" "] * self.columns, *self.cells[top:bottom]]
                self.y = max(0, self.y - (self.y != top))
            return  # character sets, keypad modes
        values = [int(n) if n else 0 for n in (numbers or b"").split(b";")]
        n = max(1, values[0])
        kind = end.decode()
        row = self.cells[self.y]
        if private:
            if kind in "hl" and private == b"?":
                self.alternate = (kind == "h") if 1049 in values else self.alternate
                self.cursor_hidden = (kind == "l") if 25 in values else self.cursor_hidden
        elif kind == "H":
            self.y = min(self.rows, n) - 1
            self.x = min(self.columns, max(1, values[1] if len(values) > 1 else 1)) - 1
        elif kind in "ABCDGd":
            self._move(kind, n)
        elif kind == "J":
            for y in range(0 if values[0] == 2 else self.y, self.rows):
                start = self.x if y == self.y and values[0] == 0 else 0
                self.cells[y][start:] = [" "] * (self.columns - start)
        elif kind == "K":
            spaces = range(self.x + 1) if values[0] == 1 else range(self.x, self.columns)
            for i in spaces:
                row[min(i, self.columns - 1)] = " "
        elif kind == "X":
            for i in range(self.x, min(self.columns, self.x + n)):
                row[i] = " "
        elif kind == "b":
            for _ in range(n):
                self._put(self._last)
        elif kind == "@":
            row[self.x :] = ([" "] * n + row[self.x :])[: self.columns - self.x]
        elif kind == "P":
            row[self.x :] = (row[self.x + n :] + [" "] * n)[: self.columns - self.x]
        elif kind in "ST":  # the region up or down, as curses scrolls several lines
            top, bottom = self._region
            n = min(n, bottom + 1 - top)
            kept, blank = self.cells[top : bottom + 1], [[" "] * self.columns for _ in range(n)]
            self.cells[top : bottom + 1] = [*kept[n:], *blank] if kind == "S" else [*blank, *kept[: len(kept) - n]]
        elif kind == "r":
            bottom = values[1] if len(values) > 1 and values[1] else self.rows
            self._region, self.x, self.y = (n - 1, min(self.rows, bottom) - 1), 0, 0
        elif kind == "m":
            self.colours |= {value for value in values if 30 <= value <= 37}
        else:
            assert kind in "hlt", f"unknown sequence {found[0]!r}"

    def _move(self, kind: str, n: int) -> None:
        if kind == "A":
            self.y = max(0, self.y - n)
        elif kind == "B":
            self.y = min(self.rows - 1, self.y + n)
        elif kind == "C":
            self.x = min(self.columns - 1, self.x + n)
        elif kind == "D":
            self.x = max(0, min(self.x, self.columns - 1) - n)
        elif kind == "G":
            self.x = min(self.columns, n) - 1
        else:
            self.y = min(self.rows, n) - 1


class Seat:
    """A program on a terminal. Everything it writes is in ``screen``; ``raw`` has the bytes."""

    def __init__(self, pid: int, master: int, slave: int, screen: Screen) -> None:
        self.pid, self.master, self.slave, self.screen = pid, master, slave, screen
        self.raw = b""
        self.status: int | None = None
        self.before: list[Any] = []  # the modes at its start

    def modes(self) -> list[Any]:
        """Of the terminal, as termios has them."""
        return termios.tcgetattr(self.slave)

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """The kernel sends SIGWINCH."""
        self.screen.resize(columns, rows)
        _set_size(self.master, columns, rows)

    def read(self, timeout_s: float) -> bool:
        """Take what it writes; False where nothing came."""
        if not select.select([self.master], [], [], timeout_s)[0]:
            return False
        data = os.read(self.master, 65536)
        self.raw += data
        self.screen.feed(data)
        return bool(data)

    def until(self, holds: Callable[[Screen], object]) -> Screen:
        """Read until the screen is like that."""
        deadline = time.monotonic() + TIMEOUT_S
        while not holds(self.screen):
            assert time.monotonic() < deadline, f"the screen is\n{self.screen.text}"
            self.read(0.2)
            assert self.running() or holds(self.screen), f"it ended; the screen is\n{self.screen.text}"
        while self.read(0.02):
            pass  # the rest of this drawing
        return self.screen

    def shows(self, *texts: str) -> Screen:
        return self.until(lambda screen: all(text in screen.text for text in texts))

    def running(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is None

    def end(self) -> int:
        """Wait for its end; its exit code, negative for a signal."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.running():
            assert time.monotonic() < deadline, "it does not end"
            self.read(0.05)
        self.flush()
        assert self.status is not None
        return self.status

    def flush(self) -> None:
        """Read to the end of what was written until now: the kernel may hand it over late."""
        os.write(self.slave, _MARK)
        deadline = time.monotonic() + TIMEOUT_S
        while not self.raw.endswith(_MARK):
            assert time.monotonic() < deadline, "the terminal hands nothing over"
            self.read(0.2)
        self.raw = self.raw.removesuffix(_MARK)


@contextmanager
def seat(
    *command: str, columns: int = 80, rows: int = 24, cwd: Path | None = None, **variables: str | None
) -> Iterator[Seat]:
    """Run a command on a terminal of this size, with these environment variables (None: without). The test keeps the
    other side open, so that the terminal and its modes outlive the program.
    """
    master, slave = pty.openpty()
    _set_size(master, columns, rows)
    environment: Mapping[str, str] = _environment(variables)
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            for descriptor in range(3):
                os.dup2(slave, descriptor)
            for number in (signal.SIGINT, signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.closerange(3, 256)
            if cwd is not None:
                os.chdir(cwd)
            os.execve(command[0], list(command), environment)
        finally:
            os._exit(127)
    made = Seat(pid, master, slave, Screen(columns, rows))
    try:
        yield made
    finally:
        if made.running():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(master)
        os.close(slave)


def _environment(variables: Mapping[str, str | None]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    wanted: dict[str, str | None] = {**kept, "TERM": "xterm-256color", **variables}
    return {name: value for name, value in wanted.items() if value is not None}


def _set_size(descriptor: int, columns: int, rows: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
