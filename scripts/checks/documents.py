"""What documents and comments name is there: files, modules, tests, other documents and their headings."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from monitor.kernel.charging import NAMES as RUNGS
from monitor.lab.scenarios import SCENARIOS
from monitor.policy.releases import ERAS
from monitor.policy.signals import KUBELET_SIGNALS, MEMORY_SIGNALS
from monitor.race.incident import FLAGS, VERDICTS

ROOT = Path(__file__).resolve().parents[2]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: What outrace promises, each with its test.
PROMISES = ROOT / "tests/data/promises.toml"
#: Files with comments that name others. (Those in tests/vm and `MADE_UP` make up names; CHANGELOG.md and faults.toml
#: have yesterday's.)
SOURCES = [
    *(ROOT / name for name in ("Makefile", "pyproject.toml", ".ci/run")),
    *(path for name in ("bpf", "deploy", "monitor", "scripts") for path in sorted((ROOT / name).rglob("*"))),
    *(path for path in sorted((ROOT / "tests").rglob("*.py")) if path.parent.name != "vm"),
]
MADE_UP = {"test_checks.py", "test_mutation.py", "faults.toml"}
FILES = [
    path
    for path in (*DOCS, PROMISES, *SOURCES)
    if path.is_file() and path.suffix != ".pyc" and path.name not in MADE_UP
]
#: Document -> names that it has to have.
EVERY_NAME = {
    "verdicts": (*VERDICTS, *FLAGS),
    "hooks": RUNGS,
    "policy": ERAS,
    "disks": tuple(signal for signal in KUBELET_SIGNALS if signal not in MEMORY_SIGNALS),
}
#: From the root of the repository; not the end of a longer path, and no pattern.
PATH = re.compile(r"(?<![\w/.-])(?:bpf|deploy|docs|monitor|scripts|tests)/[\w./-]*\w(?![\w/]*[*{])")
DOTTED = re.compile(r"(?<![\w.])monitor((?:\.\w+)+)")
MODULE = re.compile(r"`[\w/]*?(\w+\.py)\b")
TEST = re.compile(r"(?:([\w/]*\w+\.py)|\.\.\.|`)::(test_\w+)")
#: ``file.py` (`-k "one or another"`)``: tests of that file whose names have one of the words.
SELECTION = re.compile(r"`[\w/]*?(\w+\.py)` \(`-k (?:\"([\w ]+)\"|(\w+))`\)")
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")


@cache
def modules() -> dict[str, str]:
    """Name of a Python file -> the sources of all that are called so."""
    found: dict[str, str] = {}
    for top in ("monitor", "scripts", "tests"):
        for path in (ROOT / top).rglob("*.py"):
            found[path.name] = found.get(path.name, "") + path.read_text()
    return found


@cache
def tests() -> dict[str, set[str]]:
    """The same -> the names of its tests; "" has those of all."""
    found = {name: set(re.findall(r"def (test_\w+)\(", source)) for name, source in modules().items()}
    return found | {"": set().union(*found.values())}


def no_such_path(text: str) -> Iterator[str]:
    yield from (path for path in PATH.findall(text) if not (ROOT / path).exists())


def no_such_name(text: str) -> Iterator[str]:
    """Modules (`file.py`, `monitor.part.module.name`), tests (`file.py::test_name`) and selections (`-k word`)."""
    yield from (name for name in MODULE.findall(text) if name not in modules())
    for dotted in DOTTED.findall(text):
        path, names = ROOT / "monitor", dotted.split(".")[1:]
        while names and (path / names[0]).is_dir():
            path /= names.pop(0)
        source = path / f"{names.pop(0)}.py" if names else path
        if not source.exists() or any(not re.search(rf"\b{name}\b", source.read_text()) for name in names):
            yield f"monitor{dotted}"
    for file, test in TEST.findall(text):
        if test not in tests().get(Path(file).name, ()):
            yield f"{file}::{test}"
    for file, several, one in SELECTION.findall(text):
        for word in (several or one).split(" or "):
            if not any(word in name for name in tests().get(file, ())):
                yield f"{file} -k {word}"


def headings(path: Path) -> set[str]:
    """The anchors of a document, as GitHub makes them."""
    lines = [line.lstrip("#").strip() for line in path.read_text().splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def dead_link(path: Path) -> Iterator[str]:
    for file, anchor in LINK.findall(path.read_text()):
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in headings(target)):
            yield f"{file}#{anchor}"


def wrong_count() -> Iterator[str]:
    """Counts in measurements.md are those of the code. (The other figures were measured.)"""
    data = ROOT / "scripts/mutation"
    rules = len(tomllib.loads((data / "rules.toml").read_text())["rule"])
    lanes = Counter(fault["lane"] for fault in tomllib.loads((data / "faults.toml").read_text())["fault"])
    for document, pattern, numbers in (
        ("measurements", r"of the (\d+) scripted situations", [len(SCENARIOS)]),
        ("measurements", r"noticed by the tests \| \d+ of (\d+) \| `make mutation ARGS=rules`", [rules]),
        ("measurements", r"by the gate; by races \| \d+ of (\d+)", [lanes["gate"]]),
        ("measurements", r"by the gate; by races \|[^;|]+; \d+ of (\d+)", [lanes["races"]]),
    ):
        if (found := re.findall(pattern, (ROOT / f"docs/{document}.md").read_text())) != [str(n) for n in numbers]:
            yield f"docs/{document}.md: {pattern}: {found} and not {numbers}"


def complaints() -> Iterator[str]:
    for path in FILES:
        yield from (f"{path.relative_to(ROOT)}: there is no {name}" for name in no_such_path(path.read_text()))
    yield from (f"{PROMISES.relative_to(ROOT)}: there is no {name}" for name in no_such_name(PROMISES.read_text()))
    for path in DOCS:
        file = path.relative_to(ROOT)
        yield from (f"{file}: there is no {name}" for name in no_such_name(path.read_text()))
        yield from (f"{file}: the link {link} leads nowhere" for link in dead_link(path))
    for document, names in EVERY_NAME.items():
        text = (ROOT / f"docs/{document}.md").read_text()
        yield from (f"docs/{document}.md: {name} is missing" for name in names if name not in text)
    yield from wrong_count()
