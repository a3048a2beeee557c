"""Which part may import which: the policy is pure, and bcc stays in the loader."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MONITOR = ROOT / "monitor"
POLICY = sorted((MONITOR / "policy").glob("**/*.py"))
#: What would let the policy see the world: files, clocks, sockets, processes, foreign memory, chance.
IMPURE = {
    "asyncio",
    "ctypes",
    "datetime",
    "io",
    "logging",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
}


def imported(source: str) -> Iterator[str]:
    """Every module a source imports, wherever in it, also by name at run time."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__"):
                yield str(node.args[0].value)


def complaints(source: str) -> list[str]:
    """What a policy module may not import or call."""
    found = []
    for module in imported(source):
        top = module.partition(".")[0]
        ours = module == "monitor.policy" or module.startswith("monitor.policy.")
        if top in IMPURE or not (ours or top in sys.stdlib_module_names):
            found.append(module)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("open", "print", "input", "exec", "eval", "__import__"):
                found.append(node.func.id)
    return found


@pytest.mark.parametrize("path", POLICY, ids=lambda path: path.name)
def test_the_policy_is_pure(path: Path) -> None:
    assert complaints(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "def f():\n    from time import monotonic",
        "import ctypes.util",
        "from monitor.kernel import wire",
        "from . import quantity",
        "import numpy",
        "import importlib\nimportlib.import_module('socket')",
        "open('/proc/self/stat')",
    ],
)
def test_the_check_of_purity_can_fail(source: str) -> None:
    assert complaints(source)


def test_only_the_loader_imports_bcc() -> None:
    users = {
        str(path.relative_to(ROOT))
        for path in MONITOR.glob("**/*.py")
        if any(module.partition(".")[0] == "bcc" for module in imported(path.read_text()))
    }
    assert users == {"monitor/kernel/loader.py"}
