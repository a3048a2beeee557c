"""`outrace bench forecast`: how far off forecasts of a crossing are, and how many crossings come in the interval."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from monitor.cli.output import print_lines, table_lines
from monitor.errors import EXIT_FAILURE, EXIT_OK, ConfigError, MonitorError
from monitor.lab.bench import Found, Row, bench, number, progress
from monitor.lab.forecast_calibration import Look, calibrate, confidence, crossings, looks, trains
from monitor.lab.growth_loads import LOADS, GrowthLoad
from monitor.lab.growth_runs import Run, load_runs, play, save
from monitor.lab.node import require_root
from monitor.race.forecast import LEVEL, Class, score

#: Goals: the part of the crossings inside the interval, and the bias, where there are so many forecasts.
_COVERED, _BIAS, _ENOUGH = (LEVEL - 0.05, LEVEL + 0.05), 0.05, 100
#: Rows by how far ahead the crossing was, or was foreseen: upper ends, in s.
_AHEAD_S = (1, 2, 5, 15, 60)
_PARTS = ("all", "train", "hold-out")
_COLUMNS = ("load", "runs", "crossings", "looks", "without", "inside", "95% CI", "bias", "error p50", "error p90")


@bench(root=False)
@number("--runs", 2, "Runs of each load.")
@number("--first", 0, "Number of the first run: what is random in a run goes by its number.", 0)
@click.option("--only", multiple=True, metavar="NAME", help="Only this load; repeatable.")
@number("--jobs", 4, "Loads played at once, each on a node of its own.", 1, 8)
@click.option("--directory", default="/var/tmp", show_default=True, type=click.Path(), help="For the files of loads.")
@click.option("--save", "saved", metavar="FILE", type=click.Path(path_type=Path), help="Keep the runs in this file.")
@click.option("--from", "files", metavar="FILE", multiple=True, type=click.Path(path_type=Path),
              help="Judge the runs in this file and play nothing; repeatable.")  # fmt: skip
@click.option("--part", type=click.Choice(_PARTS), default="all", show_default=True,
              help="Which runs to judge: even numbers are for --calibrate, odd ones are held out.")  # fmt: skip
@click.option("--calibrate", "calibrated", is_flag=True, help="Work out intervals from runs with even numbers.")
def forecast(
    runs: int,
    first: int,
    only: tuple[str, ...],
    jobs: int,
    directory: str,
    saved: Path | None,
    files: tuple[Path, ...],
    part: str,
    calibrated: bool,
) -> Found:
    """Grow memory over two thresholds under an observing daemon, in every way of the lab, and judge its forecasts.

    Each is judged that stood before a crossing, one a second. Exit code 1 where less than 75 % or more than 85 % of the
    crossings fell inside the interval, or the bias is above 5 %.
    """
    chosen = _named(only)
    if files:
        names = {load.name for load in chosen}
        found = [run for file in files for run in load_runs(file) if run.load in names]
    else:
        require_root("bench forecast", "makes cgroups and loads BPF programs")
        found = _played(chosen, first, runs, jobs, Path(directory))
    if saved is not None:
        save(found, saved)
    judged = [run for run in found if part == "all" or trains(run) == (part == "train")]
    seen = [look for run in judged for look in looks(run)]
    rows = [_row(load.name, [run for run in judged if run.load == load.name], seen) for load in chosen]
    rows = [row for row in rows if row["runs"]]
    total = _row("all", judged, seen)
    ahead = _by_time(seen, lambda look: look.left_ns)
    foreseen = _by_time(seen, lambda look: look.made.in_ns)
    classes = _calibrated(found) if calibrated else ()
    more = {
        "level": LEVEL,
        "total": total,
        "off": _off(rows),
        "ahead": ahead,
        "foreseen": foreseen,
        "classes": [one.to_json() for one in classes],
    }
    code = EXIT_OK if _good(total) else EXIT_FAILURE
    return Found(rows, more, code, lambda: print_lines(_lines(rows, total, ahead, foreseen, classes)))


def _played(chosen: Sequence[GrowthLoad], first: int, runs: int, jobs: int, directory: Path) -> list[Run]:
    def one(load: GrowthLoad) -> list[Run]:
        try:
            found = play(load, first, runs, Path(files))
        except MonitorError as error:
            raise MonitorError(f"load {load.name}: {error}") from None
        progress(f"{load.name}: {sum(ns is not None for run in found for ns in run.crossed)} crossings")
        return found

    with (
        tempfile.TemporaryDirectory(prefix="outrace-forecast-", dir=directory) as files,
        ThreadPoolExecutor(jobs) as pool,
    ):
        return [run for found in pool.map(one, chosen) for run in found]


def _calibrated(runs: Sequence[Run]) -> tuple[Class, ...]:
    try:
        return calibrate(runs)
    except ValueError as error:
        raise ConfigError(f"--calibrate: {error}", "raise --runs, or name more files with --from") from None


def _named(names: tuple[str, ...]) -> list[GrowthLoad]:
    known = {load.name: load for load in LOADS}
    for name in names:
        if name not in known:
            raise ConfigError(f"--only {name}: there is no such load", f"name one of {', '.join(known)}")
    return [known[name] for name in names or known]


def _row(name: str, runs: Sequence[Run], seen: Iterable[Look]) -> Row:
    mine = [look for look in seen if name in ("all", look.load)]
    return {
        "name": name,
        "runs": len(runs),
        "crossings": sum(ns is not None for run in runs for ns in run.crossed),
        **_scored(mine),
    }


def _scored(mine: Sequence[Look]) -> Row:
    """`score`, of how many crossings, and the 95 % confidence interval of the part inside."""
    found, cases = score((look.made, look.crossed_ns) for look in mine), crossings(mine)
    low, high = (None, None) if found.covered is None else confidence(found.covered, cases)
    return {**found.to_json(), "forecast_crossings": cases, "ci_low": low, "ci_high": high}


def _off(rows: Iterable[Row]) -> list[str]:
    """The loads with the level outside the confidence interval of the part inside."""
    return [row["name"] for row in rows if row["covered"] is not None
            and not row["ci_low"] <= LEVEL <= row["ci_high"]]  # fmt: skip


def _by_time(seen: Iterable[Look], time: Callable[[Look], int | None]) -> list[Row]:
    """The looks by a time (ns) of each; those without one are in no row."""
    timed = [(ns / 1e9, look) for look in seen if (ns := time(look)) is not None]
    return [
        {"from_s": low, "to_s": high, **_scored([look for s, look in timed if low <= s < high])}
        for low, high in zip((0, *_AHEAD_S), _AHEAD_S, strict=False)
    ]


def _good(total: Row) -> bool:
    if total["n"] < _ENOUGH:
        return True  # a few runs of one load say nothing about the level
    low, high = _COVERED
    return bool(low <= total["covered"] <= high and abs(total["bias"]) <= _BIAS)


def _lines(
    rows: Sequence[Row], total: Row, ahead: Sequence[Row], foreseen: Sequence[Row], classes: Sequence[Class]
) -> Iterator[str]:
    yield from table_lines(
        _COLUMNS, [(row["name"], row["runs"], row["crossings"], *_figures(row)) for row in (*rows, total)]
    )
    for what, timed in (("crossing came in", ahead), ("foreseen in", foreseen)):
        yield ""
        yield from table_lines(
            (what, *_COLUMNS[3:]), [(f"{row['from_s']}-{row['to_s']} s", *_figures(row)) for row in timed]
        )
    yield ""
    yield f"The interval is to hold {LEVEL:.0%} of the crossings. Confidence is Wilson's interval, a crossing a case;"
    yield f"{LEVEL:.0%} is outside of it for {', '.join(_off(rows)) or 'no load'}."
    for one in classes:
        yield f"    Class({one.uneven:g}, {one.off:g}, {one.soonest:g}, {one.middle:g}, {one.latest:g}),"


def _figures(row: Row) -> tuple[object, ...]:
    low, high = row["ci_low"], row["ci_high"]
    interval = "-" if low is None else f"{low:.0%}-{high:.0%}"
    without, inside, *errors = [
        "-" if part is None else f"{part:.0%}"
        for part in (row["without"], row["covered"], row["bias"], row["error_p50"], row["error_p90"])
    ]
    return row["given"], without, inside, interval, *errors
