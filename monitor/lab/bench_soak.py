"""`outrace bench soak`: everyday load for an hour, and nothing to say about it."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import psutil

from monitor.cli.output import format_bytes, output_option, print_json, print_table
from monitor.errors import EXIT_FINDINGS, CannotError, ConfigError
from monitor.kernel import mounts
from monitor.lab.bench_footprint import memory, processes
from monitor.lab.daemon import LabDaemon
from monitor.lab.soak import KINDS, Watched, room
from monitor.lab.soak import soak as run

_PROGRESS_S = 60.0


@click.command()
@click.option("--minutes", default=60.0, show_default=True, type=click.FloatRange(0.1), help="How long.")
@click.option("--load", default="all", show_default=True, metavar="KIND,…", help=f"Of {', '.join(KINDS)}.")
@click.option("--directory", default="/var/tmp", show_default=True, type=click.Path(), help="For the files copied.")
@output_option
def soak(minutes: float, load: str, directory: str, output: str) -> int:
    """Everyday load on a small node under two observing daemons: its own and one of the whole machine.

    File copies far beyond the node's memory, compilers, cp and tar, memory and tmpfs that come and go, SIGTERM, pods
    made and removed. Exit code 4 if there was an incident, an alert, a decision or a lost event. (Incidents of cgroups
    outside the node are somebody else's; they are counted, not held against it.)
    """
    kinds = _kinds(load)
    _check_room(directory, kinds)
    mounts.ensure()
    printed_at = [0.0]

    def progress(gone: float) -> None:
        if gone - printed_at[0] >= _PROGRESS_S:
            printed_at[0] = gone
            click.echo(f"{gone / 60:.0f} of {minutes:g} minutes", err=True)

    with tempfile.TemporaryDirectory(prefix="outrace-soak-", dir=directory) as files:
        began = time.monotonic()
        did, found = run(minutes * 60, kinds, Path(files), _measure, progress)
        lasted = time.monotonic() - began
    clean = all(watched.quiet for watched in found)
    if output == "json":
        results = [watched.row() for watched in found]
        print_json({"bench": "soak", "seconds": round(lasted), "clean": clean, "load": dict(did), "results": results})
    else:
        _print(did, found)
    return 0 if clean else EXIT_FINDINGS


def _kinds(text: str) -> tuple[str, ...]:
    if text == "all":
        return tuple(KINDS)
    found = tuple(word.strip() for word in text.split(","))
    for kind in found:
        if kind not in KINDS:
            raise ConfigError(f"--load {text}: {kind!r} is no kind of load", f"name some of {', '.join(KINDS)}, or all")
    return found


def _check_room(directory: str, kinds: tuple[str, ...]) -> None:
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        raise ConfigError(f"--directory {directory}: {error.strerror}", "name a directory that is there") from None
    if free < room(kinds):
        raise CannotError(
            f"--directory {directory}: {format_bytes(free)} are free, and the files take {format_bytes(room(kinds))}",
            "name another directory, or fewer kinds of --load (`copy` takes most)",
        )


def _measure(daemon: LabDaemon) -> tuple[int, int]:
    """Resident bytes and CPU time in ns of both processes of a daemon."""
    pids = processes(daemon.pid)
    return sum(memory(pid)[0] for pid in pids), sum(_cpu_ns(pid) for pid in pids)


def _cpu_ns(pid: int) -> int:
    """User and system time in ns, of threads that ended too; in ticks of 10 ms, which over an hour are nothing."""
    spent = psutil.Process(pid).cpu_times()
    return round((spent.user + spent.system) * 1e9)


def _print(did: dict[str, Any], found: list[Watched]) -> None:
    print_table(("load", "count"), sorted(did.items()))
    click.echo()
    print_table(
        ("daemon", "incidents", "alerts", "decisions", "lost", "foreign", "RSS", "growth", "CPU ms/s"),
        [
            (
                w.name,
                len(w.incidents),
                len(w.alerts),
                w.decisions,
                sum(w.lost.values()),
                w.foreign_incidents,
                format_bytes(w.rss[1]),
                format_bytes(w.rss[1] - w.rss[0]),
                f"{w.cpu_ms_per_s:.2f}",
            )
            for w in found
        ],
    )
    for w in found:
        for line in dict.fromkeys(w.row()["said"]):
            click.echo(f"{w.name}: {line}")
