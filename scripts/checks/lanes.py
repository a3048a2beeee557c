"""tests/races.toml names tests that exist, with a baseline for each family; every mutant by hand still has its code."""

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from documents import tests

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/races.toml"
sys.path.append(str(ROOT / "scripts"))

import mutants  # noqa: E402
import races  # noqa: E402

#: Of 24 to 28 November 2026, when the gate was made: what is deleted since then is replaced.
FEWEST_FAULTS = 40


def no_such_test(table: Mapping[str, Any]) -> Iterator[str]:
    listed = [name for family in table["family"] for name in (*family["tests"], *family.get("but", ()))]
    for name in (*listed, *(name for lane in ("alone", "starts") for name in table[lane]["tests"])):
        file, _, test = name.partition("[")[0].partition("::")
        if not (ROOT / file).exists() or (test and test not in tests()[Path(file).name]):
            yield name


def complaints() -> Iterator[str]:
    yield from (f"tests/races.toml: there is no {name}" for name in no_such_test(tomllib.loads(TABLE.read_text())))
    recorded = json.loads(races.BASELINE.read_text())["families"]
    for name in {*recorded} ^ ({*races.BENCHES, *races.families()} - {"guests"}):  # those need an image
        yield f"{races.BASELINE.relative_to(ROOT)}: {name} is not a family, or has no baseline"
    for subject in ("rules", "faults"):
        made = mutants.by_hand(ROOT, subject)
        yield from (f"scripts/mutation/{subject}.toml: {one.key}: {one.stale}" for one in made if one.stale)
        if subject == "faults" and len(made) < FEWEST_FAULTS:
            yield f"scripts/mutation/faults.toml: {len(made)} faults; {FEWEST_FAULTS} at least"
        for one in made:
            files = [name.partition("::")[0] for name in one.tests]
            yield from (f"scripts/mutation/{subject}.toml: no {name}" for name in files if not (ROOT / name).exists())
    for subject in mutants.SUBJECTS:
        if not any(list((ROOT / "monitor").glob(pattern)) for pattern in mutants.SUBJECTS[subject]):
            yield f"scripts/mutants.py: {subject} has no files"
