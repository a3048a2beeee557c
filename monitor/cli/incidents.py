"""`outrace incidents`: the stored races, with their verdicts and timelines."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from typing import Any

import click

from monitor.cli.finite import Finite
from monitor.cli.incident_store import (
    complain,
    evidence_of,
    incident_reader,
    moment_option,
    none_yet,
    reading,
    state_dir_option,
)
from monitor.cli.output import emit, output_option, print_json
from monitor.errors import ConfigError
from monitor.race.incident import FLAGS, VERDICTS

#: Columns where stdout is no terminal.
_WIDTH = 120


@click.group()
def incidents() -> None:
    """Show the stored incidents: who won each race, by how much, and why."""


@incidents.command("list")
@moment_option("--since", "Begun since then: 1h, 7d, 2026-01-31T12:00.")
@moment_option("--until", "Begun until then.")
@click.option(
    "--verdict",
    metavar="NAME",
    type=click.Choice(VERDICTS),
    help=f"Only incidents with this verdict: {', '.join(VERDICTS)}.",
)
@click.option("--flag", metavar="NAME", type=click.Choice(FLAGS), help=f"Only incidents flagged {', '.join(FLAGS)}.")
@click.option("--pod", metavar="NS/POD", help="Only incidents in which this pod was evicted, killed or out of memory.")
@click.option("--limit", metavar="N", type=click.IntRange(1), help="Only the newest N.")
@state_dir_option
@output_option
def list_(state_dir: str, output: str, **filters: Any) -> None:
    """List incidents, newest first."""
    reader = incident_reader(state_dir)
    with reading(state_dir):
        found = reader.list(**filters)
    for each in found:
        each.pop("memory", None)  # as long as all else together, and of use to `show` only
    if output == "table" and not found and not reader.unreadable:
        given = any(value is not None for value in filters.values())
        click.echo(f"no such incidents stored in {state_dir}" if given else none_yet(state_dir), err=True)
    else:
        from monitor.cli.incident_text import list_lines

        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        emit(output, {"incidents": found}, lambda: list_lines(found, width))
    complain(reader)


@incidents.command()
@click.argument("incident", metavar="ID|latest")
@click.option("--html", is_flag=True, help="Print it as one HTML page with charts, which needs nothing else.")
@state_dir_option
@output_option
def show(incident: str, state_dir: str, output: str, html: bool) -> None:
    """Show one incident: the verdict, the timeline, the advice. The first characters of its id are enough."""
    if html and output == "json":
        raise ConfigError("--html and -o json exclude each other", "leave out one of them")
    with reading(state_dir):
        found = incident_reader(state_dir).get(incident)
    if output == "json":
        print_json(found)
        return
    if html:
        from monitor.cli.incident_page import page

        click.echo(page(found).encode(), nl=False)  # UTF-8, as it says itself, whatever the locale is
        return
    from monitor.cli.incident_text import show_lines

    width = min(shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH, 160)
    # Without colours where the user wants none (https://no-color.org); click takes them off itself in a pipe.
    colour = False if os.environ.get("NO_COLOR") else None
    for line in show_lines(found, width):
        click.echo(line, color=colour)


@incidents.command()
@click.argument("file", metavar="FILE.jsonl")
@state_dir_option
def export(file: str, state_dir: str) -> None:
    """Write all incidents with their steps to FILE (`-` is stdout), one JSON object per line, oldest first."""
    count = 0
    reader = incident_reader(state_dir)
    everything = reader.all()
    with reading(state_dir):
        first = next(everything, None)  # a store that cannot be read must not empty the file
    with reading(state_dir), click.open_file(file, "w", encoding="utf-8") as out:
        if first is not None:
            for each in itertools.chain([first], everything):
                out.write(json.dumps(each, ensure_ascii=True) + "\n")
                count += 1
    click.echo(f"{count} incidents" if count else none_yet(state_dir), err=True)
    complain(reader)


@incidents.command()
@moment_option("--since", "Only from those begun since then: 7d, 2026-01-31T12:00.")
@click.option("--quantile", metavar="PART", default=0.99, show_default=True, help="The part of the races to be won.",
              type=Finite(0.0, 1.0, min_open=True))  # fmt: skip
@state_dir_option
@output_option
def advise(state_dir: str, output: str, since: float | None, quantile: float) -> None:
    """Work out the thresholds and reservations with which eviction would have won the stored races.

    For a kubelet that polls, for one notified by the kernel (cgroup v1), and for outrace in each mode, from how fast
    memory was taken each time; and how fast memory may grow with the threshold in force. Below some dozen races it
    says what was, not what will be.
    """
    from monitor.race.threshold_advice import advise as advised
    from monitor.race.threshold_advice import reservation

    reader = incident_reader(state_dir)
    with reading(state_dir):
        found = reader.list(since=since)[::-1]
    evidence = evidence_of(found, reader)
    answers, reserved = advised(evidence, quantile), reservation(evidence)
    if answers or output == "json":
        from monitor.cli.advice_text import advice_lines

        advice = {
            "incidents": len(found),
            "advice": [each.to_json() for each in answers],
            "reservation": None if reserved is None else reserved.to_json(),
        }
        emit(output, advice, lambda: advice_lines(answers, reserved))
    else:
        where = f"the {len(found)} incidents stored in {state_dir}"
        click.echo(f"no race for memory among {where}: nothing to work it out from", err=True)
    complain(reader)
