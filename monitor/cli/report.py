"""`outrace report`: the races of the last days, by verdict, with margins, the pods behind them and advice."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from typing import Any

import click

from monitor.cli.incident_steps import clean
from monitor.cli.incident_store import (
    complain,
    incident_reader,
    moment_option,
    none_yet,
    reading,
    state_dir_option,
)
from monitor.cli.output import emit, format_bytes, output_option, table_lines
from monitor.errors import ConfigError
from monitor.race.report import OfPod, OfVerdict, Report
from monitor.race.report import report as summed_up

#: Pods and pieces of advice in the text; `-o json` has all.
_PODS, _ADVICE = 10, 5


@click.command()
@moment_option("--since", "Incidents begun since then: 12h, 7d, 2026-01-31T12:00.", default="7d")
@moment_option("--until", "Begun until then.")
@state_dir_option
@output_option
def report(state_dir: str, output: str, since: float, until: float | None) -> None:
    """Sum up the stored races: by verdict, by how much they were won or lost, which pods are behind them, what to do.

    Of the incidents in the database (`outrace incidents list`). `outrace incidents advise` works out thresholds.
    """
    if until is not None and until < since:
        raise ConfigError("--until: nothing lies between it and --since", "give an earlier --since")
    reader = incident_reader(state_dir)
    with reading(state_dir):
        found = reader.list(since=since, until=until)
    made = summed_up(found)
    span = (since, time.time() if until is None else until)
    data: dict[str, Any] = {"since": _written(since), "until": _written(span[1]), **made.to_json()}
    if not found and not reader.path.exists():
        click.echo(none_yet(state_dir), err=True)
    emit(output, data, lambda: report_lines(made, span))
    complain(reader)


def _written(unix_s: float) -> str:
    """Local ISO 8601 with its offset. ``--since 9999d`` may lie before the year 1: then the first moment there is."""
    try:
        return datetime.datetime.fromtimestamp(unix_s).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return datetime.datetime.min.isoformat(timespec="seconds")


def report_lines(made: Report, span: tuple[float, float]) -> Iterator[str]:
    """The report as text."""
    yield f"{_written(span[0])} to {_written(span[1])}: {_incidents(made.incidents)}"
    if not made.incidents:
        return
    yield (
        f"{made.races} of them races: {made.won} won, {made.would_have_won} would have been won (only observed), "
        f"{made.lost} lost"
    )
    yield ""
    rows = [_verdict_row(one) for one in made.verdicts]
    yield from table_lines(["verdict", "incidents", "observed", "median margin", "worst margin", "worst in"], rows)
    if made.flags:
        yield f"flags: {', '.join(f'{clean(flag)} {count}' for flag, count in made.flags.items())}"
    if made.pods:
        yield ""
        head = ["pod", "grew most", "own limit", "evicted", "would be evicted", "OOM-killed", "fastest growth", "in"]
        yield from table_lines(head, [_pod_row(one) for one in made.pods[:_PODS]])
        if len(made.pods) > _PODS:
            yield f"and {len(made.pods) - _PODS} more pods"
        if made.growth_unknown:
            yield f"growth is not known of {_incidents(made.growth_unknown)}"
    if made.advice:
        yield ""
        yield "advice"
        for one in made.advice[:_ADVICE]:
            which = f"{clean(one.verdict)}, {_incidents(one.incidents)}, the last {clean(one.newest)}"
            yield f"  {which}: {clean(one.advice)}"
        if len(made.advice) > _ADVICE:
            yield f"  and {len(made.advice) - _ADVICE} more (-o json)"


def _incidents(count: int) -> str:
    return f"{count} incident" if count == 1 else f"{count} incidents"


def _verdict_row(one: OfVerdict) -> tuple[object, ...]:
    from monitor.cli.incident_text import format_margin

    median = format_margin({"margin_bytes": one.median_bytes, "margin_ms": one.median_ms})
    worst = format_margin({"margin_bytes": one.worst_bytes, "margin_ms": one.worst_ms})
    return clean(one.verdict), one.incidents, one.observed, median, worst, clean(one.worst or "-")


def _pod_row(one: OfPod) -> tuple[object, ...]:
    growth = "-"
    if one.grew is not None and one.in_s:
        growth = f"{format_bytes(round(one.grew / one.in_s))}/s ({format_bytes(one.grew)} in {one.in_s:g} s)"
    counts = (one.grew_most, one.own_limit, one.evicted, one.would_be_evicted, one.oom_killed)
    return clean(one.pod), *(count or "-" for count in counts), growth, clean(one.incident or "-")
