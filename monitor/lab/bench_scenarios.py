"""`outrace bench scenarios`: situations with a known truth on the real kernel, and what the monitor made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click

from monitor.errors import EXIT_FAILURE, EXIT_OK
from monitor.lab.bench import Found, Row, bench, number, progress
from monitor.lab.scenarios import named
from monitor.lab.stage import Outcome, Scenario, play


@bench("name truth flags runs right")
@number("--runs", 20, "Runs of each scenario.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this scenario; repeatable.")
def scenarios(runs: int, only: tuple[str, ...]) -> Found:
    """Play scripted situations and compare the incidents with the truth; exit code 1 if any is wrong.

    The truth is the verdict, exactly these flags, and the pods that were evicted and killed.
    """
    chosen = named(only)
    if not only:  # a scenario that is named fails with the reason
        problems = {scenario.name: scenario.needs() for scenario in chosen}
        for name, problem in problems.items():
            if problem:
                progress(f"{name}: left out: {problem}")
        chosen = tuple(scenario for scenario in chosen if not problems[scenario.name])
    rows = [_row(scenario, _play(scenario, runs)) for scenario in chosen]
    totals = {key: sum(row[key] for row in rows) for key in ("runs", "right")}
    return Found(rows, totals, EXIT_OK if totals["right"] == totals["runs"] else EXIT_FAILURE)


def _play(scenario: Scenario, runs: int) -> list[Outcome]:
    outcomes = play(scenario, runs)
    progress(f"{scenario.name}: {sum(o.right for o in outcomes)} of {len(outcomes)}")
    for wrong in dict.fromkeys(o.wrong for o in outcomes if o.wrong):
        progress(f"  {wrong}")
    return outcomes


def _row(scenario: Scenario, outcomes: Sequence[Outcome]) -> Row:
    return {
        "name": scenario.name,
        "truth": scenario.verdict,
        "flags": sorted(scenario.flags),
        "verdicts": dict(Counter(o.verdict for o in outcomes)),
        "wrong": [o.wrong for o in outcomes if o.wrong],
        "runs": len(outcomes),
        "right": sum(o.right for o in outcomes),
    }
