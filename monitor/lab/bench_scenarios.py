"""`outrace bench scenarios`: situations with a known truth on the real kernel, and what the monitor made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click

from monitor.cli.output import table_lines
from monitor.errors import EXIT_FAILURE, EXIT_OK
from monitor.lab.bench import Found, Row, bench, number, progress
from monitor.lab.node import require_root
from monitor.lab.scenarios import named
from monitor.lab.stage import NOTHING, Outcome, Scenario, play
from monitor.race.incident import VERDICTS


@bench(root=False)
@number("--runs", 20, "Runs of each scenario.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this scenario; repeatable.")
@click.option("--list", "only_list", is_flag=True, help="Only list the scenarios.")
def scenarios(runs: int, only: tuple[str, ...], only_list: bool) -> Found:
    """Play scripted situations and compare the incidents with the truth; exit code 1 if any is wrong.

    The truth is the verdict, exactly these flags, and the pods that were evicted and killed.
    """
    chosen = named(only)
    if only_list:
        keys = ("name", "truth", "flags", "story")
        rows = [(s.name, s.verdict, " ".join(sorted(s.flags)) or None, s.story) for s in chosen]
        listed = [dict(zip(keys, row, strict=True)) for row in rows]
        return Found([], document={"scenarios": listed}, lines=lambda: table_lines(keys, rows))
    require_root("bench scenarios")
    if not only:  # a scenario that is named fails with the reason
        problems = {scenario.name: scenario.needs() for scenario in chosen}
        for name, problem in problems.items():
            if problem:
                progress(f"{name}: left out: {problem}")
        chosen = tuple(scenario for scenario in chosen if not problems[scenario.name])
    played = {scenario: _play(scenario, runs) for scenario in chosen}
    rows_of = [_row(scenario, outcomes) for scenario, outcomes in played.items()]
    confusion: dict[str, Counter[str]] = {}
    for scenario, outcomes in played.items():
        confusion.setdefault(scenario.verdict, Counter()).update(o.verdict for o in outcomes)
    more = {"confusion": confusion, **_totals([o for outcomes in played.values() for o in outcomes])}
    code = EXIT_OK if more["right"] == more["runs"] else EXIT_FAILURE
    return Found(rows_of, more, code, lambda: _lines(rows_of, more))


def _play(scenario: Scenario, runs: int) -> list[Outcome]:
    outcomes = play(scenario, runs)
    progress(f"{scenario.name}: {sum(o.right for o in outcomes)} of {len(outcomes)}")
    for wrong in dict.fromkeys(o.wrong for o in outcomes if o.wrong):
        progress(f"  {wrong}")
    return outcomes


def _totals(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {"runs": len(outcomes), "right": sum(o.right for o in outcomes)}


def _row(scenario: Scenario, outcomes: Sequence[Outcome]) -> Row:
    seen = [{flag for i in o.incidents for flag in i["flags"]} for o in outcomes]
    return {
        "name": scenario.name,
        "truth": scenario.verdict,
        "flags": sorted(scenario.flags),
        "verdicts": dict(Counter(o.verdict for o in outcomes)),
        "flags_missing": dict(Counter(flag for flags in seen for flag in scenario.flags - flags)),
        "flags_extra": dict(Counter(flag for flags in seen for flag in flags - scenario.flags)),
        "wrong": [o.wrong for o in outcomes if o.wrong],
        **_totals(outcomes),
    }


def _lines(rows: Sequence[Row], more: dict[str, Any]) -> Iterator[str]:
    yield from table_lines(
        ("scenario", "truth", "flags", "runs", "right"),
        [(r["name"], r["truth"], " ".join(r["flags"]) or None, r["runs"], r["right"]) for r in rows],
    )
    yield from ("", "Truth (rows) and verdicts (columns):")
    known, confusion = (NOTHING, *VERDICTS), more["confusion"]
    seen = {v for row in confusion.values() for v in row}
    columns = [v for v in known if v in seen or v in confusion] + sorted(seen - set(known))
    truths = sorted(confusion, key=known.index)
    yield from table_lines(("", *columns), [(truth, *(confusion[truth][v] for v in columns)) for truth in truths])
