"""The mutants that `mutate.py` makes: generated from the syntax tree, or read from rules.toml and faults.toml."""

from __future__ import annotations

import ast
import hashlib
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

DATA = Path(__file__).resolve().parent / "mutation"
POLICY_TESTS = ("tests/policy", "tests/cli/test_conformance.py")
#: Files below monitor/, by what they are about.
SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "hold": ("policy/hold*.py", "hold/*.py"),
    "changes": ("actions/changes.py", "actions/*journal*.py", "actions/*ledger*.py"),
    "evict": ("actions/evict.py", "hot/evictor.py"),
    "verdict": ("race/verdict.py", "race/flags.py", "race/margins.py"),
    "claims": ("pods/claims.py",),
    "codec": ("race/codec.py", "link/channel.py"),
    "sweep": ("kernel/sweep*.py", "hot/sweep*.py", "actions/sweep*.py"),
}


class Mutant(NamedTuple):
    """``texts`` replaces files of the tree. ``key`` has no line numbers: two runs are compared by it."""

    key: str
    subject: str
    where: str
    texts: Mapping[str, str]
    #: Lines of the file of a generated mutant: only a test that executes one of them can notice it.
    lines: range = range(0)
    #: Tests that run instead.
    tests: tuple[str, ...] = ()
    lane: str = "gate"
    #: Why the mutant cannot be made.
    stale: str = ""


def _found(root: Path, file: str, old: str) -> str:
    """The file that has ``old`` once: ``file``, else any other."""
    here = [root / file] if (root / file).exists() and old in (root / file).read_text() else []
    paths = here or [path for part in ("monitor", "bpf") for path in sorted((root / part).rglob("*.[pch]*"))]
    paths = [path for path in paths if path.suffix in (".py", ".c", ".h") and not path.is_symlink()]
    found = [path for path in paths for _ in range(path.read_text().count(old))]
    if len(found) != 1:
        raise LookupError(f"{old.strip()!r} is {len(found)} times in {file}, not once")
    return str(found[0].relative_to(root))


