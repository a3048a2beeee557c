"""`outrace incidents`: the stored races, with their verdicts and timelines."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from monitor.cli.output import emit, output_option, print_json
from monitor.errors import MonitorError
from monitor.policy.errors import PolicyError
from monitor.policy.gosyntax import parse_duration
from monitor.race.incident import FLAGS, VERDICTS
from monitor.side.incidents.reader import FILE_NAME, IncidentReader, damaged_files

F = TypeVar("F", bound=Callable[..., Any])

_STATE_DIR = "/var/lib/outrace"
#: Columns where stdout is no terminal.
_WIDTH = 120
_DAYS = re.compile(r"(\d{1,5})d(.*)")


def moment(_ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """Unix seconds of how long ago (`90s`, `1h30m`, `2d`), or of a time in ISO 8601 (without an offset: local time)."""
    if text is None:
        return None
    days, rest = (int(found[1]), found[2]) if (found := _DAYS.fullmatch(text)) else (0, text)
    try:
        return time.time() - days * 86400 - (parse_duration(rest) / 1e9 if rest else 0)
    except PolicyError:
        pass  # perhaps a point in time
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"{text!r} is neither a duration (30m, 12h, 7d) nor a time (2026-01-31T12:00)", param=param
        ) from None


def _moment_option(name: str, text: str) -> Callable[[F], F]:
    return click.option(name, metavar="AGO|TIME", callback=moment, help=text)


_state_dir_option = click.option(
    "--state-dir", metavar="DIR", default=_STATE_DIR, help=f"The monitor's state directory. [{_STATE_DIR}]"
)


@click.group()
def incidents() -> None:
    """Show the stored incidents: who won each race, by how much, and why."""


@incidents.command("list")
@_moment_option("--since", "Begun since then: 1h, 7d, 2026-01-31T12:00.")
@_moment_option("--until", "Begun until then.")
@click.option(
    "--verdict",
    metavar="NAME",
    type=click.Choice(VERDICTS),
    help=f"Only incidents with this verdict: {', '.join(VERDICTS)}.",
)
@click.option("--flag", metavar="NAME", type=click.Choice(FLAGS), help=f"Only incidents flagged {', '.join(FLAGS)}.")
@click.option("--pod", metavar="NS/POD", help="Only incidents in which this pod was evicted, killed or out of memory.")
@click.option("--limit", metavar="N", type=click.IntRange(1), help="Only the newest N.")
@_state_dir_option
@output_option
def list_(state_dir: str, output: str, **filters: Any) -> None:
    """List incidents, newest first."""
    reader = _reader(state_dir)
    with _errors(state_dir):
        found = reader.list(**filters)
    if output == "table" and not found and not reader.unreadable:
        given = any(value is not None for value in filters.values())
        click.echo(f"no such incidents stored in {state_dir}" if given else _none_yet(state_dir), err=True)
    else:
        from monitor.cli.incident_text import list_lines

        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        emit(output, {"incidents": found}, lambda: list_lines(found, width))
    _complain(reader)


@incidents.command()
@click.argument("incident", metavar="ID|latest")
@_state_dir_option
@output_option
def show(incident: str, state_dir: str, output: str) -> None:
    """Show one incident: the verdict, the timeline, the advice. The first characters of its id are enough."""
    with _errors(state_dir):
        found = _reader(state_dir).get(incident)
    if output == "json":
        print_json(found)
        return
    from monitor.cli.incident_text import show_lines

    width = min(shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH, 160)
    # Without colours where the user wants none (https://no-color.org); click takes them off itself in a pipe.
    colour = False if os.environ.get("NO_COLOR") else None
    for line in show_lines(found, width):
        click.echo(line, color=colour)


@incidents.command()
@click.argument("file", metavar="FILE.jsonl")
@_state_dir_option
def export(file: str, state_dir: str) -> None:
    """Write all incidents with their steps to FILE (`-` is stdout), one JSON object per line, oldest first."""
    count = 0
    reader = _reader(state_dir)
    everything = reader.all()
    with _errors(state_dir):
        first = next(everything, None)  # a store that cannot be read must not empty the file
    with _errors(state_dir), click.open_file(file, "w", encoding="utf-8") as out:
        if first is not None:
            for each in itertools.chain([first], everything):
                out.write(json.dumps(each, ensure_ascii=True) + "\n")
                count += 1
    click.echo(f"{count} incidents" if count else _none_yet(state_dir), err=True)
    _complain(reader)


@incidents.command()
@_moment_option("--since", "Only from those begun since then: 7d, 2026-01-31T12:00.")
@click.option("--quantile", metavar="PART", default=0.99, show_default=True, help="The part of the races to be won.",
              type=click.FloatRange(0.0, 1.0, min_open=True))  # fmt: skip
@_state_dir_option
@output_option
def advise(state_dir: str, output: str, since: float | None, quantile: float) -> None:
    """Work out the smallest hard threshold that would have won the stored races.

    For outrace, for a kubelet notified by the kernel (cgroup v1) and for a kubelet that polls, from how fast memory
    was taken each time. Below some dozen races it says what was, not what will be.
    """
    from monitor.race.burst import Burst
    from monitor.race.burst import advise as advised
    from monitor.race.codec import RecordError

    reader = _reader(state_dir)
    with _errors(state_dir):
        found = reader.list(since=since)
    bursts = []
    for incident in reversed(found):
        if incident.get("burst") is not None:
            try:
                bursts.append(Burst.from_json(incident["burst"]))
            except RecordError:
                reader.unreadable += 1
    answers = advised(bursts, quantile)
    if answers or output == "json":
        from monitor.cli.incident_text import advice_lines

        advice = {"incidents": len(found), "advice": [each.to_json() for each in answers]}
        emit(output, advice, lambda: advice_lines(answers))
    else:
        click.echo(f"no race for memory among the {len(found)} incidents stored in {state_dir}", err=True)
    _complain(reader)


def _reader(state_dir: str) -> IncidentReader:
    return IncidentReader(Path(state_dir) / FILE_NAME)


def _complain(reader: IncidentReader) -> None:
    """After what could be read: what could not."""
    for renamed in damaged_files(reader.path):
        click.echo(f"a damaged file was renamed to {renamed}; its incidents are not shown", err=True)
    if reader.unreadable:
        raise MonitorError(f"{reader.unreadable} incidents in {reader.path} are damaged and not shown")


def _none_yet(state_dir: str) -> str:
    missing = "" if Path(state_dir).is_dir() else " (there is no such directory)"
    return f"no incidents stored in {state_dir} yet{missing}"


@contextmanager
def _errors(state_dir: str) -> Iterator[None]:
    """Files that cannot be read or written, in one line."""
    try:
        yield
    except BrokenPipeError:
        raise  # `head` has seen enough
    except PermissionError as error:
        raise MonitorError(f"{error.filename or state_dir}: {error.strerror}", "use sudo") from None
    except OSError as error:
        raise MonitorError(f"{error.filename or state_dir}: {error.strerror or error}") from None
