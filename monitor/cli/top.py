"""`outrace top`: the node, kubepods and every pod, once or refreshed each second."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from monitor.cli.brake_text import brake_lines
from monitor.cli.output import emit, format_bytes, output_option, print_json, print_lines, table_lines
from monitor.cli.top_frame import Node
from monitor.pods.source import open_for
from monitor.policy.releases import ERAS
from monitor.settings.config import RunConfig

_REFRESH_S = 1.0
#: Limits in the tables only where somebody has one. `max` is what they call capacity.
_OPTIONAL = ("min", "low", "high", "soft")
_MEMORY = ("usage", "active_file", "inactive_file", "working_set")


@click.command()
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option("--node-cgroup", metavar="PATH", help="Treat this cgroup as the node; its limit is the capacity.")
@click.option("--pods", metavar="SOURCE", help="As for outrace run. [auto]")
@click.option("--kubeconfig", metavar="FILE", envvar="OUTRACE_KUBECONFIG", help="As for outrace run.")
@click.option("--node-name", metavar="NAME", envvar="OUTRACE_NODE_NAME", help="As for outrace run.")
@click.option("--eviction-hard", metavar="MAP", help="Show the distance to 'memory.available<100Mi' (the default).")
@click.option("--eviction-soft", metavar="MAP", help="Show the distance to these soft thresholds as well.")
@click.option("--policy", type=click.Choice(ERAS), help="The release whose order of eviction is shown. [kubelet-1.36]")
@click.option("--listen", metavar="HOST:PORT", help="Where a daemon answers, for exact figures. [127.0.0.1:9469]")
@click.option("--state-dir", metavar="DIR", help="That daemon's, for the pods it evicted. [/var/lib/outrace]")
@output_option
def top(once: bool, output: str, **flags: Any) -> None:
    """Show the node and its pods live, the next victim first; q or Ctrl-C ends.

    Figures come from the daemon at --listen if one answers (exact), else from the cgroup files (memory.stat may lag by
    up to 2 s); the frame says which. Limits and swap always come from the files, which are exact about them.
    """
    node = Node(_config(flags))
    source = open_for(node.config, node.hierarchy, node.mem_total, node.path)
    try:
        if once:
            frame = node.frame(source)
            emit(output, frame, lambda: lines(frame))
            if output == "table":
                for problem in frame["problems"]:
                    click.echo(f"outrace: {problem}", err=True)
            return
        with _keys() as wait:
            while True:
                _refresh(node.frame(source), output)
                if wait() == "q":
                    return
    except KeyboardInterrupt:
        return  # Ctrl-C is how it is meant to end
    finally:
        source.close()


def _config(flags: Mapping[str, str | None]) -> RunConfig:
    """The flags, checked as `outrace run` checks them."""
    from monitor.policy.errors import PolicyError
    from monitor.policy.thresholds import parse_flag_map
    from monitor.settings.read import read

    given = {name.replace("_", "-"): value for name, value in flags.items()}
    try:
        soft = parse_flag_map(given.get("eviction-soft") or "")
    except PolicyError:
        soft = {}  # build() says what is wrong with it
    if soft:
        # A soft threshold needs a grace period to be one; nothing here waits for it, so its length does not matter.
        given["eviction-soft-grace-period"] = ",".join(f"{signal}=1s" for signal in soft)
    return read(given, ask_kubelet=True).config


def lines(frame: Mapping[str, Any]) -> Iterator[str]:
    """A frame as text."""
    hierarchy = frame["hierarchy"]
    yield f"{frame['time']}  {frame['source']}  cgroup v{hierarchy['version']} at {hierarchy['root']}"
    yield ""
    domains = [(name, frame[name]) for name in ("node", "kubepods") if frame[name] is not None]
    figures = (*_MEMORY, "capacity", "available")
    limits = columns([d for _, d in domains])
    yield from table_lines(
        ["domain", *figures, *limits],
        [[name, *(format_bytes(d[f]) for f in figures), *cells(d, limits)] for name, d in domains],
    )
    if frame["thresholds"]:
        yield ""
        yield from table_lines(
            ["signal", "kind", "value", "quantity", "available", "distance", "met"],
            [
                (
                    *(t[c] for c in ("signal", "kind", "value")),
                    *(format_bytes(t[c]) for c in ("quantity", "available", "distance")),
                    "yes" if t["met"] else "no",
                )
                for t in frame["thresholds"]
            ],
        )
    if frame["braked"] is not None:
        yield ""
        yield from brake_lines(frame["braked"])
    yield ""
    yield from _pod_lines(frame["pods"])
    yield from container_lines(frame["pods"])
    if frame["unlisted"]:
        yield frame["unlisted"]
    yield ""
    for name, value in frame.items():
        if name.startswith("memory_"):
            # As the scripts print them: memory.available_in_kb 123
            yield f"{name.replace('_', '.', 1)} {value}"
    for pod in frame["evicted"]:
        yield f"evicted {pod['namespace']}/{pod['name']}: {pod['message']}"


def _pod_lines(pods: list[dict[str, Any]]) -> list[str]:
    if not pods:
        return ["no pods"]
    figures = (*_MEMORY, "request", "over_request", "capacity", "available")
    limits = columns(pods)
    return table_lines(
        ["pod", "qos", "priority", *figures, *limits],
        [
            [
                f"{p['namespace']}/{p['name']}".lstrip("/"),
                p["qos"],
                "unknown" if p["priority"] is None else p["priority"],
                *(format_bytes(p[f]) for f in figures),
                *cells(p, limits),
            ]
            for p in pods
        ],
    )


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns in which at least one row has something to show.

    A limit of no swap at all is nothing to show, unless somebody has swapped: the kubelet gives it to every container
    of a node on which pods do not swap.
    """
    found = [name for name in _OPTIONAL if any(row["limits"][name] is not None for row in rows)]
    swapping = any(row["swap"] for row in rows)
    if swapping:
        found.append("swap")
    if any(row["limits"]["swap_max"] or (swapping and row["limits"]["swap_max"] is not None) for row in rows):
        found.append("swap_max")
    return found