def _edits(entry: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(file, old, new): of a rule, or of each part of a fault's diff after a line `@@ FILE`."""
    if "diff" not in entry:
        yield entry["file"], entry["old"], entry["new"]
        return
    for part in entry["diff"].strip("\n").removeprefix("@@ ").split("\n@@ "):
        file, *lines = (line or " " for line in part.split("\n"))
        yield file, *("".join(line[1:] + "\n" for line in lines if line[0] in kinds) for kinds in (" -", " +"))


def by_hand(root: Path, subject: str) -> list[Mutant]:
    """``rules`` of the policy that are broken, or ``faults`` that were mended once and come back."""
    found = list[Mutant]()
    for entry in tomllib.loads((DATA / f"{subject}.toml").read_text())[subject.removesuffix("s")]:
        texts, stale, where = dict[str, str](), "", ""
        for file, old, new in _edits(entry):
            try:
                where = where or file
                name = _found(root, file, old)
                texts[name] = texts.get(name, (root / name).read_text()).replace(old, new)
            except LookupError as error:
                stale = str(error)
        key = entry["rule"] if subject == "rules" else f"{entry['commit']} {entry['fault']}"
        tests = (*entry.get("tests", POLICY_TESTS),)
        found.append(Mutant(key, subject, where, texts, tests=tests, lane=entry.get("lane", "gate"), stale=stale))
    return found


_PAIRS: tuple[tuple[type[ast.AST], type[ast.AST]], ...] = (
    *((ast.Lt, ast.GtE), (ast.Lt, ast.LtE), (ast.Gt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)),
    *((ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv)),
)
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGGERS = {"log", "_log", "LOG", "logger"}
#: Texts of errors and logs are free, and positions inside an f-string are wrong before Python 3.12.
_LEFT_ALONE = (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)
#: Fields of nodes that only say what type something has, or of what kind it is.
_TYPES = ("annotation", "returns", "decorator_list", "bases")


def _others(kind: ast.AST) -> Iterator[ast.AST]:
    """The opposites of an operator."""
    yield from (b() for a, b in _PAIRS if type(kind) is a)
    yield from (a() for a, b in _PAIRS if type(kind) is b)


def _changed(node: ast.AST) -> Iterator[str]:
    """Every text that may stand in place of ``node``."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=others):
            yield from (ast.unparse(ast.Compare(left, [other], others)) for other in _others(op))
        case ast.BoolOp(op=op, values=values):
            yield from (ast.unparse(ast.BoolOp(other, values)) for other in _others(op))
        case ast.BinOp(left=left, op=op, right=right):
            yield from (ast.unparse(ast.BinOp(left, other, right)) for other in _others(op))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield ast.unparse(operand)
        case ast.Constant(value=bool() | None as value):
            yield "0" if value is None else str(not value)
        case ast.Constant(value=int() as value):
            yield from dict.fromkeys((str(value + 1), str(max(0, value - 1)), "0"))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _SWAPPED:
            yield ast.unparse(ast.Call(ast.Name(_SWAPPED[name]), args, keywords))
        case ast.Return(value=ast.expr()):
            yield "return None"
        case ast.Expr(value=ast.Call(func=function)) if ast.unparse(function).partition(".")[0] not in _LOGGERS:
            yield "pass"


def _sites(node: Any, name: str, begins: int) -> Iterator[tuple[Any, str, str, int]]:
    """What may be changed in ``node`` and below: a node, its new text, where it is, the first line of its statement."""
    if isinstance(node, _LEFT_ALONE) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
        return
    begins = node.lineno if isinstance(node, ast.stmt) else begins
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        name = f"{name}.{node.name}".lstrip(".")
    yield from ((node, new, name, begins) for new in _changed(node))
    if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        yield (node.test, f"not {ast.unparse(node.test)}", name, begins)
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in _TYPES:
                yield from _sites(child, name, begins)


def _essence(source: str) -> object:
    """What ``source`` compiles to, without lines and columns; None if it does not, or with a warning."""

    def bare(code: CodeType) -> object:
        constants = [bare(value) if isinstance(value, CodeType) else repr(value) for value in code.co_consts]
        return code.co_code, code.co_names, code.co_varnames, code.co_exceptiontable, constants

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return bare(compile(source, "", "exec"))
        except SyntaxError:
            return None


def _spliced(source: str, node: Any, new: str) -> str:
    """``source`` with ``new`` for ``node``, as many lines as before."""
    lines = source.encode().splitlines(keepends=True)
    first, last = node.lineno - 1, node.end_lineno - 1
    head, tail, more = lines[first][: node.col_offset], lines[last][node.end_col_offset :], last - first
    text = new + "\\\n" * more if isinstance(node, ast.stmt) else f"({new}{chr(10) * more})"
    lines[first : last + 1] = [head + text.encode() + tail]
    return b"".join(lines).decode()


def generated(root: Path, subject: str, file: str, budget: int, wanted: frozenset[str]) -> Iterator[Mutant]:
    """``budget`` mutants of a file, and those whose key is ``wanted``: always the same ones of the same code."""
    source = (root / file).read_text()
    untouched, seen, mutants = _essence(source), Counter[str](), list[Mutant]()
    for node, new, name, begins in _sites(ast.parse(source), "", 0):
        key = f"{subject} {name}: {ast.unparse(node)} -> {new}"
        seen[key] += 1
        key += f" #{seen[key]}" if seen[key] > 1 else ""
        lines = range(begins, node.end_lineno + 1)
        mutants.append(Mutant(key, subject, f"{file}:{node.lineno}", {file: _spliced(source, node, new)}, lines))
    mutants.sort(key=lambda mutant: hashlib.sha256(mutant.key.encode()).digest())
    for mutant in mutants:
        if (budget > 0 or mutant.key in wanted) and _essence(mutant.texts[file]) not in (untouched, None):
            budget -= 1
            yield mutant


def files_of(root: Path, subject: str) -> list[str]:
    """The files of ``subject``, which may be a file itself."""
    if subject not in SUBJECTS:
        return [subject] if (root / subject).is_file() else []
    return sorted({str(p.relative_to(root)) for glob in SUBJECTS[subject] for p in (root / "monitor").glob(glob)})
