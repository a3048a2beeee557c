"""A terminal for a live view: whole screens of lines, keys, and the terminal as it was before, however it ends.

ncurses draws (the standard library's `curses`): it knows the terminals, sends what has changed alone, and decodes keys.
What it would do at signals is done here, where Python may run: SIGWINCH, SIGTSTP and SIGCONT, SIGTERM and SIGHUP.
Nothing can put back a terminal whose program was killed with SIGKILL: `reset` does.
"""

from __future__ import annotations

import contextlib
import curses
import os
import select
import signal
import sys
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from monitor.cli.spans import Line

#: How long an Esc may be the beginning of another key, in ms (ncurses waits a second).
_ESC_MS = 25
_ENDS = (signal.SIGTERM, signal.SIGHUP)
_NAMED = {
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_PPAGE: "pgup",
    curses.KEY_NPAGE: "pgdn",
}
#: Style -> colour of the text, and what a terminal without colours can do.
_COLOURS = {
    "good": curses.COLOR_GREEN,
    "warn": curses.COLOR_YELLOW,
    "bad": curses.COLOR_RED,
    "anon": curses.COLOR_BLUE,
    "kernel": curses.COLOR_MAGENTA,
    "other": curses.COLOR_YELLOW,
    "active": curses.COLOR_CYAN,
    "inactive": curses.COLOR_GREEN,
}
_PLAIN = {"title": curses.A_BOLD, "bad": curses.A_BOLD, "dim": curses.A_DIM}


def unusable() -> str | None:
    """Why there can be no live view on this process's standard input and output; None: there can."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return "not a terminal"
    name = os.environ.get("TERM", "")
    try:
        curses.setupterm(name or "unknown", sys.stdout.fileno())
    except curses.error:
        return f"TERM={name}: this terminal is not known here"
    return None if curses.tigetstr("cup") else f"TERM={name}: this terminal cannot place text"


class Terminal:
    """A context: inside it the terminal is ours. ``wake`` is a descriptor that `wait` returns for, too."""

    def __init__(self, wake: int) -> None:
        self._wake = wake
        self._styles: dict[str, int] = {}
        self._before: dict[int, Any] = {}
        self._screen: curses.window | None = None
        self._ended_by: int | None = None
        self._resized = self._spoilt = False
        self._pipe: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before_wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        try:
            for number in _ENDS:
                self._handle(number, self._on_end)
            self._handle(signal.SIGWINCH, self._on_resize)
            self._handle(signal.SIGTSTP, self._on_stop)
            self._handle(signal.SIGCONT, self._on_continue)
            self._screen = curses.initscr()
            curses.set_escdelay(_ESC_MS)
            curses.noecho()
            curses.cbreak()
            self._screen.keypad(True)
            self._screen.nodelay(True)
            with contextlib.suppress(curses.error):  # a terminal that cannot hide it
                curses.curs_set(0)
            self._make_styles()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        if self._ended_by is not None:
            os.kill(os.getpid(), self._ended_by)  # whoever waits for us sees what ended us

    def _close(self) -> None:
        if self._screen is not None:
            self._screen.keypad(False)
            with contextlib.suppress(curses.error):
                curses.curs_set(1)
            curses.endwin()
            self._screen = None
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}
        signal.set_wakeup_fd(self._before_wakeup)
        if self._pipe is not None:
            for descriptor in self._pipe:
                os.close(descriptor)
            self._pipe = None

    def _handle(self, number: int, handler: Any) -> None:
        before = signal.signal(number, handler)
        self._before[number] = before
        if before is signal.SIG_IGN and number != signal.SIGWINCH:
            signal.signal(number, signal.SIG_IGN)  # nohup, or a shell without job control

    def _make_styles(self) -> None:
        """Without colours where the user wants none (https://no-color.org), or the terminal has none."""
        self._styles = dict(_PLAIN)
        if os.environ.get("NO_COLOR"):
            return
        with contextlib.suppress(curses.error):
            curses.start_color()
            curses.use_default_colors()
            if curses.has_colors():
                for number, (style, colour) in enumerate(_COLOURS.items(), 1):
                    curses.init_pair(number, colour, -1)
                    self._styles[style] = self._styles.get(style, 0) | curses.color_pair(number)

    # signals: Python runs these between two of its own steps, never inside ncurses

    def _on_end(self, number: int, _frame: FrameType | None) -> None:
        self._ended_by = number

    def _on_resize(self, _number: int, _frame: FrameType | None) -> None:
        self._resized = True

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        """Ctrl-Z, or a SIGTSTP from outside: stop with the terminal as it was."""
        if self._screen is not None:
            curses.endwin()
        # By its own default action: nothing where nobody could continue us (an orphaned process group).
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._spoilt = self._resized = True

    def _on_continue(self, _number: int, _frame: FrameType | None) -> None:
        self._spoilt = self._resized = True  # the size may have changed, and who had the terminal may have written

    # for the view

    @property
    def ended(self) -> bool:
        return self._ended_by is not None

    def size(self) -> tuple[int, int]:
        """Columns and lines, of this moment."""
        assert self._screen is not None
        if self._resized:
            self._resized = False
            with contextlib.suppress(OSError, curses.error):
                found = os.get_terminal_size(sys.stdout.fileno())
                curses.resizeterm(max(1, found.lines), max(1, found.columns))
        lines, columns = self._screen.getmaxyx()
        return columns, lines

    def draw(self, lines: Sequence[Line]) -> None:
        """Show these lines, which fit `size`, in place of what is there."""
        assert self._screen is not None
        columns, rows = self.size()
        if self._spoilt:
            self._spoilt = False
            curses.reset_prog_mode()
            self._screen.clear()
        self._screen.erase()
        for y, spans in enumerate(lines[:rows]):
            left = columns - (y == rows - 1)  # writing into the last corner would scroll
            self._screen.move(y, 0)
            for text, style in spans:
                if left > 0 and text:
                    self._screen.addnstr(text, left, self._styles.get(style, 0))
                    left -= len(text)
        self._screen.refresh()

    def wait(self, timeout_s: float) -> list[str]:
        """The keys that are pressed until one is, ``wake`` can be read, a signal comes, or the time is over. Raises
        EOFError where the terminal is gone.
        """
        assert self._screen is not None
        assert self._pipe is not None
        poll = select.poll()
        for descriptor in (sys.stdin.fileno(), self._wake, self._pipe[0]):
            poll.register(descriptor, select.POLLIN)
        found = dict(poll.poll(max(0, round(timeout_s * 1000))))
        if self._pipe[0] in found:
            with contextlib.suppress(BlockingIOError):
                os.read(self._pipe[0], 4096)
        at_input = found.get(sys.stdin.fileno(), 0)
        if at_input & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
            raise EOFError
        return self._pressed() if at_input else []

    def _pressed(self) -> list[str]:
        assert self._screen is not None
        keys = []
        while (code := self._screen.getch()) != -1:
            name = _NAMED.get(code) or (chr(code) if 32 <= code < 127 else "")
            if name:
                keys.append(name)
        return keys
