"""Which part may import which: none from above or across; policy and race are pure; bcc stays in the loader."""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MONITOR = ROOT / "monitor"
#: Part -> the parts it may import, beside itself and `ANYWHERE`. Nothing imports the lab; hot and side, the two
#: processes, know nothing of each other but what `link` has. A part imports only those above it: there is no circle.
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
    "sources": {"kernel", "link", "pods", "policy", "settings"},
    "actions": {"kernel", "pods", "policy"},
    "hold": {"actions", "kernel", "link", "policy", "settings", "sources"},
    "hot": {"actions", "hold", "kernel", "link", "pods", "policy", "settings", "sources"},
    "side": {"actions", "hold", "kernel", "kube", "link", "pods", "policy", "race", "settings"},
    "cli": {
        *("actions", "evicted", "hold", "hot", "kernel", "kube", "link", "pods", "policy", "race"),
        *("settings", "side", "sources"),
    },
    "lab": {"actions", "cli", "hot", "kernel", "link", "pods", "policy", "race", "settings", "side", "sources"},
}
#: Parts in which modules still import each other in a circle. This list only gets shorter.
WITH_CIRCLES = {"policy"}
ANYWHERE = {"", "errors", "documents", "owner"}
#: What would let a pure part see the world: files, clocks, sockets, processes, foreign memory, chance.
IMPURE = {
    *("asyncio", "ctypes", "io", "logging", "mmap", "multiprocessing", "os", "pathlib", "random"),
    *("secrets", "select", "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time"),
}
IMPURE_CALLS = ("open", "print", "input", "exec", "eval", "__import__")
#: The same in a part whose answers are kept and compared: id() of a value differs from run to run.
IMPURE_CALLS_OF = {"policy": IMPURE_CALLS, "race": (*IMPURE_CALLS, "id")}
#: Methods that ask a clock.
CLOCKS = ("now", "today", "utcnow")
#: Name of a function or module -> the only file that may use it.
ONE_USER = {"bcc": "monitor/kernel/loader.py"}
#: What is longer has two subjects. (At 350 lines 130 files of monitor/ had one importer: halves of an idea.)
MOST_LINES = {"monitor": 450, "scripts": 350, "tests": 450}


def imported(source: str) -> Iterator[str]:
    """Every module a source imports, wherever in it, also by name at run time, and as a member of `monitor`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            members = module == "monitor"
            yield from (f"monitor.{alias.name}" for alias in node.names) if members else (module,)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            if called(node) in ("import_module", "__import__"):
                yield str(node.args[0].value)


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def part_of(module: str) -> str:
    """`monitor.sources.gauge` is in `sources`; the package itself, with its version, is ""."""
    part = ([*module.split("."), ""])[1]
    return "" if part == "__version__" else part


def upwards(part: str, source: str) -> Iterator[str]:
    """Modules of ours that a source of this part imports and may not."""
    for name in imported(source):
        if name.split(".")[0] == "monitor" and part_of(name) not in MAY_IMPORT[part] | ANYWHERE | {part}:
            yield f"{part} may not import {name}"


def impure(part: str, source: str) -> Iterator[str]:
    """What a module of a pure part imports or calls and may not. (`upwards` has which parts of ours.)"""
    for module in imported(source):
        top = module.partition(".")[0]
        if top in IMPURE or top not in {"monitor", *sys.stdlib_module_names}:
            yield f"a pure part may not import {module}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS_OF[part]:
            yield f"a pure part may not call {node.func.id}"
        elif isinstance(node, ast.Call) and called(node) in CLOCKS:
            yield f"a pure part may not call {called(node)}"


def alone(file: str, source: str) -> Iterator[str]:
    """What this file uses that another one has for itself."""
    calls = {called(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}
    used = calls | {module.partition(".")[0] for module in imported(source)}
    yield from (f"only {owner} uses {name}" for name, owner in ONE_USER.items() if name in used and file != owner)


def circles(imports: Mapping[str, set[str]]) -> set[str]:
    """Of these modules and what they import, those in a circle, and those between two circles."""
    left = set(imports)
    while True:
        ends = {name for name in left if not imports[name] & left}
        ends |= left - {other for name in left for other in imports[name]}
        if not ends:
            return left
        left -= ends


def order() -> Iterator[str]:
    below: set[str] = set()
    for part, others in MAY_IMPORT.items():
        if not others <= below:
            yield f"{part} imports a part that stands below it in MAY_IMPORT: {others - below}"
        below.add(part)


def complaints() -> Iterator[str]:
    yield from (f"{Path(__file__).relative_to(ROOT)}: {text}" for text in order())
    imports: dict[str, set[str]] = {}
    for path in sorted(MONITOR.rglob("*.py")):
        file, source = str(path.relative_to(ROOT)), path.read_text()
        part = path.relative_to(MONITOR).parts[0].removesuffix(".py")
        if part not in WITH_CIRCLES:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            imports[name] = set(imported(source)) - {name}
        found = [*alone(file, source), *(impure(part, source) if part in IMPURE_CALLS_OF else ())]
        found += () if part == "__init__" else upwards(part, source)
        yield from (f"{file}: {text}" for text in found)
    if found_circles := circles(imports):
        yield f"monitor: a circle of imports: {', '.join(sorted(found_circles))}"
    for top, most in MOST_LINES.items():
        for path in sorted((ROOT / top).rglob("*.py")):
            if (lines := len(path.read_text().splitlines())) > most:
                yield f"{path.relative_to(ROOT)}: {lines} lines; {most} at most"
