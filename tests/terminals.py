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

import pyte
from pyte.modes import DECAWM

from tests.puppet import TIMEOUT_S

#: All that a program may write here: text, the line's end, colours, and what `outrace top` places it by. A control
#: character of a pod's name is none of it.
_TEXT = re.compile(rb"(?:[ -~\r\n\x0e\x0f\0]|\x1b\[(?:[0-9;]*m|H|2K|J))*")
#: A sequence whose rest comes with the next read.
_BEGUN = re.compile(rb"(?:\x1b(?:\[[0-9;]*)?)?")
#: What no program writes, and a screen ignores.
_MARK = b"\x0f\x00\x0e\x00\x0f"


class Screen(pyte.Screen):
    """What a terminal would show. It refuses what is not `_TEXT`."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__(columns, rows)
        self.reset_mode(DECAWM >> 5, private=True)  # what is beyond the last column is counted, not wrapped
        self._stream, self._rest = pyte.ByteStream(self), b""
        self.colours: set[str] = set()  # foreground colours that were used
        self.overflows = 0  # characters beyond the last column

    @property
    def shown(self) -> list[str]:
        return [line.rstrip() for line in self.display]

    @property
    def text(self) -> str:
        return "\n".join(self.shown)

    def feed(self, data: bytes) -> None:
        found = _TEXT.match(self._rest + data)
        self._rest = found.string[found.end() :]
        assert _BEGUN.fullmatch(self._rest), f"unknown sequence {self._rest[:32]!r}"
        self._stream.feed(found[0].translate(None, b"\x0e\x0f\0"))

    def draw(self, data: str) -> None:
        self.overflows += max(0, self.cursor.x + len(data) - self.columns)
        super().draw(data)

    def select_graphic_rendition(self, *attrs: int, **kwargs: bool) -> None:
        super().select_graphic_rendition(*attrs, **kwargs)
        self.colours |= {self.cursor.attrs.fg} - {"default"}


class Seat:
    """A program on a terminal. Everything it writes is in ``screen``; ``raw`` has the bytes."""

    def __init__(self, pid: int, master: int, slave: int, screen: Screen) -> None:
        self.pid, self.master, self.slave, self.screen = pid, master, slave, screen
        self.raw = b""
        self.status: int | None = None
        self.before = self.modes()

    def modes(self) -> list[Any]:
        """Of the terminal, as termios has them."""
        return termios.tcgetattr(self.slave)

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """The kernel sends SIGWINCH."""
        self.screen.resize(rows, columns)
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
            if not self.running():
                self.flush()  # what it wrote last may come in several reads
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
    made = Seat(0, master, slave, Screen(columns, rows))
    pid = made.pid = os.fork()
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
