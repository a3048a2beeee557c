"""Which part may import which: no import goes upwards or across, the policy is pure, and bcc stays in the loader."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MONITOR = ROOT / "monitor"
POLICY = sorted((MONITOR / "policy").glob("**/*.py"))
#: Part -> the parts it may import, beside itself, errors, documents and the version. Nothing imports the lab; hot and
#: side, the two processes, know nothing of each other but what `link` has.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "documents": set(),
    "owner": set(),
    "policy": set(),
    "race": {"policy"},
    "kernel": {"race"},
    "kube": set(),
    "evicted": {"kube"},
    "pods": {"kernel", "kube", "policy"},
    "link": {"kernel", "race"},
    "settings": {"kernel", "kube", "pods", "policy"},
    "sources": {"kernel", "link", "policy", "settings"},
    "actions": {"kernel", "pods", "policy"},
    "hot": {"actions", "kernel", "link", "pods", "policy", "settings", "sources"},
    "side": {"actions", "kernel", "kube", "link", "pods", "policy", "race", "settings"},
    "replay": {"hot", "policy", "race", "settings", "side"},
    "cli": {
        *("actions", "evicted", "hot", "kernel", "kube", "link", "pods", "policy", "race", "replay", "settings"),
        *("side", "sources"),
    },
    "lab": {"actions", "cli", "hot", "kernel", "link", "pods", "policy", "race", "settings", "side", "sources"},
}
ANYWHERE = {"", "errors", "documents", "owner"}
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


def imported(source: str, members: bool = False) -> Iterator[str]:
    """Every module a source imports, wherever in it, also by name at run time.

    ``members``: what `from monitor import ...` brings is a module too.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if members and module == "monitor":
                yield from (f"monitor.{alias.name}" for alias in node.names if alias.name != "__version__")
            else:
                yield module
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__"):
                yield str(node.args[0].value)


def part_of(module: str) -> str:
    """`monitor.hot.gauge` is in `hot`; the package itself, with its version, is ""."""
    return ([*module.split("."), ""])[1]


def upwards(part: str, source: str) -> list[str]:
    """Modules of ours that a source of this part imports and may not."""
    names = {name for name in imported(source, members=True) if name.split(".")[0] == "monitor"}
    return sorted(name for name in names if part_of(name) not in MAY_IMPORT[part] | ANYWHERE | {part})


@pytest.mark.parametrize("path", sorted(MONITOR.glob("**/*.py")), ids=lambda path: str(path.relative_to(MONITOR)))
def test_nothing_is_imported_from_above(path: Path) -> None:
    part = path.relative_to(MONITOR).parts[0].removesuffix(".py")
    if part != "__init__":
        assert upwards(part, path.read_text()) == []


def test_the_parts_have_an_order() -> None:
    below: set[str] = set()
    while len(below) < len(MAY_IMPORT):
        next_ones = {part for part, others in MAY_IMPORT.items() if part not in below and others <= below}
        assert next_ones, f"a circle in {set(MAY_IMPORT) - below}"
        below |= next_ones
    assert not any("lab" in others for others in MAY_IMPORT.values())
    assert "hot" not in MAY_IMPORT["side"]
    assert "side" not in MAY_IMPORT["hot"]


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("hot", "from monitor.side.view import View"),
        ("hot", "from monitor import side"),
        ("side", "def f():\n    from monitor.hot import gauge"),
        ("kernel", "import monitor.pods.model"),
        ("cli", "from monitor.lab.node import LabNode"),
        ("policy", "import importlib\nimportlib.import_module('monitor.kernel.wire')"),
    ],
)
def test_the_check_of_parts_can_fail(part: str, source: str) -> None:
    assert upwards(part, source)


def test_only_the_pass_of_the_policy_calls_synchronize() -> None:
    callers = {
        str(path.relative_to(MONITOR))
        for path in MONITOR.glob("**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and "synchronize" in (getattr(node.func, name, "") for name in ("id", "attr"))
    }
    assert callers == {"policy/eviction_pass.py"}


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


def test_no_file_is_longer_than_one_can_hold_in_the_head() -> None:
    """350 lines: what is longer has two subjects."""
    files = [path for part in ("monitor", "tests", "scripts") for path in (ROOT / part).rglob("*.py")]
    assert len(files) > 700
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {path: lines for path, lines in lengths.items() if lines > 350} == {}
