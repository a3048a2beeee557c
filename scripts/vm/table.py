"""The table of kernels in docs/measurements.md, written from what the last whole `make test-vm` found.

    python3 scripts/vm/table.py [.vm/results/matrix.json]      the same as make test-vm ARGS=--table does in the end

The results are kept beside the tests, in tests/data/vm/matrix.json, so that a test can hold the table against them.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commands import VmError
from images import ROOT

PAGE = ROOT / "docs/measurements.md"
RECORD = ROOT / "tests/data/vm/matrix.json"
BEGIN = "<!-- kernels: written by scripts/vm/table.py from tests/data/vm/matrix.json -->"
END = "<!-- kernels: end -->"


def cell(row: Mapping[str, Any]) -> str:
    """What came of one guest, in a word or two."""
    if row["code"] is None:
        return f"{row['why'].partition(':')[0] or 'no result'}"
    parts = [f"{row['passed']} passed"]
    if row["failed"]:
        parts.append(f"**{row['failed']} failed**")
    if row["skipped"]:
        parts.append(f"{row['skipped']} skipped")
    if row["code"] and not row["failed"]:
        parts.append(f"exit code {row['code']}")
    return ", ".join(parts)


def render(record: Mapping[str, Any]) -> str:
    """The table in Markdown: a line for every kernel that ran, a column for every suite of tests; and the commit that
    ran, where the record has one (it has none of a run outside a git checkout).
    """
    rows: list[Mapping[str, Any]] = record["rows"]
    suites = list(dict.fromkeys(row["what"] for row in rows))
    kernels = list(dict.fromkeys((row["release"], row["cgroup"]) for row in rows))
    memory = {row["what"]: row["memory_mib"] for row in rows}
    head = ["kernel", "cgroup", *(f"{what} tests ({memory[what]} MiB)" for what in suites)]
    out = [_line(head), _line(["---"] * len(head))]
    for release, cgroup in kernels:
        cells = {row["what"]: cell(row) for row in rows if (row["release"], row["cgroup"]) == (release, cgroup)}
        out.append(_line([f"Linux {release}", cgroup, *(cells.get(what, "-") for what in suites)]))
    if record.get("commit"):
        changed = ", with changes that were not committed" if record.get("dirty") else ""
        out += ["", f"Of commit `{record['commit']}`{changed}."]
    return "\n".join(out)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def written(page: str, record: Mapping[str, Any]) -> str:
    """``page`` with the table of ``record`` between its two marks. Raises VmError where a mark is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise VmError(
            f"docs/measurements.md has no lines {BEGIN!r} and {END!r}: put them where the table of kernels belongs"
        )
    return f"{before}{BEGIN}\n{render(record)}\n{END}{after}"


def update(results: Path, page: Path = PAGE, kept: Path = RECORD) -> None:
    """Keep the results of a whole run as the record and write the table. Raises VmError for a partial run."""
    try:
        record = json.loads(results.read_text())
    except (FileNotFoundError, ValueError) as error:
        raise VmError(f"{results}: {error}: run make test-vm first") from None
    if not record["whole"]:
        raise VmError(
            f"{results} is of a part of the matrix, or a guest gave no result: run make test-vm without other options"
        )
    new = written(page.read_text(), record)
    kept.parent.mkdir(parents=True, exist_ok=True)
    if results.resolve() != kept.resolve():
        shutil.copyfile(results, kept)
    page.write_text(new)


if __name__ == "__main__":
    try:
        update(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".vm/results/matrix.json")
    except VmError as problem:
        sys.exit(f"outrace: error: table: {problem}")
