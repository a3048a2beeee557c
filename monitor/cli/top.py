"""`outrace top`: the node, kubepods and every pod, once or refreshed each second.

ncurses draws the live view (`curses`): it knows the terminals, decodes keys, and has handlers of its own for SIGTSTP
and SIGWINCH. After SIGKILL of the view only `reset` restores the terminal.
"""

from __future__ import annotations

import contextlib
import curses
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from monitor.cli.daemons import choose_daemon, no_daemon_option
from monitor.cli.options import node_options, resolve_here
from monitor.cli.output import Line, emit, output_option, plain
from monitor.cli.top_frame import Frame, Sampler
from monitor.cli.top_screen import View, once, screen
from monitor.errors import MonitorError

#: Between two looks, seconds.
_REFRESH_S = 1.0
#: Columns where there is no terminal.
_PIPE = 140
#: How long an Esc may be the beginning of another key, in ms (ncurses waits a second).
_ESC_MS = 25
_NAMED = {curses.KEY_UP: "up", curses.KEY_DOWN: "down", curses.KEY_PPAGE: "pgup", curses.KEY_NPAGE: "pgdn"}
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


@click.command()
@click.option("--once", "is_once", is_flag=True, help="Print one frame and exit.")
@node_options
@no_daemon_option
@output_option
def top(is_once: bool, output: str, no_daemon: bool, **flags: Any) -> None:
    """Show the node and its pods live, the next victim first. Keys: q quit, up, down, page up, page down.

    Without options: the node, pods and thresholds of the running daemon. With --no-daemon, or an option that describes
    a node: that node, with figures from the cgroup files (memory.stat may lag by up to 2 s). The frame says which.
    Without a terminal, or with -o json: a frame each second, until you end it.
    """
    found = choose_daemon(flags, no_daemon)
    sampler = Sampler(resolve_here(flags).config if found is None else found.config, found, is_live=not is_once)
    on_terminal = output == "table" and sys.stdout.isatty() and sys.stdin.isatty()
    try:
        if on_terminal and not is_once:
            if (why := _unusable()) is None:
                curses.wrapper(_live, sampler, sampler.sample())
                return
            click.echo(f"outrace: no live view: {why}", err=True)
        _print(sampler.sample(), output)
        while not is_once:
            sys.stdout.write("" if output == "json" else "\n")
            sys.stdout.flush()
            time.sleep(_REFRESH_S)
            _print(sampler.sample(), output)
    except KeyboardInterrupt:
        return  # Ctrl-C is how it is meant to end
    finally:
        sampler.close()


def _print(frame: Frame, output: str) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE
    emit(output, frame, lambda: once(frame, width))
    for text in frame["problems"] if output == "table" else ():
        click.echo(f"outrace: {plain(text)}", err=True)


def _unusable() -> str | None:
    """Why there can be no live view on this process's standard input and output; None: there can."""
    name = os.environ.get("TERM", "")
    try:
        curses.setupterm(name or "unknown", sys.stdout.fileno())
    except curses.error:
        return f"TERM={name}: this terminal is not known here"
    return None if curses.tigetstr("cup") else f"TERM={name}: this terminal cannot place text"


def _live(window: curses.window, sampler: Sampler, frame: Frame) -> None:
    """Until `q`, Ctrl-C or the end of the terminal."""
    _handle_signals(window)
    curses.set_escdelay(_ESC_MS)
    with contextlib.suppress(curses.error):  # a terminal that cannot hide it
        curses.curs_set(0)
    view, styles = View(), _styles()
    size, due = window.getmaxyx(), time.monotonic() + _REFRESH_S
    while not view.ended:
        if time.monotonic() >= due:
            due = time.monotonic() + _REFRESH_S
            try:
                frame = sampler.sample()
            except MonitorError as error:  # the last look, and why there is no newer one
                frame = {**frame, "problems": [str(error)]}
        if size != (size := window.getmaxyx()):
            window.clearok(True)  # what a terminal makes of its lines then is its own
        _draw(window, styles, screen(frame, view, size[1], size[0]))
        try:
            for key in _pressed(window, due - time.monotonic()):
                view.press(key)
        except EOFError:
            return


def _handle_signals(window: curses.window) -> None:
    """A signal that ends the process puts the terminal back first."""

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
    signal.signal(signal.SIGCONT, goes_on)


def _styles() -> dict[str, int]:
    """Without colours where the user wants none (https://no-color.org), or the terminal has none."""
    styles = dict(_PLAIN)
    with contextlib.suppress(curses.error):
        curses.use_default_colors()
        if curses.has_colors() and not os.environ.get("NO_COLOR"):
            for number, (style, colour) in enumerate(_COLOURS.items(), 1):
                curses.init_pair(number, colour, -1)
                styles[style] = styles.get(style, 0) | curses.color_pair(number)
    return styles


def _draw(window: curses.window, styles: dict[str, int], shown: Sequence[Line]) -> None:
    """Show these lines in place of what is there."""
    window.erase()
    for y, spans in enumerate(shown):
        with contextlib.suppress(curses.error):  # the last corner, and a screen that is smaller by now
            window.move(y, 0)
            for text, style in spans:
                window.addstr(text, styles.get(style, 0))
    window.refresh()


def _pressed(window: curses.window, timeout_s: float) -> Iterator[str]:
    """The keys pressed until one is, the size changes or the time is over. Raises EOFError without a terminal."""
    window.timeout(max(0, round(timeout_s * 1000)))
    while (code := window.getch()) != -1:
        window.timeout(0)
        if name := _NAMED.get(code) or (chr(code) if 32 <= code < 127 else ""):
            yield name
    if not os.isatty(sys.stdin.fileno()):
        raise EOFError
