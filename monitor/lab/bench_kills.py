"""`outrace bench kills`: SIGKILL to the monitor's own processes at random moments of races."""

from __future__ import annotations

import random
import sys

import click

from monitor.cli.output import output_option, print_json, print_table
from monitor.errors import EXIT_FAILURE
from monitor.kernel import mounts
from monitor.lab.kills import HOT, SIDE, Kills

_PROBLEMS_SHOWN = 20


@click.command()
@click.option("--runs", default=200, show_default=True, type=click.IntRange(1), help="Kills, half of them of the side.")
@click.option(
    "--trigger", default="user", show_default=True, type=click.Choice(["user", "kernel"]), help="As of `run`."
)
@click.option("--seed", default=None, type=int, help="Of the moments; a random one if it is not given.")
@output_option
def kills(runs: int, trigger: str, seed: int | None, output: str) -> int:
    """Kill the hot process or the side around the crossing, start it again, and look for what may never happen.

    That is: an OOM kill in no incident or in two, two evictions for one shortage, a pod that had no part in it killed
    or changed, anything left behind. Exit code 1 if there is any. Takes about 3 s for each run.
    """
    mounts.ensure()
    seed = random.randrange(1 << 32) if seed is None else seed
    with Kills(seed, trigger) as bench:
        for number in range(runs):
            bench.run(HOT if number % 2 == 0 else SIDE)
            if sys.stderr.isatty():
                click.echo(f"\r{number + 1} of {runs}", err=True, nl=False)
        bench.check_records()
    rows = [
        {
            "name": what,
            "unit": "runs",
            "runs": tally.runs,
            "right": tally.right,
            "evicted": tally.evicted,
            "oom": tally.oom,
            "gone_on": tally.again,
            "told_by_next": tally.unsaid,
            "problems": tally.problems,
        }
        for what, tally in bench.tallies.items()
    ]
    if output == "json":
        print_json({"bench": "kills", "seed": seed, "results": rows, "left_behind": bench.left_behind})
    else:
        keys = ("name", "runs", "right", "evicted", "oom", "gone_on", "told_by_next")
        print_table(("killed", *keys[1:]), [[row[key] for key in keys] for row in rows])
        problems = [*bench.left_behind, *(problem for tally in bench.tallies.values() for problem in tally.problems)]
        for problem in problems[:_PROBLEMS_SHOWN]:
            click.echo(problem, err=True)
        click.echo(f"seed {seed}", err=True)
    wrong = bench.left_behind or any(tally.problems for tally in bench.tallies.values())
    return EXIT_FAILURE if wrong else 0
