"""What came of the guests of `make test-vm`: counts, failures, and the lines that are printed of them."""

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
        return self.code == 0 and not self.why

    @property
    def result(self) -> str:
        return self.why or ("ok" if self.good else f"exit code {self.code}")


def unproven(place: Path) -> str:
    """Why an exit code of 0 is no success by a guest's results, or "": pytest is content with nothing but skips."""
    passed, failed, _ = counts(place)
    return f"{failed} failed" if failed else "" if passed else "no test passed"


def counts_of(junit: str) -> tuple[int, int, int]:
    """(passed, failed, skipped) of a junit.xml; errors count as failed, expected failures as skipped."""
    total = failed = skipped = 0
    for suite in _parsed(junit, "testsuite"):
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return total - failed - skipped, failed, skipped


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _parsed(junit: str, what: str) -> list[ElementTree.Element]:
    """Its elements of one kind; none of a file that is empty or was cut off when the guest was killed."""
    try:
        return list(ElementTree.fromstring(junit).iter(what))
    except ElementTree.ParseError:
        return []


def counts(place: Path) -> tuple[int, int, int]:
    """(passed, failed, skipped) by a guest's results; zeros when it left none."""
    return counts_of(_text(place / "junit.xml"))


def failures(place: Path) -> list[tuple[str, str]]:
    """(the test, the first line of its failure) for each that failed."""
    return [
        (_name(case), next(iter((bad.get("message") or "").splitlines()), ""))
        for case in _parsed(_text(place / "junit.xml"), "testcase")
        for bad in _problems(case)
    ]


def _name(case: ElementTree.Element) -> str:
    """As pytest takes it on its command line. (What could not be collected is a file without a test.)"""
    module, name = case.get("classname") or "", case.get("name") or ""
    return f"{module.replace('.', '/')}.py::{name}" if module else f"{name.replace('.', '/')}.py"


def _problems(case: ElementTree.Element) -> list[ElementTree.Element]:
    return [*case.iterfind("failure"), *case.iterfind("error")]


def lines(rows: Sequence[Row]) -> str:
    """The table that is printed at the end."""
    form = "{:<14} {:<20} {:<28} {:<6} {:>6} {:>6} {:>7} {:>7}  {}"
    out = [form.format("guest", "tests", "kernel", "cgroup", "passed", "failed", "skipped", "time", "result")]
    for row in rows:
        numbers = (row.passed, row.failed, row.skipped, f"{row.seconds:.0f} s")
        out.append(form.format(row.name, row.what, row.release, row.cgroup, *numbers, row.result))
    return "\n".join(out)
