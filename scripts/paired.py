"""Old and new tree on this machine in one run: each bench in turns, old, new, old, and what became of size.

    .venv/bin/python scripts/paired.py OLD [--turns N] [--only race,kills]

For each figure: medians of both, their ratio, and the spread: how far the two runs of the old tree in a turn are apart.
A figure is worse if it is so by more than 3 % and the spread, and by 3 % in each turn against both; a bench with such a
figure is repeated up to five turns. Exit code 1 where one is worse to the end, or more races are lost.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import races

ROOT = Path(__file__).resolve().parents[1]
#: Bench -> its options: a turn of all of them takes some five minutes.
BENCHES = {
    "latency": ("--floor-only", "--turns", "2", "--kills", "60"),
    "race": ("--quick", "--runs", "5", "--no-baselines"),
    "overhead": ("--triples", "20"),
    "footprint": ("--runs", "3", "--idle", "10"),
    "kills": ("--runs", "6", "--seed", "1"),
}
#: Figures of a row of a bench; less is better.
FIGURES = ("p50", "kill_p50")
#: What a row calls the runs in which all was well.
WELL = ("wins", "right")
WORSE = 0.03
#: Of three equal runs the one in the middle is the worst in a third of all turns, so one turn says little: 1 in 243.
MOST_TURNS = 5
#: What the hot process has imported when it decides, without and with a kernel that has rings.
HOT = """import contextlib, importlib, sys
for name in ("monitor.hot.main", "monitor.hot.ring_records", "monitor.sources.rings"):
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(name)
print(sum(name.partition(".")[0] == "monitor" for name in sys.modules))"""


class Figure(NamedTuple):
    """Of one bench: values of the old tree (two a turn) and of the new one; of runs, (lost, runs)."""

    old: list[Any]
    new: list[Any]


def figures(bench: str, found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Name and value of each figure of a bench's answer."""
    for row in found["results"]:
        name = f"{bench} {row['name']}"
        for key in FIGURES:
            if row.get(key):
                yield f"{name} {key} ({row['unit']})", row[key]
        for key in WELL:
            if key in row:
                yield f"{name} lost", (row["runs"] - row[key], row["runs"])


def judged(figure: Figure) -> tuple[str, bool]:
    """A line about it, and whether the new tree is worse."""
    if isinstance(figure.new[0], tuple):
        (old_lost, old_runs), (lost, runs) = (tuple(map(sum, zip(*some, strict=True))) for some in figure)
        is_worse = races.judge(lost, runs, old_lost, old_runs) == "worse"
        return f"{old_lost} of {old_runs}, {lost} of {runs}", is_worse
    before, after = median(figure.old), median(figure.new)
    apart = median(abs(b / a - 1) for a, b in zip(figure.old[::2], figure.old[1::2], strict=True))
    ratio = after / before
    pairs = zip(figure.old[::2], figure.old[1::2], figure.new, strict=True)
    is_worse = ratio - 1 > WORSE + apart and all(new > max(a, b) * (1 + WORSE) for a, b, new in pairs)
    return f"{before:,.4g}, {after:,.4g}: {ratio:.3f}, spread {apart:.3f}", is_worse


def called(tree: Path, *words: str) -> str:
    """stdout of a command of that tree's Python. Raises CalledProcessError, where a bench found nothing either."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    command = [str(tree / ".venv/bin/python"), *words]
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode and not done.stdout:
        raise subprocess.CalledProcessError(done.returncode, command)
    return done.stdout


def measured(old: Path, new: Path, benches: Sequence[str], least: int) -> dict[str, Figure]:
    found: dict[str, Figure] = defaultdict(lambda: Figure([], []))
    for turn in range(max(least, MOST_TURNS)):
        again = [bench for bench in benches if turn < least or any(_is_worse(found, name, bench) for name in found)]
        for bench in again:
            for tree in (old, new, old):
                which = "new" if tree == new else "old"
                print(f"turn {turn + 1}: {bench}, {which}", file=sys.stderr, flush=True)
                words = ("-m", "monitor.cli.main", "bench", bench, *BENCHES[bench], "-o", "json")
                for name, value in figures(bench, json.loads(called(tree, *words))):
                    getattr(found[name], which).append(value)
    return found


def _is_worse(found: dict[str, Figure], name: str, bench: str) -> bool:
    return name.startswith(f"{bench} ") and is_whole(found[name]) and judged(found[name])[1]


def is_whole(figure: Figure) -> bool:
    """Both trees have it, in every turn."""
    return bool(figure.new) and len(figure.old) == 2 * len(figure.new)


def rooms(tree: Path) -> dict[str, int]:
    """Lines of Python, by the first directory in monitor/, and of tests."""
    lines: dict[str, int] = defaultdict(int)
    for path in (path for place in ("monitor", "tests") for path in (tree / place).rglob("*.py")):
        part = path.relative_to(tree).parts
        room = "tests" if part[0] == "tests" else part[1] if len(part) > 2 else "(files)"
        lines[room] += len(path.read_bytes().splitlines())
    return lines


def sizes(old: Path, new: Path) -> Iterator[str]:
    yield f"modules that the hot process imports: {called(old, '-c', HOT).strip()}, {called(new, '-c', HOT).strip()}"
    before, after = rooms(old), rooms(new)
    for room in sorted({*before, *after}):
        yield f"lines of {room}: {before.get(room, 0):,}, {after.get(room, 0):,}"


def checked_out(commit: str, into: Path) -> None:
    """The tree of a commit, with an environment of its own."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(into)
    subprocess.run([into / "scripts/setup.sh"], check=True, stdout=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="a commit")
    parser.add_argument("--turns", type=int, default=1, help="at least: each is old, new, old of every bench (1)")
    parser.add_argument("--only", default=",".join(BENCHES), help="benches, with commas")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="outrace-paired-") as place:
        old = Path(place)
        checked_out(given.old, old)
        print(*sizes(old, ROOT), sep="\n")
        found = measured(old, ROOT, [bench for bench in given.only.split(",") if bench], given.turns)
    worse = []
    for name, figure in found.items():
        if not is_whole(figure):
            print(f"{name}: only {'the new tree has it' if figure.new else 'the old tree has it'}")
            continue
        text, is_worse = judged(figure)
        worse += [name] if is_worse else []
        print(f"{name}: {text}{' WORSE' if is_worse else ''}")
    print(f"{len(worse)} of {len(found)} figures are worse")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