def cells(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """One row of these columns."""
    return [format_bytes(row["swap"] if name == "swap" else row["limits"][name]) for name in names]


def container_lines(pods: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table of the containers that have one of the optional limits of their own; nothing if none has."""
    found = [
        (f"{pod['namespace']}/{pod['name']}/{name}".lstrip("/"), container)
        for pod in pods
        for name, container in pod["containers"].items()
        if any(container["limits"][limit] is not None for limit in _OPTIONAL)
    ]
    if not found:
        return
    names = columns([container for _, container in found])
    rows = [[label, *cells(c, names), format_bytes(c["limits"]["max"])] for label, c in found]
    yield ""
    yield from table_lines(["container", *names, "max"], rows)


def _refresh(frame: Mapping[str, Any], output: str) -> None:
    """Show a frame in place of the last one on a terminal, and after it anywhere else."""
    if output == "json":
        print_json(frame)
    elif sys.stdout.isatty():
        # Home, each line and then the rest cleared: nothing flickers, and what was longer is gone.
        text = [*lines(frame), "", *frame["problems"], "q ends"]
        click.echo("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in text) + "\x1b[J", nl=False)
    else:
        print_lines([*lines(frame), ""])
    sys.stdout.flush()


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """Gives a function that waits for the next refresh and returns the key pressed meanwhile, or ""."""
    if not sys.stdin.isatty():

        def wait() -> str:
            time.sleep(_REFRESH_S)
            return ""

        yield wait
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        click.echo("\x1b[2J", nl=False)
        yield lambda: sys.stdin.read(1) if select.select([fd], [], [], _REFRESH_S)[0] else ""
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
