"""What came of the guests of `make test-vm`: counts, failures and the lines that are printed of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True)
class Row:
    """A guest's line of the matrix."""

    name: str
    what: str
    kernel: str
    release: str
    cgroup: str
    memory_mib: int
    passed: int
    failed: int
    skipped: int
    seconds: float
    code: int | None
    why: str

    @property
    def good(self) -> bool:
        return self.code == 0

    @property
    def result(self) -> str:
        return self.why or ("ok" if self.good else f"exit code {self.code}")


def counts_of(junit: str) -> tuple[int, int, int]:
    """(passed, failed, skipped) of a junit.xml; errors count as failed, expected failures as skipped."""
    total = failed = skipped = 0
    for suite in ElementTree.fromstring(junit).iter("testsuite"):
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return total - failed - skipped, failed, skipped


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def counts(file: Path) -> tuple[int, int, int]:
    """`counts_of` a file; zeros when the guest left none."""
    text = _text(file)
    return counts_of(text) if text else (0, 0, 0)


def failures(file: Path) -> list[str]:
    """The failed tests in a junit.xml, each with the first line of what it said."""
    text = _text(file)
    found = []
    for case in ElementTree.fromstring(text).iter("testcase") if text else ():
        for bad in (*case.iterfind("failure"), *case.iterfind("error")):
            message = next(iter((bad.get("message") or "").splitlines()), "")
            found.append(f"{case.get('classname')}::{case.get('name')}: {message}")
    return found


def lines(rows: Sequence[Row]) -> str:
    """The table that is printed at the end."""
    form = "{:<10} {:<11} {:<28} {:<6} {:>6} {:>6} {:>7} {:>7}  {}"
    out = [form.format("guest", "tests", "kernel", "cgroup", "passed", "failed", "skipped", "time", "result")]
    for row in rows:
        numbers = (row.passed, row.failed, row.skipped, f"{row.seconds:.0f} s")
        out.append(form.format(row.name, row.what, row.release, row.cgroup, *numbers, row.result))
    return "\n".join(out)
