"""`outrace daemons`: the daemons that run here, by the name for `--daemon`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from monitor.cli.daemons import Daemon, find, run_dir_option
from monitor.cli.output import emit, output_option, table_lines


@click.command()
@run_dir_option
@output_option
def daemons(run_dir: str, output: str) -> None:
    """List the daemons that run here: name, node, pods, state directory."""
    found = list(find(Path(run_dir)))
    if output == "table" and not found:
        click.echo(f"no outrace daemon runs here (no socket answers in {run_dir})", err=True)
        return
    emit(output, {"daemons": [one.to_json() for one in found]}, lambda: _lines(found))


def _lines(found: list[Daemon]) -> list[str]:
    columns = ("name", "pid", "mode", "node", "pods", "listen", "state_dir", "not_ready")
    rows = [[one.to_json()[column] for column in columns] for one in found]
    started = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(one.info.started)) for one in found]
    return table_lines(
        ["name", "pid", "mode", "node", "pods", "listen", "state dir", "since", "not ready"],
        [[*row[:-1], since, row[-1]] for row, since in zip(rows, started, strict=True)],
    )
