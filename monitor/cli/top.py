"""`outrace top`: the node, kubepods and every pod, once or refreshed each second.

On a terminal each frame is written over the last one, as far as it fits. Nothing else about the terminal is changed, so
nothing has to be restored however the view ends.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import Any

import click

from monitor.cli.daemons import choose_daemon, described, no_daemon_option
from monitor.cli.options import node_options, resolve_here
from monitor.cli.output import Line, emit, output_option, plain
from monitor.cli.top_frame import Frame, Node
from monitor.cli.top_screen import once, screen
from monitor.errors import MonitorError

#: Between two frames, seconds.
_REFRESH_S = 1.0
#: Columns where there is no terminal.
_PIPE = 140
#: Values of TERM of terminals that place no text.
_DUMB = ("", "dumb", "unknown")
#: ECMA-48: to the first column of the first line; erase the line; erase below.
_HOME, _ERASE_LINE, _ERASE_BELOW = "\x1b[H", "\x1b[2K", "\x1b[J"
#: Style -> how `click.style` makes it.
_STYLES: dict[str, dict[str, Any]] = {
    "title": {"bold": True},
    "dim": {"dim": True},
    "warn": {"fg": "yellow"},
    "bad": {"fg": "red", "bold": True},
}


@click.command()
@click.option("--once", "is_once", is_flag=True, help="Print one frame and exit.")
@node_options
@no_daemon_option
@output_option
def top(is_once: bool, output: str, no_daemon: bool, **flags: Any) -> None:
    """Show the node and its pods live, the next victim first, until Ctrl-C.

    Without options: the node, pods and thresholds of the running daemon. With --no-daemon, or an option that describes
    a node: that node, with figures from the cgroup files (memory.stat may lag by up to 2 s). The frame says which.
    Without a terminal, or with -o json: a frame each second, until you end it.
    """
    found = choose_daemon(flags, no_daemon)
    node = Node(resolve_here(flags).config if found is None else found.config, found)
    is_drawn = output == "table" and not is_once and sys.stdout.isatty() and os.environ.get("TERM", "") not in _DUMB
    frame: Frame | None = None
    try:
        while True:
            frame = _next(node, frame)
            if is_drawn:
                _draw(frame)
            else:
                _print(frame, output)
            if is_once:
                return
            time.sleep(_REFRESH_S)
            if not is_drawn and output == "table":
                sys.stdout.write("\n")
            node = _followed(node)
    except KeyboardInterrupt:  # how it is meant to end
        if is_drawn:
            click.echo()
    finally:
        node.close()


def _next(node: Node, last: Frame | None) -> Frame:
    """A frame of now; where none can be made, the last one with the problem, and without the daemon that does not
    answer. Raises MonitorError without a last one.
    """
    try:
        return node.frame()
    except MonitorError as error:
        if last is None:
            raise
        return {**last, "problems": [str(error)], "daemon": None}


def _print(frame: Frame, output: str) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE
    emit(output, frame, lambda: once(frame, width))
    sys.stdout.flush()
    for text in frame["problems"] if output == "table" else ():
        click.echo(f"outrace: {plain(text)}", err=True)


def _draw(frame: Frame) -> None:
    """Show a frame in place of the last one. Bytes: `monitor.cli.main.Harmless` lets no text move the cursor."""
    lines = screen(frame, *shutil.get_terminal_size())
    # Nothing is erased behind a line: one that fills the width leaves the cursor on its last column.
    erased = [_ERASE_LINE] * (len(lines) - 1) + [_ERASE_BELOW]
    shown = "\n".join(erase + _styled(line) for erase, line in zip(erased, lines, strict=True))
    sys.stdout.buffer.write((_HOME + shown).encode())
    sys.stdout.buffer.flush()


def _styled(line: Line) -> str:
    """Without colours where the user wants none (https://no-color.org)."""
    has_style = line.style and not os.environ.get("NO_COLOR")
    return click.style(line.text, **_STYLES[line.style]) if has_style else line.text


def _followed(node: Node) -> Node:
    """With the daemon's configuration of now; the node as it is where the daemon does not answer: the frame says so."""
    if node.daemon is None:
        return node
    try:
        now = described(node.daemon.socket)
        if now.config == node.daemon.config:
            node.daemon = now  # of another process, perhaps
            return node
        made = Node(now.config, now)
    except (MonitorError, OSError, ValueError, TypeError):
        return node
    node.close()
    return made
