"""`make races`: what is a race or a latency, repeated, and judged family by family by how often it is lost.

One race lost in 500 decides nothing, and one that was won little. The losses of a family are held against those of a
recorded baseline by a sequential test (Wald's): the run ends as soon as they are shown to be more (p < 0.01), or shown
not to be, or at --rounds. A broken promise needs no statistics: damaged data, a problem that `bench kills` finds, or
something left behind fails at once.

Families are the benches below, and those of tests/races.toml, whose tests pytest runs once each in a round. pytest does
not tell a wrong victim from one that came late: the benches do.

Of the sample (--sample) a test that is lost is repeated, and one that is lost three times of three is a fault and
counts as a broken promise: a check that could no longer succeed was once a "lost race" for two days.

Exit code 0: no family is worse. 1: one is. 4: a promise was broken. With --sample 0 or 4.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts/vm"))
from chosen import changed, git  # noqa: E402

BASELINE = ROOT / "tests/data/races/baseline.json"
ALPHA, BETA = 0.01, 0.05
WORSE, BROKEN = 1, 4
OUTRACE = (sys.executable, "-m", "monitor.cli.main", "bench")
#: One of so many races is in each sample, by the hash of the commit and its name.
SAMPLE = 10
#: On a machine that is busy a race takes a minute and more.
MORE_S = 45.0


@dataclass
class Found:
    """What came of some races."""

    runs: int = 0
    lost: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        self.runs += other.runs
        self.lost += other.lost
        self.broken += other.broken


# -- the judge ---------------------------------------------------------------------------------------------------------


def judge(lost: int, runs: int, base_lost: int, base_runs: int) -> str:
    """`worse`, `as before` or `undecided`: Wald's sequential test of the baseline's rate of losses (Jeffreys' estimate
    of it) against three times as many, and at least three in a hundred more.
    """
    before = (base_lost + 0.5) / (base_runs + 1)
    after = min(0.99, max(3 * before, before + 0.03))
    if after <= before:
        return "undecided"  # hardly one was won: there is nothing that could become worse
    weight = lost * math.log(after / before) + (runs - lost) * math.log((1 - after) / (1 - before))
    if weight >= math.log((1 - BETA) / ALPHA):
        return "worse"
    return "as before" if weight <= math.log(BETA / (1 - ALPHA)) else "undecided"


# -- the runners -------------------------------------------------------------------------------------------------------


def of_races(rows: Sequence[dict[str, Any]]) -> Found:
    lost = [row["name"] for row in rows for _ in range(row["runs"] - row["wins"])]
    return Found(sum(row["runs"] for row in rows), lost)


def of_holds(rows: Sequence[dict[str, Any]]) -> Found:
    """Held and then damaged is broken; killed before it was held is lost."""
    lost = [row["name"] for row in rows for _ in range(row["runs"] - row["held"])]
    broken = [f"{row['name']}: a process of a held pod was damaged" for row in rows if row["right"] < row["held"]]
    return Found(sum(row["runs"] for row in rows), lost, broken)


def of_kills(rows: Sequence[dict[str, Any]]) -> Found:
    """Whatever `bench kills` finds may never happen."""
    broken = [f"{row['name']}: {problem}" for row in rows for problem in row["problems"]]
    return Found(sum(row["runs"] for row in rows), [], broken)


def of_scenarios(rows: Sequence[dict[str, Any]]) -> Found:
    lost = [f"{row['name']}: {row['wrong']}" for row in rows for _ in range(row["runs"] - row["right"])]
    return Found(sum(row["runs"] for row in rows), lost)


BENCHES: dict[str, tuple[tuple[str, ...], Callable[[Sequence[dict[str, Any]]], Found]]] = {
    "bench race": (("race", "--quick", "--no-baselines", "--runs", "5"), of_races),
    "bench hold": (("race", "--mode", "hold", "--quick", "--runs", "2"), of_holds),
    "bench kills": (("kills", "--runs", "10"), of_kills),
    "bench kills, held": (("kills", "--mode", "hold", "--runs", "10"), of_kills),
    "bench scenarios": (("scenarios", "--runs", "1"), of_scenarios),
}


def bench(name: str) -> Found:
    words, read = BENCHES[name]
    done = subprocess.run([*OUTRACE, *words, "-o", "json"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return Found(1, [f"{name} ended with exit code {done.returncode}"])
    found = read(answer["results"])
    found.broken += [f"{name} left behind: {what}" for what in answer.get("left_behind", [])]
    return found


def tests(names: Sequence[str], junit: Path, within: float | None) -> Found:
    """Each of these tests once, by pytest: an error is in what it leaves behind, a failure is a race that was lost.
    After ``within`` seconds none is begun, and one that still runs `MORE_S` later is interrupted, which is no loss.
    """
    limit = [] if within is None else [f"--session-timeout={max(1, within):.0f}"]  # of pytest-timeout
    command = [sys.executable, "-m", "pytest", "-q", "-m", "races", f"--junitxml={junit}", *names, *limit]
    junit.unlink(missing_ok=True)
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        code = process.wait(None if within is None else max(1, within) + MORE_S)
    except subprocess.TimeoutExpired:
        print("races: out of time: the test that runs is interrupted", flush=True)
        process.send_signal(signal.SIGINT)
        code = process.wait()
    if not junit.exists():
        return Found(1, [f"pytest ended with exit code {code}"])
    found = Found()
    for case in ElementTree.parse(junit).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        found.runs += case.find("skipped") is None
        found.lost += [f"{name}: {bad.get('message', '')[:200]}" for bad in case.iterfind("failure")]
        found.broken += [f"{name}: {bad.get('message', '')[:200]}" for bad in case.iterfind("error")]
    return found


def families() -> dict[str, list[str]]:
    """Those of tests/races.toml: name -> what pytest is given."""
    table = tomllib.loads((ROOT / "tests/races.toml").read_text())["family"]
    return {family["name"]: family["tests"] for family in table}


# -- the sample of .ci/run ---------------------------------------------------------------------------------------------


def collected() -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "races"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return [line for line in done.stdout.splitlines() if "::" in line]


def reached(name: str, files: Sequence[str]) -> bool:
    """Whether the change touched this test's file, or a module that it imports."""
    file = name.partition("::")[0]
    text = (ROOT / file).read_text()
    modules = [path.removesuffix(".py").replace("/", ".") for path in files if path.startswith("monitor/")]
    return file in files or any(f"from {module} import" in text for module in modules)


