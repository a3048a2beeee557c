"""`outrace incidents`: the stored races, with their verdicts and timelines."""

from __future__ import annotations

import datetime
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from monitor.cli.daemons import choose_daemon, state_dir_option
from monitor.cli.main import Group
from monitor.cli.output import emit, output_option, seconds_of
from monitor.errors import ConfigError, MonitorError
from monitor.policy.errors import PolicyError
from monitor.race.incident import FLAGS, VERDICTS
from monitor.settings.config import STATE_DIR
from monitor.side.incidents import FOLDER, IncidentReader, UnknownIncident

#: Columns where stdout is no terminal.
_WIDTH = 120


class Moment(click.ParamType[float]):
    """Unix seconds of how long ago (`90s`, `1h30m`, `2d`), or of a time in ISO 8601 (without an offset: local time)."""

    name = "moment"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        with suppress(PolicyError):
            return time.time() - seconds_of(value)
        with suppress(ValueError, OverflowError, OSError):
            return datetime.datetime.fromisoformat(value).timestamp()
        problem = f"{value!r} is neither a duration (30m, 12h, 7d) nor a time (2026-01-31T12:00)"
        raise click.BadParameter(problem, ctx, param)


def complain(reader: IncidentReader) -> None:
    """After what could be read: what could not."""
    if reader.unreadable:
        raise MonitorError(f"{reader.unreadable} incidents in {reader.path} are damaged and not shown")


@contextmanager
def reading(given: str | None, no_daemon: bool) -> Iterator[tuple[IncidentReader, str]]:
    """The incidents of the daemon's state directory, else of the default one. One line for unreadable files."""
    daemon = choose_daemon(("state_dir",), no_daemon, f"incidents stored in {STATE_DIR}")
    state_dir = daemon.config.state_dir if daemon is not None else given or STATE_DIR
    reader = IncidentReader(Path(state_dir) / FOLDER)
    try:
        yield reader, state_dir
    except UnknownIncident:
        complain(reader)
        raise
    except OSError as error:
        remedy = "use sudo" if isinstance(error, PermissionError) else ""
        raise MonitorError(f"{error.filename or state_dir}: {error.strerror or error}", remedy) from None


@click.group(cls=Group)
def incidents() -> None:
    """Show the stored incidents: what won each race, by how much, and why."""


@incidents.command("list")
@click.option(
    "--since", metavar="AGO|TIME", type=Moment(), help="Only incidents that began since: 1h, 7d, 2026-01-31T12:00."
)
@click.option("--until", metavar="AGO|TIME", type=Moment(), help="Only incidents that began until then.")
@click.option("--verdict", metavar="NAME", type=click.Choice(VERDICTS),
              help=f"Only incidents with this verdict: {', '.join(VERDICTS)}.")  # fmt: skip
@click.option("--flag", metavar="NAME", type=click.Choice(FLAGS), help=f"Only incidents flagged {', '.join(FLAGS)}.")
@click.option("--pod", metavar="NS/POD", help="Only incidents in which this pod was evicted, killed or out of memory.")
@click.option("--limit", metavar="N", type=click.IntRange(1), help="Only the newest N.")
@state_dir_option
@output_option
def list_(state_dir: str | None, no_daemon: bool, output: str, **filters: Any) -> None:
    """List incidents, newest first."""
    with reading(state_dir, no_daemon) as (reader, directory):
        found = reader.list(**filters)
    for each in found:
        each.pop("memory", None)  # as long as all else together, and of use to `show` only
    if output == "table" and not found and not reader.unreadable:
        missing = "" if Path(directory).is_dir() else " (there is no such directory)"
        such = " such" if any(value is not None for value in filters.values()) else ""
        click.echo(f"no{such} incidents stored in {directory}{missing}", err=True)
    else:
        from monitor.cli.incident_text import list_lines

        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        emit(output, {"incidents": found}, lambda: list_lines(found, width))
    complain(reader)


@incidents.command()
@click.argument("incident", metavar="ID|latest")
@click.option("--html", is_flag=True, help="Print one self-contained HTML page with charts.")
@state_dir_option
@output_option
def show(incident: str, state_dir: str | None, no_daemon: bool, output: str, html: bool) -> None:
    """Show one incident: the verdict, the timeline, the advice. The first characters of its id are enough."""
    with reading(state_dir, no_daemon) as (reader, _):
        if html and output == "json":
            raise ConfigError("--html and -o json exclude each other", "leave out one of them")
        found = reader.get(incident)
    if html:
        from monitor.cli.incident_page import page

        click.echo(page(found).encode(), nl=False)  # UTF-8, as it says itself, whatever the locale is
        return
    from monitor.cli.incident_text import show_lines

    width = min(shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH, 160)
    emit(output, found, lambda: show_lines(found, width))
