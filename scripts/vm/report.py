"""What came of the guests of `make test-vm`: counts, failures, flaky tests, and the lines that are printed of them.

As a script, `report.py DIR`: whether what failed in DIR/junit.xml passed in DIR/again.xml, is known to be flaky
(tests/flaky.toml) but for one test, and nothing else was wrong: DIR/junit.code has to be 1, pytest's exit code for
failed tests.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

FAILED = "FAILED"
#: It failed, was run once more, and passed: a machine on a busy one is late by seconds at times.
FLAKY = "FLAKY (failed, then passed):"
#: It waited: what it changes cannot be taken back, and a test before it had failed and was to have its second try.
POSTPONED = "POSTPONED (a test before it had failed; then passed):"
#: How such a test begins what it says (tests/lab/test_lockdown.py).
POSTPONING = "Failed: postponed: "
#: The tests that may be flaky: `[[test]]` with `name` (without parameters: with any), `reason` and `since`.
KNOWN = Path(__file__).resolve().parents[2] / "tests/flaky.toml"
MOST_KNOWN = 3
#: So many tests of one run may be flaky without being listed: named, counted and to be mended, but no reason to hold
#: back what 550 others in a guest, or 7,000 on a shared virtual machine, agree with.
MOST_UNKNOWN = 1


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
    again: int  # of those: the second time, after they had failed
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


def unproven(place: Path, most_unknown: int = 0) -> str:
    """Why an exit code of 0 is no success by a guest's results ("" if it is one): the second run of what failed may
    have skipped it, pytest is content with nothing but skips, and a flaky test has to be a known one (or one of
    ``most_unknown``).
    """
    passed, _, failed, _ = counts(place)
    if failed:
        return f"{failed} failed, and did not pass the second time"
    return unknown(place, most=most_unknown) if passed else "no test passed"


def unknown(place: Path, known: Iterable[str] | None = None, most: int = 0) -> str:
    """The flaky tests that are not ``known`` (tests/flaky.toml), and what to do about them; "" if they are no more
    than ``most``.
    """
    allowed = set(known_flaky() if known is None else known)
    flaky = dict.fromkeys(name for what, name, _ in failures(place) if what == FLAKY)
    names = [name for name in flaky if not {name, name.partition("[")[0]} & allowed]
    if len(names) <= most:
        return ""
    return f"flaky, and not in tests/flaky.toml: {', '.join(names)}; mend it, or add it there with the reason"


def known_flaky(text: str | None = None) -> list[str]:
    """The names in tests/flaky.toml. Raises ValueError where there are too many, or one has no reason or date."""
    tests = tomllib.loads(KNOWN.read_text() if text is None else text).get("test", [])
    for test in tests:
        if missing := {"name", "reason", "since"} - {key for key, value in test.items() if value}:
            raise ValueError(
                f"tests/flaky.toml: {test.get('name', 'a test')} has no {' and no '.join(sorted(missing))}"
            )
    if len(tests) > MOST_KNOWN:
        raise ValueError(f"tests/flaky.toml: {len(tests)} tests; at most {MOST_KNOWN} may be flaky: mend one")
    return [test["name"] for test in tests]


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


def counts(place: Path) -> tuple[int, int, int, int]:
    """(passed, of those flaky, failed, skipped) by a guest's results; zeros when it left none."""
    passed, failed, skipped = counts_of(_text(place / "junit.xml"))
    found = [what for what, *_ in failures(place)]
    flaky, mended = found.count(FLAKY), len(found) - found.count(FAILED)
    return passed + mended, flaky, failed - mended, skipped


def failures(place: Path) -> list[tuple[str, str, str]]:
    """(`FAILED`, `FLAKY` or `POSTPONED`, the test, the first line of what it said) for each that failed at first."""
    second = _parsed(_text(place / "again.xml"), "testcase")
    mended = {_name(case) for case in second if not _problems(case) and case.find("skipped") is None}
    found = []
    for case in _parsed(_text(place / "junit.xml"), "testcase"):
        for bad in _problems(case):
            message = next(iter((bad.get("message") or "").splitlines()), "")
            passed = POSTPONED if POSTPONING in message else FLAKY
            found.append((passed if _name(case) in mended else FAILED, _name(case), message))
    return found


def _name(case: ElementTree.Element) -> str:
    """As pytest takes it on its command line. (What could not be collected is a file without a test.)"""
    module, name = case.get("classname") or "", case.get("name") or ""
    return f"{module.replace('.', '/')}.py::{name}" if module else f"{name.replace('.', '/')}.py"


def _problems(case: ElementTree.Element) -> list[ElementTree.Element]:
    return [*case.iterfind("failure"), *case.iterfind("error")]


def lines(rows: Sequence[Row]) -> str:
    """The table that is printed at the end."""
    form = "{:<14} {:<20} {:<28} {:<6} {:>6} {:>5} {:>6} {:>7} {:>7}  {}"
    out = [form.format("guest", "tests", "kernel", "cgroup", "passed", "flaky", "failed", "skipped", "time", "result")]
    for row in rows:
        numbers = (row.passed, row.again, row.failed, row.skipped, f"{row.seconds:.0f} s")
        out.append(form.format(row.name, row.what, row.release, row.cgroup, *numbers, row.result))
    return "\n".join(out)


def main(place: Path) -> int:
    for what, name, message in failures(place):
        print(f"{what} {name}: {message}")
    _, flaky, failed, _ = counts(place)
    print(f"{flaky} flaky, {failed} failed")
    code = _text(place / "junit.code").strip() or "none: it did not come to its end"
    why = (
        unproven(place, MOST_UNKNOWN)
        if code == "1"
        else f"the first run's exit code is not 1 (failed tests) but {code}"
    )
    if why:
        print(why, file=sys.stderr)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
