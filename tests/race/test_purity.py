"""This part sees no clock, no file, no chance: the same record gives the same verdict, always."""

import ast
import sys
from pathlib import Path

import pytest

from tests.test_layering import IMPURE, imported

RACE = Path(__file__).parent.parent.parent / "monitor" / "race"
MODULES = sorted(RACE.glob("*.py"))


def complaints(source: str) -> list[str]:
    found = []
    for module in imported(source):
        ours = module.startswith(("monitor.policy.", "monitor.race.")) or module in ("monitor.policy", "monitor.race")
        if module.partition(".")[0] in IMPURE or not (ours or module.partition(".")[0] in sys.stdlib_module_names):
            found.append(module)
    # id() of a value differs from run to run.
    calls = [n.func.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    return found + [name for name in calls if name in ("open", "print", "input", "exec", "eval", "__import__", "id")]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_it_is_pure_and_small(path: Path) -> None:
    source = path.read_text()
    assert complaints(source) == []
    assert source.count("\n") <= 400


@pytest.mark.parametrize("source", ["import time", "from monitor.side import message_handler", "import numpy", "id(1)"])
def test_the_check_can_fail(source: str) -> None:
    assert complaints(source)


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 10
