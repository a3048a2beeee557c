"""The stages of `.ci/run`, and with --everything of a release: each runs to its end whatever became of the others.

A stage's output is in build/ci/NAME.log, and printed when it ends; its junit is beside it. The exit code is 0 if every
stage passed that blocks. Of the sample of races those are a broken promise and what is lost three times of three: what
is late is reported.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build/ci"
SLOWEST = 10
#: From asking a stage to end until it is killed.
PATIENCE_S = 30.0


@dataclass
class Stage:
    """A command, how long it may take, and what came of it."""

    name: str
    command: Sequence[str]
    most_s: float
    code: int | None = None  # None: it was killed at its deadline
    seconds: float = 0.0

    @property
    def log(self) -> Path:
        return RESULTS / f"{self.name}.log"

    @property
    def result(self) -> str:
        return f"killed after {self.most_s:.0f} s" if self.code is None else f"exit code {self.code}" * bool(self.code)

    def run(self) -> None:
        began = time.monotonic()
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                self.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            try:
                self.code = process.wait(self.most_s)
            except subprocess.TimeoutExpired:
                end(process)
        self.seconds = time.monotonic() - began
        text = self.log.read_text(errors="replace")
        print(f"::: {self.name}: {shlex.join(self.command)}\n{text}::: {self.name}: {self.seconds:.0f} s", flush=True)


def end(process: subprocess.Popen[bytes]) -> None:
    """It and its children: first asked, so that they clean up, then killed."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(subprocess.TimeoutExpired, ProcessLookupError):
            os.killpg(process.pid, number)
            process.wait(PATIENCE_S)


def make(target: str, arguments: str = "") -> Sequence[str]:
    return ("make", "--no-print-directory", target, *((f"ARGS={arguments}",) if arguments else ()))


def python(*words: str) -> Sequence[str]:
    return (sys.executable, *words)


def at_once(stages: Sequence[Stage]) -> None:
    threads = [threading.Thread(target=stage.run) for stage in stages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


#: A module of the tests that leaves programs pinned fails by itself (tests/conftest.py). This is for what others left
#: (benches, demos): its state dir is gone by now. What a daemon or another session on this machine uses is not ours.
PINS = """left=
for owner in /sys/fs/bpf/outrace/*/owner; do
  [ -L "$owner" ] || continue
  state=$(readlink "$owner")
  case $state in "of /"*) ;; *) continue ;; esac
  flock -n "${owner%/owner}" true || continue
  [ -d "${state#of }" ] || left="$left $state"
done
[ -z "$left" ] || { echo "programs were left pinned:$left"; exit 1; }"""


def plan(everything: bool) -> list[list[Stage]]:
    """Stages that run beside each other, in turn. The deadlines of a change's stages are for what hangs: a usual run
    takes half of them, and CI's own limit is 90 minutes.
    """
    lint, pins = Stage("lint", make("lint"), 600), Stage("pins", ("bash", "-c", PINS), 60)
    test = make("test", f"--require-kernel --require-guests --junitxml={RESULTS}/test.xml")
    guest = f"--results {RESULTS}/guest"
    if everything:
        hours = 4 * 3600
        vm = Stage("guests", make("test-vm", f"--all --deadline 3300 {guest}"), hours)
        oracle = Stage("oracle", make("oracle"), 900)
        return [[lint], [oracle], [Stage("test", test, hours)], [vm], [Stage("races", make("races"), hours)], [pins]]
    vm = Stage("guest", make("test-vm", f"--quick --within 1700 --deadline 1600 {guest}"), 1750)
    sample = python("scripts/races.py", "--sample", "--within=150", f"--junitxml={RESULTS}/races.xml")
    return [[lint], [Stage("test", test, 1750), vm], [Stage("races", sample, 420)], [pins]]


def slowest(files: Sequence[Path]) -> Iterator[str]:
    """The tests of these junit files that took longest, a line each."""
    found = []
    for file in files:
        try:
            cases = list(ElementTree.parse(file).iter("testcase"))
        except (OSError, ElementTree.ParseError):
            continue  # of a stage that was killed
        found += [(float(case.get("time") or 0), f"{case.get('classname')}::{case.get('name')}") for case in cases]
    for seconds, name in sorted(found, reverse=True)[:SLOWEST]:
        yield f"{seconds:8.1f} s  {name}"


def closing_line(log: Path) -> str:
    """pytest's last word: how many passed."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return next((line for line in reversed(lines) if " passed" in line or " failed" in line), "no test ran")


def main() -> int:
    RESULTS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    stages = []
    for together in plan("--everything" in sys.argv[1:]):
        at_once(together)
        stages += together
    print(f"::: the {SLOWEST} slowest tests (junit of each stage: {RESULTS.relative_to(ROOT)})")
    print("\n".join(slowest(sorted(RESULTS.rglob("*.xml")))))
    print(f"::: {(time.monotonic() - began) / 60:.1f} minutes")
    for stage in stages:
        print(f"{stage.name:8} {stage.seconds:6.0f} s  {stage.result or 'passed'}")
    print(closing_line(RESULTS / "test.log"))
    return 1 if any(stage.code != 0 for stage in stages) else 0


if __name__ == "__main__":
    sys.exit(main())
