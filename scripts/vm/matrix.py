"""`make test-vm`: run the project's tests on Debian's kernels, each in a virtual machine of its own."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

from guest import Options, Outcome, Stopped, boot, check, stopping
from images import ROOT, Builder, Family, Image, VmError, choose, install_tools, say

CACHE = Path(os.environ.get("OUTRACE_VM_CACHE", ROOT / ".vm"))
#: One hung test must not cost the others their result: its traces are printed after this, long before the deadline.
FAULTHANDLER_S = 150
SELECTION = "-m 'kernel and not slow'"
#: Its exit code is the kernel's affair; what it says belongs to the results.
DOCTOR = "python3 -m monitor.cli.main doctor\n"
EPILOG = """\
What follows `--` goes to pytest in the guest, instead of `-m "kernel and not slow"`:
  make test-vm ARGS="--kernel 6.1 -- tests/kernel -k oom"
Results are in .vm/results/NAME: console.log, junit.xml, dmesg.txt, exit-code, and .vm/results/matrix.json for all.
Exit code 0: every guest ran its tests and they passed. 1: tests failed, or a guest died or hung. 2: wrong usage.
3: no guest could be made."""


@dataclass(frozen=True)
class Row:
    """A guest's line of the matrix."""

    name: str
    kernel: str
    release: str
    cgroup: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    code: int | None
    why: str

    @property
    def good(self) -> bool:
        return self.code == 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="make test-vm ARGS=...",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--kernel", action="append", default=[], metavar="K", help="6.1, 6.12, 7.2 or a suite; more with commas"
    )
    made.add_argument("--cgroup", choices=("v1", "v2"), default="v2", help="hierarchy of the guest (v1: only 6.1)")
    made.add_argument("--memory", type=int, default=1024, metavar="MIB", help="memory of a guest (default 1024)")
    made.add_argument("--cpus", type=int, default=2, help="CPUs of a guest (default 2)")
    made.add_argument(
        "--deadline", type=float, default=1500, metavar="S", help="a guest that runs longer is killed (1500)"
    )
    made.add_argument("--append", default="", metavar="WORDS", help="more words for the kernel command line")
    made.add_argument(
        "--accel", choices=("auto", "kvm", "tcg"), default="auto", help="auto: kvm if a probe boot succeeds"
    )
    made.add_argument(
        "--command", metavar="SH", help="run this in the guest, in the project's directory, instead of pytest"
    )
    made.add_argument("--results", type=Path, metavar="DIR", help="where results go (default .vm/results)")
    made.add_argument("--build-only", action="store_true", help="build the images that are missing and stop")
    made.add_argument("--rebuild", action="store_true", help="build images anew, with today's packages")
    made.add_argument("pytest", nargs="*", help=argparse.SUPPRESS)
    return made


def guest_command(options: argparse.Namespace) -> str:
    """The bash script that the guest runs."""
    if options.command:
        return f"{options.command}\n"
    return f"{DOCTOR}exec {pytest_command(options, '/out/junit.xml')}\n"


def pytest_command(options: argparse.Namespace, junit: str) -> str:
    """pytest in a guest; interrupted, which still reports and writes junit.xml, well before the guest is killed."""
    selection = shlex.join(options.pytest) if options.pytest else SELECTION
    fixed = f"-p no:cacheprovider --color=no --junitxml={junit} -o faulthandler_timeout={FAULTHANDLER_S}"
    limit = f"timeout --signal=INT --kill-after=60 {options.deadline * 0.85:.0f}"
    return f"{limit} python3 -m pytest {fixed} --require-kernel {selection}"


def counts_of(junit: str) -> tuple[int, int, int]:
    """(passed, failed, skipped) of a junit.xml; errors count as failed, expected failures as skipped."""
    total = failed = skipped = 0
    for suite in ElementTree.fromstring(junit).iter("testsuite"):
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return total - failed - skipped, failed, skipped


def counts(file: Path) -> tuple[int, int, int]:
    """`counts_of` a file; zeros when the guest left none."""
    return counts_of(file.read_text()) if file.exists() and file.stat().st_size else (0, 0, 0)


def table(rows: Sequence[Row]) -> str:
    lines = [
        f"{'guest':<9} {'kernel':<28} {'cgroup':<6} {'passed':>6} {'failed':>6} {'skipped':>7} {'time':>7}  result"
    ]
    for row in rows:
        result = row.why or ("ok" if row.good else f"exit code {row.code}")
        lines.append(
            f"{row.name:<9} {row.release:<28} {row.cgroup:<6} {row.passed:>6} {row.failed:>6} {row.skipped:>7} "
            f"{row.seconds:>5.0f} s  {result}"
        )
    return "\n".join(lines)


def prefixed(name: str) -> Callable[[str], None]:
    def show(line: str) -> None:
        print(f"[{name}] {line}", flush=True)

    return show


def clear(results: Path) -> None:
    """Remove an earlier run's results, so that none is taken for this run's."""
    for name in ("console.log", "output.log", "junit.xml", "dmesg.txt", "exit-code"):
        (results / name).unlink(missing_ok=True)


def one(family: Family, image: Image, options: argparse.Namespace, results: Path) -> Row:
    """Boot one guest and say what came of it."""
    name = family.kernel if options.cgroup == "v2" else f"{family.kernel}-v1"
    place = results / name
    clear(place)
    how = Options(options.memory, options.cpus, options.cgroup, options.append, options.deadline, options.accel)
    check(how, image)
    outcome = boot(image, guest_command(options), how, place, prefixed(name))
    if outcome.code is None:
        explain(name, outcome, place)
    passed, failed, skipped = counts(place / "junit.xml")
    return Row(
        name, family.kernel, image.release, options.cgroup, passed, failed, skipped,
        outcome.seconds, outcome.code, outcome.why,
    )  # fmt: skip


def explain(name: str, outcome: Outcome, place: Path) -> None:
    """Show the end of the console of a guest that died or hung."""
    say(f"{name} {outcome.why}. The end of its console ({place / 'console.log'}):")
    for line in outcome.console:
        print(f"  {name} | {line}", file=sys.stderr)


def matrix(options: argparse.Namespace) -> int:
    families = choose(options.kernel)
    install_tools()
    results = options.results or CACHE / "results"
    rows: list[Row] = []
    for family in families:
        image = Builder(family, CACHE).get(options.rebuild)
        if not options.build_only:
            rows.append(one(family, image, options, results))
    if options.build_only:
        return 0
    (results / "matrix.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print(table(rows))
    if not options.command:
        sums = [sum(row.passed for row in rows), sum(row.failed for row in rows), sum(row.skipped for row in rows)]
        print(f"{sums[0]} passed, {sums[1]} failed, {sums[2]} skipped")
    return 0 if all(row.good for row in rows) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        with stopping():
            return matrix(options)
    except VmError as error:
        print(f"outrace: error: test-vm: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    except Stopped:
        return 143


if __name__ == "__main__":
    sys.exit(main())
