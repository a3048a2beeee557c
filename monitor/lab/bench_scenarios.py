"""`outrace bench scenarios`: situations with a known truth on the real kernel, and what the monitor made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from monitor.cli.output import output_option, print_json, print_table
from monitor.errors import EXIT_FAILURE
from monitor.kernel import mounts
from monitor.lab.bench import number
from monitor.lab.scenario import Scenario
from monitor.lab.scenarios import named
from monitor.lab.stage import play
from monitor.lab.truth import Outcome
from monitor.race.forecast import score
from monitor.race.incident import VERDICTS


@click.command()
@number("--runs", 20, "Runs of each scenario.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this scenario; may be given several times.")
@number("--jobs", 1, "Scenarios played at once.", 1, 4)
@click.option("--list", "only_list", is_flag=True, help="Only say which scenarios there are.")
@output_option
def scenarios(runs: int, only: tuple[str, ...], jobs: int, only_list: bool, output: str) -> int:
    """Play scripted situations and compare the incidents with the truth; exit code 1 if any is wrong.

    The truth is the verdict, exactly these flags, who was evicted and who was killed. Also: how far off forecasts of
    the crossing were, and how often the kernel's victim was the one that its own arithmetic named just before.
    """
    chosen = named(only)
    if only_list:
        _list(chosen, output)
        return 0
    if not only:  # a scenario that is named fails with the reason
        for scenario in chosen:
            if problem := scenario.needs():
                click.echo(f"{scenario.name}: left out: {problem}", err=True)
        chosen = tuple([scenario for scenario in chosen if not scenario.needs()])
    mounts.ensure()
    with ThreadPoolExecutor(jobs) as pool:
        played = list(zip(chosen, pool.map(lambda scenario: _play(scenario, runs), chosen), strict=True))
    report = _report(played)
    if output == "json":
        print_json(report)
    else:
        _print(played, report)
    return 0 if all(o.right for _, outcomes in played for o in outcomes) else EXIT_FAILURE


def _list(chosen: Sequence[Scenario], output: str) -> None:
    rows = [(s.name, s.truth.verdict, " ".join(sorted(s.truth.flags)) or None, s.story) for s in chosen]
    keys = ("name", "truth", "flags", "story")
    if output == "json":
        print_json({"scenarios": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        print_table(keys, rows)


def _play(scenario: Scenario, runs: int) -> list[Outcome]:
    outcomes = play(scenario, runs)
    click.echo(f"{scenario.name}: {sum(o.right for o in outcomes)} of {len(outcomes)}", err=True)
    for wrong in dict.fromkeys(o.wrong for o in outcomes if o.wrong):
        click.echo(f"  {wrong}", err=True)
    return outcomes


def _report(played: Sequence[tuple[Scenario, list[Outcome]]]) -> dict[str, Any]:
    everything = [o for _, outcomes in played for o in outcomes]
    forecasts = score(pair for o in everything for pair in o.forecasts)
    guessed = [o for o in everything if o.guess is not None]
    return {
        "bench": "scenarios",
        "results": [_row(scenario, outcomes) for scenario, outcomes in played],
        "runs": len(everything),
        "right": sum(o.right for o in everything),
        "confusion": {
            truth: dict(Counter(o.verdict for s, outcomes in played for o in outcomes if s.truth.verdict == truth))
            for truth in dict.fromkeys(s.truth.verdict for s, _ in played)
        },
        "forecast": forecasts.to_json(),
        "likely_victim": {"total": len(guessed), "right": sum(_guessed(o) for o in guessed)},
    }


def _row(scenario: Scenario, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    seen = [{flag for i in o.incidents for flag in i["flags"]} for o in outcomes]
    guessed = [o for o in outcomes if o.guess is not None]
    return {
        "name": scenario.name,
        "truth": scenario.truth.verdict,
        "flags": sorted(scenario.truth.flags),
        "runs": len(outcomes),
        "right": sum(o.right for o in outcomes),
        "verdicts": dict(Counter(o.verdict for o in outcomes)),
        "flags_missing": dict(Counter(flag for flags in seen for flag in scenario.truth.flags - flags)),
        "flags_extra": dict(Counter(flag for flags in seen for flag in flags - scenario.truth.flags)),
        "wrong": [o.wrong for o in outcomes if o.wrong],
        "likely_victim": {"total": len(guessed), "right": sum(_guessed(o) for o in guessed)},
        "forecast": score(pair for o in outcomes for pair in o.forecasts).to_json(),
    }


def _guessed(outcome: Outcome) -> bool:
    """Whether the one that was expected to be killed was the first victim."""
    assert outcome.guess is not None
    victims: list[dict[str, Any]] = next((i["oom_victims"] for i in outcome.incidents if i["oom_victims"]), [])
    return bool(victims) and victims[0]["pid"] == outcome.guess.pid


def _print(played: Sequence[tuple[Scenario, list[Outcome]]], report: dict[str, Any]) -> None:
    print_table(
        ("scenario", "truth", "flags", "runs", "right"),
        [(r["name"], r["truth"], " ".join(r["flags"]) or None, r["runs"], r["right"]) for r in report["results"]],
    )
    click.echo()
    click.echo("Truth (rows) and verdicts (columns):")
    _print_confusion(report["confusion"])
    forecasts, victims = report["forecast"], report["likely_victim"]
    click.echo()
    click.echo(
        f"Forecasts of the crossing: {forecasts['n']}; median error {_percent(forecasts['error_p50'])}, "
        f"p90 {_percent(forecasts['error_p90'])}, bias {_percent(forecasts['bias'])}, "
        f"within their interval {_percent(forecasts['covered'])}."
    )
    click.echo(f"The kernel's victim was the expected one in {victims['right']} of {victims['total']} kills.")


def _print_confusion(confusion: dict[str, dict[str, int]]) -> None:
    known = ("none", *VERDICTS)
    seen = {v for row in confusion.values() for v in row}
    columns = [v for v in known if v in seen or v in confusion] + sorted(seen - set(known))
    rows = _sorted(confusion, known)
    print_table(("", *columns), [(truth, *(confusion[truth].get(v, 0) for v in columns)) for truth in rows])


def _sorted(names: Iterable[str], known: Sequence[str]) -> list[str]:
    return sorted(names, key=known.index)


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"
