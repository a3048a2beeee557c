"""`outrace top` on a terminal: a look a second, whole screens of lines, keys, and the terminal as it was before.

ncurses draws (the standard library's `curses`): it knows the terminals, sends what has changed alone, decodes keys, and
has handlers of its own for SIGTSTP and SIGWINCH. Nothing can put back a terminal whose program was killed with SIGKILL:
`reset` does.
"""

from __future__ import annotations

import contextlib
import curses
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence

from monitor.cli.output import Line
from monitor.cli.top_frame import Frame, Sampler
from monitor.cli.top_screen import View, problem, screen
from monitor.errors import MonitorError

#: Between two looks.
REFRESH_S = 1.0
#: How long an Esc may be the beginning of another key, in ms (ncurses waits a second).
_ESC_MS = 25
_NAMED = {
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_PPAGE: "pgup",
    curses.KEY_NPAGE: "pgdn",
}
#: Style -> colour of the text, and what a terminal without colours can do.
_COLOURS = {
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
    name = os.environ.get("TERM", "")
    try:
        curses.setupterm(name or "unknown", sys.stdout.fileno())
    except curses.error:
        return f"TERM={name}: this terminal is not known here"
    return None if curses.tigetstr("cup") else f"TERM={name}: this terminal cannot place text"


def live(sampler: Sampler) -> None:
    """Until `q`, Ctrl-C or the end of the terminal. Raises what a look raised."""
    view, frame, due = View(), None, 0.0
    with _opened() as window:
        styles = _styles()
        size = window.getmaxyx()
        _draw(window, styles, problem("looking...", size[1], size[0]))
        while not view.ended:
            if time.monotonic() >= due:
                due = time.monotonic() + REFRESH_S
                failure = ""
                try:
                    frame = sampler.sample()
                except MonitorError as error:
                    failure = str(error)
            if size != (size := window.getmaxyx()):
                window.clearok(True)  # what a terminal makes of its lines then is its own
            _draw(window, styles, _shown(frame, failure, view, size[1], size[0]))
            try:
                for key in _pressed(window, due - time.monotonic()):
                    view.press(key)
            except EOFError:
                return


def _shown(frame: Frame | None, failure: str, view: View, columns: int, lines: int) -> Sequence[Line]:
    """The last look, and why there is no newer one."""
    if frame is None:
        return problem(failure, columns, lines)
    if failure:
        frame = {**frame, "problems": [failure, *frame["problems"]]}
    return screen(frame, view, columns, lines)


@contextlib.contextmanager
def _opened() -> Iterator[curses.window]:
    """The terminal is ours, however it ends: a signal that ends the process puts it back first."""

    def ends(number: int, _frame: object) -> None:
        curses.endwin()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def goes_on(_number: int, _frame: object) -> None:
        """After SIGSTOP too, by which ncurses could do nothing: the shell may have written, and set other modes."""
        curses.reset_prog_mode()
        window.clearok(True)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, ends)
    window = curses.initscr()
    signal.signal(signal.SIGCONT, goes_on)
    try:
        curses.set_escdelay(_ESC_MS)
        curses.noecho()
        curses.cbreak()
        window.keypad(True)
        with contextlib.suppress(curses.error):  # a terminal that cannot hide it
            curses.curs_set(0)
        yield window
    finally:
        curses.endwin()


def _styles() -> dict[str, int]:
    """Without colours where the user wants none (https://no-color.org), or the terminal has none."""
    styles = dict(_PLAIN)
    if os.environ.get("NO_COLOR"):
        return styles
    with contextlib.suppress(curses.error):
        curses.start_color()
        curses.use_default_colors()
        if curses.has_colors():
            for number, (style, colour) in enumerate(_COLOURS.items(), 1):
                curses.init_pair(number, colour, -1)
                styles[style] = styles.get(style, 0) | curses.color_pair(number)
    return styles


def _draw(window: curses.window, styles: dict[str, int], shown: Sequence[Line]) -> None:
    """Show these lines in place of what is there."""
    lines, columns = window.getmaxyx()
    window.erase()
    for y, spans in enumerate(shown[:lines]):
        left = columns - (y == lines - 1)  # writing into the last corner would scroll
        window.move(y, 0)
        for text, style in spans:
            if left > 0 and text:
                window.addnstr(text, left, styles.get(style, 0))
                left -= len(text)
    window.refresh()


def _pressed(window: curses.window, timeout_s: float) -> Iterator[str]:
    """The keys that are pressed until one is, the size changes or the time is over. Raises EOFError where the terminal
    is gone.
    """
    window.timeout(max(0, round(timeout_s * 1000)))
    while (code := window.getch()) != -1:
        window.timeout(0)
        if name := _NAMED.get(code) or (chr(code) if 32 <= code < 127 else ""):
            yield name
    if not os.isatty(sys.stdin.fileno()):
        raise EOFError
