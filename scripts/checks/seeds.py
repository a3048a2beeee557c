"""docs/seeds.md: every row has its code and its test, or plainly has none."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs/seeds.md"
HEADER = ["rule", "where", "test", "what differs, and why"]
PLAINLY = ("not built", "not ours")
#: Flags and signals that the documents name.
NAMED = (
    *("--eviction-hard", "--eviction-soft", "--eviction-soft-grace-period", "--eviction-max-pod-grace-period"),
    *("--eviction-minimum-reclaim", "eviction-pressure-transition-period", "--kernel-memcg-notification"),
    *("--kube-reserved", "--system-reserved", "--image-gc-high-threshold", "--image-gc-low-threshold"),
    *("--low-diskspace-threshold-mb", "--outofdisk-transition-frequency", "--maximum-dead-containers"),
    *("--maximum-dead-containers-per-container", "--minimum-container-ttl-duration", "housekeeping-interval"),
    *("--node-status-update-frequency", "--root-dir", "--terminated-pod-gc-threshold", "memory.available"),
    *("nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree", "pid.available"),
)


def rows(text: str) -> list[list[str]]:
    """The cells of every row of every table, without headers."""
    found = []
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            cells = [cell.strip().strip("|").strip() for cell in cells]
            if cells != HEADER and set(line) - set("|-"):
                found.append(cells)
    return found


def wrong(cells: list[str]) -> Iterator[str]:
    """What is wrong with a row."""
    if len(cells) != 4 or not all(cells):
        yield f"{len(cells)} cells"
        return
    _, where, test, differs = cells
    if where in PLAINLY:
        if test != "-" or differs == "-":
            yield f"{where}, but no reason, or a test"
        return
    for place in where.split("`, `"):
        path, colon, name = place.strip("`").partition(": ")
        last = re.escape(name.rpartition(".")[2])
        pattern = rf"\b{last}\(" if path.endswith(".c") else rf"^\s*(?:def|class) {last}\b|^{last}\b[^=\n]*="
        if not colon or not re.search(pattern, text_of(path), re.M):
            yield f"there is no {place}"
    for place in test.split("`, `"):
        path, colon, name = place.strip("`").partition("::")
        if not colon or not re.search(rf"^def {name}\(", text_of(path), re.M):
            yield f"there is no {place}"


def text_of(path: str) -> str:
    return (ROOT / path).read_text() if (ROOT / path).is_file() else ""


def complaints() -> Iterator[str]:
    text, file = DOCUMENT.read_text(), DOCUMENT.relative_to(ROOT)
    found = rows(text)
    for cells in found:
        yield from (f"{file}: {cells[0][:60]}: {problem}" for problem in wrong(cells))
    if len(re.findall(r"^## [1-5]\. ", text, re.M)) != 5 or not len(found) == len({(*one,) for one in found}) >= 90:
        yield f"{file}: five documents, and 90 rows of which none is there twice"
    yield from (f"{file}: {name} is missing" for name in NAMED if name not in text)
