"""`outrace top`: the node, kubepods and every pod, once or refreshed each second."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

import click

from monitor.cli.daemons import choose_daemon, no_daemon_option
from monitor.cli.options import node_options, resolve_here
from monitor.cli.output import emit, output_option, plain
from monitor.cli.top_frame import Sampler
from monitor.cli.top_screen import once

_REFRESH_S = 1.0
#: Columns where there is no terminal.
_PIPE = 140


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
            from monitor.cli.top_live import live, unusable

            if (why := unusable()) is None:
                live(sampler)
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


def _print(frame: Mapping[str, Any], output: str) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE
    emit(output, frame, lambda: once(frame, width))
    for problem in frame["problems"] if output == "table" else ():
        click.echo(f"outrace: {plain(problem)}", err=True)
