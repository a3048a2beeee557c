"""docs/architecture.md leads through the code in two ways, of `STEPS` steps: each function is there, and leads on.

A step is ``N. `file: name` text``, with ``Class.method`` for a method, and may name more functions in the same way. The
source of each names the next one. Otherwise the text names what connects the two: ``(by `word`)`` is a name that both
files use (a ring, a map, the socket); ``(wired in `file`)`` has both of them; ``(from `name`)`` goes on from an earlier
function.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/architecture.md"
ITEM = re.compile(r"(\d+)\. (.*)")
FUNCTION = re.compile(r"`([\w/.]+): ([\w.]+)`")
#: Of a record, and of a hold.
STEPS = (11, 3, 6)


class Step(NamedTuple):
    number: int
    file: str
    name: str
    text: str

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]


def ways(page: str) -> Iterator[tuple[str, list[Step]]]:
    """The heading of each numbered list, and its functions in order; an item may go on in the lines below."""
    heading, items = "", list[tuple[int, str]]()
    for line in [*page.splitlines(), "## "]:
        found = ITEM.match(line)
        if line.startswith("#"):
            if items:
                yield heading, [step for number, text in items for step in functions(number, text)]
            heading, items = line.lstrip("# "), []
        elif found:
            items.append((int(found[1]), found[2]))
        elif items and line.startswith("   "):
            items[-1] = (items[-1][0], f"{items[-1][1]} {line.strip()}")


def functions(number: int, text: str) -> Iterator[Step]:
    """Those that an item names, each with the text up to the next one."""
    _, *parts = FUNCTION.split(text)
    for file, name, after in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        yield Step(number, file, name, after)


def body(step: Step) -> str:
    """The source of a step, without its first line. Raises LookupError where there is none."""
    source = (ROOT / step.file).read_text()
    if not step.file.endswith(".py"):
        found = re.search(rf"^[\w *]*\b{step.name}\([^;]*?\) \{{\n(.*?)^\}}", source, re.M | re.S)
        if found is None:
            raise LookupError(f"{step.file} has no {step.name}")
        return found[1]
    inside: list[ast.stmt] = ast.parse(source).body
    node: ast.AST | None = None
    for name in step.name.split("."):
        node = next((one for one in inside if name in names(one)), None)
        if node is None:
            raise LookupError(f"{step.file} has no {step.name}")
        inside = getattr(node, "body", [])
    return (ast.get_source_segment(source, node) or "").partition("\n")[2]


def names(node: ast.stmt) -> set[str]:
    """What a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def has(text: str, word: str) -> bool:
    return re.search(rf"\b{word}\b", text) is not None


def gap(before: Step, step: Step) -> str:
    """Why ``before`` does not lead to ``step``; "" if it does."""
    if found := re.search(r"\(by `(\w+)`\)", before.text):
        files = [file for file in (before.file, step.file) if not has((ROOT / file).read_text(), found[1])]
        return f"{files} without {found[1]}" if files else ""
    if found := re.search(r"\(wired in `([\w/.]+)`\)", before.text):
        wiring = (ROOT / found[1]).read_text()
        owners = [before.name.partition(".")[0], step.last]
        return "" if all(has(wiring, owner) for owner in owners) else f"{found[1]} does not connect them"
    return "" if has(body(before), step.last) else f"{before.name} does not name {step.last}"


def gaps(steps: list[Step]) -> Iterator[str]:
    by_name: dict[str, Step] = {}
    before: Step | None = None
    for step in steps:
        try:
            body(step)
        except (OSError, LookupError) as error:
            yield f"{step.number}: {error}"
            continue
        if origin := re.match(r" \(from `([\w.]+)`\)", step.text):
            if origin[1] not in by_name:
                yield f"{step.number}: {step.name} comes from {origin[1]}, which is no step before it"
                continue
            before = by_name[origin[1]]._replace(text="")
        if before is not None and (why := gap(before, step)):
            yield f"{before.number} to {step.number}: {why}"
        before = by_name[step.name] = step


def complaints() -> Iterator[str]:
    page = PAGE.read_text()
    found = list(ways(page))
    numbers = [list(dict.fromkeys(step.number for step in steps)) for _, steps in found]
    if numbers != [list(range(1, steps + 1)) for steps in STEPS] or len(page.splitlines()) > 100:
        yield f"{PAGE.relative_to(ROOT)}: it is one page with ways of {STEPS} steps"
    for heading, steps in found:
        yield from (f"{PAGE.relative_to(ROOT)}: {heading}: {text}" for text in gaps(steps))
