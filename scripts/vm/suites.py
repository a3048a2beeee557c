"""What the guests of `make test-vm` run: which tests, and with which command."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from guest import RUNGS
from images import FAMILIES, ROOT, Family

#: One hung test must not cost the others their result: its traces are printed after this, long before the deadline.
FAULTHANDLER_S = 150
#: And then it fails. Emulated, a test takes up to ten times as long.
TIMEOUT_S = 600

#: Marks of tests that are alike on every kernel with cgroup v2, and the guest that runs them: shared out, so that no
#: guest is left alone with many of them in the end.
ONE_GUEST = dict(zip(("oldest", "previous", "newest"), (family.kernel for family in FAMILIES), strict=True))


@dataclass(frozen=True)
class Suite:
    """What one boot of a guest runs."""

    what: str
    suffix: str
    selection: str
    memory_mib: int | None = None  # None: --memory
    best_hook: bool = False  # no test of another one: each compiles programs of its own, half a minute emulated

    def on(self, family: Family, cgroup: str = "v2") -> Suite:
        """Without the tests that are alike on every kernel with cgroup v2, but for those of this one; with v1 all."""
        others = RUNGS[family.kernel][1:] if self.best_hook else ()
        selection = f"{self.selection} -k 'not ({' or '.join(others)})'" if others else self.selection
        if cgroup != "v2":
            return replace(self, selection=selection)
        elsewhere = "".join(f" and not {mark}" for mark, kernel in ONE_GUEST.items() if kernel != family.kernel)
        return replace(self, selection=selection.replace("not once ", f"not once{elsewhere} "))


#: Cannot be taken back, so it is the last thing that a guest does.
LOCKDOWN = "tests/lab/test_lockdown.py"


def files(*marks: str, but: Sequence[str] = ()) -> str:
    """The test files with one of these marks in them, but for `LOCKDOWN` and those that have one of ``but`` for all of
    their tests, as words of a command. Collecting all files takes an emulated guest most of a minute.
    """
    found = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text, name = file.read_text(), str(file.relative_to(ROOT))
        for_all = next((line for line in text.splitlines() if line.startswith("pytestmark")), "")
        if name != LOCKDOWN and any(f"mark.{mark}" in text for mark in marks):
            if not any(f"mark.{mark}" in for_all for mark in but):
                found.append(name)
    return shlex.join(found)


_EVERYWHERE = files("kernel", "live", but=("expendable", "once"))
SUITES = (
    Suite("kernel", "", f"-m '(kernel or live) and not races and not once and not expendable' {_EVERYWHERE}"),
    # So small that running out of memory takes seconds in an emulated guest too.
    Suite("global OOM, swap, lockdown", "-oom", f"-m expendable {files('expendable')} {LOCKDOWN}", 512),
)


#: With `--quick`: an emulated guest beside `make test` has a fraction of a CPU.
QUICK = Suite(
    "programs, cgroup files",
    "",
    "-m '(kernel or live) and not races and not once and not expendable' tests/kernel tests/actions tests/hold",
    best_hook=True,
)

#: With `--alike` in place of the first of them.
EVERYTHING = Suite(
    "kernel",
    "",
    f"-m '(kernel or live) and not races and not expendable' {files('kernel', 'live', but=('expendable',))}",
)


def suites(options: argparse.Namespace) -> Sequence[Suite]:
    """What every guest runs; one boot of the given memory where the caller says what."""
    if options.command or options.pytest:
        return (Suite("as asked", "", shlex.join(options.pytest)),)
    if options.quick:
        return (QUICK,)
    first = EVERYTHING if options.alike else SUITES[0]
    if options.all:
        first = replace(first, selection=first.selection.replace(" and not races", ""))
    return (first, *SUITES[1:])


def guest_command(options: argparse.Namespace, suite: Suite = SUITES[0], deadline_s: float | None = None) -> str:
    """The bash script that the guest runs."""
    if options.command:
        return f"{options.command}\n"
    before = f"{options.before}\n" if options.before else ""
    return f"{before}{pytest_command(options, '/out/junit.xml', suite, deadline_s)}\n"


def pytest_command(
    options: argparse.Namespace, junit: str, suite: Suite = SUITES[0], deadline_s: float | None = None
) -> str:
    """pytest in a guest; interrupted, which still reports and writes junit.xml, well before the guest is killed."""
    selection = shlex.join(options.pytest) if options.pytest else suite.selection
    fixed = f"-o cache_dir=/tmp/pytest-cache --color=no --durations=15 --junitxml={junit}"
    fixed += f" -o faulthandler_timeout={FAULTHANDLER_S} --timeout={TIMEOUT_S}"
    left = f"$(({(deadline_s or options.deadline) * 0.85:.0f} - SECONDS))"  # bash counts from when it was started
    limit = f"timeout --signal=INT --kill-after=60 {left}"
    return f"{limit} python3 -m pytest {fixed} --require-kernel {selection}"
