"""What the documents and comments name is there: files, test functions, other documents and their headings."""

import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from monitor.kernel.rungs import NAMES as RUNGS
from monitor.lab.scenarios import SCENARIOS
from monitor.policy.releases import ERAS
from monitor.policy.signals import MEMORY_SIGNALS, SIGNALS
from monitor.race.incident import FLAGS, VERDICTS
from monitor.side.alerts.rules import NAMES as ALERTS

ROOT = Path(__file__).resolve().parents[1]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Files with comments that name others. (Those in tests/vm and `MADE_UP` make up names; CHANGELOG.md and faults.toml
#: have yesterday's.)
SOURCES = [
    *(ROOT / name for name in ("Makefile", "pyproject.toml", ".ci/run")),
    *(path for name in ("bpf", "deploy", "monitor", "scripts") for path in sorted((ROOT / name).rglob("*"))),
    *(path for path in sorted((ROOT / "tests").rglob("*.py")) if path.parent.name != "vm"),
]
MADE_UP = {"test_docs.py", "test_architecture.py", "test_mutation.py", "faults.toml"}
FILES = [path for path in (*DOCS, *SOURCES) if path.is_file() and path.suffix != ".pyc" and path.name not in MADE_UP]
#: From the root of the repository; not the end of a longer path, and no pattern.
PATH = re.compile(r"(?<![\w/.-])(?:bpf|deploy|docs|monitor|scripts|tests)/[\w./-]*\w(?![\w/]*[*{])")
DOTTED = re.compile(r"(?<![\w.])monitor((?:\.\w+)+)")
MODULE = re.compile(r"`[\w/]*?(\w+\.py)\b")
TEST = re.compile(r"(?:([\w/]*\w+\.py)|\.\.\.|`)::(test_\w+)")
#: ``file.py` (`-k "one or another"`)``: tests of that file whose names have one of the words.
SELECTION = re.compile(r"`[\w/]*?(\w+\.py)` \(`-k (?:\"([\w ]+)\"|(\w+))`\)")
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def modules() -> dict[str, list[str]]:
    """Name of a Python file -> the sources of all that are called so."""
    found: dict[str, list[str]] = {}
    for top in ("monitor", "scripts", "tests"):
        for path in (ROOT / top).rglob("*.py"):
            found.setdefault(path.name, []).append(path.read_text())
    return found


def no_such_paths(text: str) -> list[str]:
    return [path for path in PATH.findall(text) if not (ROOT / path).exists()]


def no_such_names(text: str) -> list[str]:
    """`monitor.part.module`, and `monitor.part.module.name` of what is in it."""
    found = []
    for dotted in DOTTED.findall(text):
        path, names = ROOT / "monitor", dotted.split(".")[1:]
        while names and (path / names[0]).is_dir():
            path /= names.pop(0)
        source = path / f"{names.pop(0)}.py" if names else path
        if not source.exists() or any(not re.search(rf"\b{name}\b", source.read_text()) for name in names):
            found.append(f"monitor{dotted}")
    return found


def no_such_tests(text: str) -> list[str]:
    """`file.py::test_name`, or `...::test_name` and `::test_name` of a file named before."""
    found = []
    for file, test in TEST.findall(text):
        sources = modules().get(Path(file).name, []) if file else [one for many in modules().values() for one in many]
        if not any(f"def {test}(" in source for source in sources):
            found.append(f"{file}::{test}")
    return found


def headings(path: Path) -> set[str]:
    """The anchors of a document, as GitHub makes them."""
    lines = [line.lstrip("#").strip() for line in path.read_text().splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def test_every_path_that_is_named_exists() -> None:
    bad = {name_of(path): no_such_paths(path.read_text()) for path in FILES}
    assert {name: paths for name, paths in bad.items() if paths} == {}


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_every_module_and_test_that_a_document_names_exists(path: Path) -> None:
    text = path.read_text()
    assert [name for name in MODULE.findall(text) if name not in modules()] == []
    assert no_such_names(text) == []
    assert no_such_tests(text) == []


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_every_link_leads_somewhere(path: Path) -> None:
    for file, anchor in LINK.findall(path.read_text()):
        target = path.parent / file if file else path
        assert target.exists(), file
        assert not anchor or anchor in headings(target), f"{file}#{anchor}"


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ("verdicts", (*VERDICTS, *FLAGS)),
        ("alerts", ALERTS),
        ("hooks", RUNGS),
        ("policy", ERAS),
        ("disks", tuple(signal for signal in SIGNALS if signal not in MEMORY_SIGNALS)),
    ],
)
def test_every_name_is_in_a_document(document: str, names: tuple[str, ...]) -> None:
    text = (ROOT / f"docs/{document}.md").read_text()
    assert [name for name in names if name not in text] == []


def empty_selections(text: str) -> list[str]:
    found = []
    for file, several, one in SELECTION.findall(text):
        names = re.findall(r"def (test_\w+)", "".join(modules().get(file, [])))
        words = (several or one).split(" or ")
        found += [f"{file} -k {word}" for word in words if not any(word in name for name in names)]
    return found


def test_every_selection_of_tests_selects_some() -> None:
    assert empty_selections("".join(path.read_text() for path in DOCS)) == []


def test_the_checks_can_fail() -> None:
    assert no_such_paths("see `monitor/daemon/loop.py`, tests/conftest.py and x/monitor/none.py") == [
        "monitor/daemon/loop.py"
    ]
    assert no_such_names("`monitor.policy.thresholds`, `monitor.policy.none`, `monitor.policy.pods.Pod.no_such`") == [
        "monitor.policy.none",
        "monitor.policy.pods.Pod.no_such",
    ]
    assert no_such_tests("`tests/test_docs.py::test_no`, `...::test_the_checks_can_fail`") == [
        "tests/test_docs.py::test_no"
    ]
    assert empty_selections('`tests/test_docs.py` (`-k "can_fail or no_such"`), `test_docs.py` (`-k none_has_it`)') == [
        "test_docs.py -k no_such",
        "test_docs.py -k none_has_it",
    ]


def test_counts_of_the_measurements_are_those_of_the_code() -> None:
    """What else stands there was measured, and is as old as its measurement."""
    text = (ROOT / "docs" / "measurements.md").read_text()
    rules = tomllib.loads((ROOT / "scripts" / "mutation" / "rules.toml").read_text())["rule"]
    assert re.findall(r"of the (\d+) scripted situations", text) == [str(len(SCENARIOS))]
    assert re.findall(r"noticed by the tests \| (\d+) of (\d+) \| `make mutation ARGS=rules`", text) == [
        (str(len(rules)),) * 2
    ]
    faults = tomllib.loads((ROOT / "scripts" / "mutation" / "faults.toml").read_text())["fault"]
    lanes = Counter(fault["lane"] for fault in faults)
    text = (ROOT / "docs" / "contributing.md").read_text()
    assert re.findall(r"the same,? (?:since then|noticed by races) \| \d+ of (\d+)", text) == [
        str(lanes["gate"]),
        str(lanes["races"]),
    ]