def sample(names: Sequence[str], commit: str, files: Sequence[str]) -> list[str]:
    """One in `SAMPLE` of these, and those which the change reaches, the former first: there may be no time for all."""

    def drawn(name: str) -> bool:
        return hashlib.sha256(f"{commit} {name}".encode()).digest()[0] % SAMPLE == 0

    return [name for name in names if drawn(name)] + [
        name for name in names if not drawn(name) and reached(name, files)
    ]


# -- all of it ---------------------------------------------------------------------------------------------------------


def rounds(options: argparse.Namespace, base: dict[str, dict[str, int]]) -> Iterator[tuple[str, Found, str]]:
    """(family, all that it has done so far, what the judge says) after each round of each family."""
    chosen = [name for name in (*BENCHES, *families()) if not options.only or name in options.only]
    done = {name: Found() for name in chosen}
    for _ in range(options.rounds):
        for name in list(chosen):
            with tempfile.TemporaryDirectory() as place:
                now = bench(name) if name in BENCHES else tests(families()[name], Path(place, "junit.xml"), None)
            done[name].add(now)
            was = base.get(name, {"lost": 0, "runs": 0})
            said = judge(len(done[name].lost), done[name].runs, was["lost"], was["runs"])
            yield name, done[name], "broken" if now.broken else said
            if now.broken or (said in ("worse", "as before") and not options.record):
                chosen.remove(name)
        if not chosen:
            return


def report(name: str, found: Found, said: str) -> None:
    print(f"races: {name}: {len(found.lost)} of {found.runs} lost: {said}", flush=True)
    for line in dict.fromkeys((*found.lost, *found.broken)):
        print(f"races:   {line}")


def whole(options: argparse.Namespace) -> int:
    base = json.loads(BASELINE.read_text())
    last: dict[str, tuple[Found, str]] = {}
    for name, found, said in rounds(options, base["families"]):
        report(name, found, said)
        last[name] = (found, said)
    if options.record:
        source = f"{git(ROOT, 'rev-parse', '--short', 'HEAD')}, Linux {os.uname().release}, {os.cpu_count()} CPUs"
        new = {n: {"lost": len(found.lost), "runs": found.runs, "source": source} for n, (found, _) in last.items()}
        BASELINE.write_text(json.dumps({"families": base["families"] | new}, indent=1) + "\n")
    words = [said for _, said in last.values()]
    return BROKEN if "broken" in words else WORSE if "worse" in words else 0


def faults(junit: Path) -> list[str]:
    """Those that pytest lost when it ran last, and loses twice more."""
    again = Found()
    for _ in range(2):
        again = tests(["--last-failed", "--last-failed-no-failures=none"], junit.with_suffix(".again.xml"), MORE_S)
    return again.lost


def some(options: argparse.Namespace) -> int:
    """A sample, within `--within` seconds: reported, and judged by nothing but broken promises and faults."""
    ends = time.monotonic() + options.within
    found = bench("bench race")
    names = sample(collected(), git(ROOT, "rev-parse", "HEAD"), changed())
    print(f"races: {len(names)} of the tests are in the sample", flush=True)
    once = tests(names, options.junitxml, ends - time.monotonic()) if names else Found()
    once.broken += faults(options.junitxml) if once.lost else []
    found.add(once)
    report("sample", found, "broken" if found.broken else "a datum")
    return BROKEN if found.broken else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make races ARGS=...", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="rounds of each family, at most (10)")
    parser.add_argument("--only", action="append", default=[], metavar="FAMILY", help="only this one; repeatable")
    parser.add_argument("--record", action="store_true", help="run all rounds and write the baseline")
    parser.add_argument("--sample", action="store_true", help="a tenth, once, and what the last commits reach")
    parser.add_argument("--within", type=float, default=200, metavar="S", help="seconds for the sample (200)")
    parser.add_argument("--junitxml", type=Path, default=ROOT / "build/races.xml", metavar="FILE")
    options = parser.parse_args(arguments)
    return some(options) if options.sample else whole(options)


if __name__ == "__main__":
    sys.exit(main())
