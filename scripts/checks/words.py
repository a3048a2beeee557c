"""Prose that makes a reader guess: riddles of who and whom, sentences without an actor. Their count only falls.

`tests/data/words.toml` has the most that each room may have of all patterns together. `scripts/checks words --record`
writes what is there now; a number that rises is a complaint.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "tests/data/words.toml"
PATTERNS = (
    r"\bwho(m|ever)?\b",
    r"\b(nobody|somebody)\b",
    r"\b(he|his|him)\b",
    r"\bis (said|told|asked)\b",
    r"\b(as ever|in the midst|all the same|at the most)\b",
)
WORDS = re.compile("|".join(PATTERNS), re.IGNORECASE)
FILES = (
    "monitor/**/*.py",
    "bpf/*",
    "scripts/**/*.py",
    "tests/**/*.py",
    "docs/*.md",
    "*.md",
    "tests/data/promises.toml",
)


def room(path: Path) -> str:
    """``monitor/hot`` of a file below it, the first directory of others, the file itself at the top."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if parts[0] == "monitor" and len(parts) > 2 else parts[0]


def count() -> Counter[str]:
    """Matches by room, without those rooms that have none."""
    found: Counter[str] = Counter()
    for pattern in FILES:
        for path in ROOT.glob(pattern):
            if path.is_file() and path != Path(__file__):
                found[room(path)] += len(WORDS.findall(path.read_text()))
    return +found


def complaints() -> Iterator[str]:
    most = tomllib.loads(KEPT.read_text())["most"]
    for name, number in sorted(count().items()):
        if number > most.get(name, 0):
            yield f"{name}: {number} riddles (who, nobody, is told...), {most.get(name, 0)} before; name the actor"


def record() -> None:
    lines = [f'"{name}" = {number}' for name, number in sorted(count().items())]
    KEPT.write_text(
        "\n".join(["# Written by `scripts/checks words --record`; a number only falls.", "[most]", *lines, ""])
    )
