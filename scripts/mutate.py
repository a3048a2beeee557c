#!/usr/bin/env python3
"""Break the rules of the eviction policy one at a time: the project's own tests must notice every one.

Each mutation is made in a copy of the tree and the policy's tests run there until the first failure. Exit code 1 if a
mutation survives, 2 if the check itself cannot be trusted: the tests fail without any mutation, a text to replace is
not there exactly once, or a mutation cannot even be imported.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/policy", "tests/cli/test_conformance.py")
# It measures, and asserts nothing about rules.
SKIPPED = "tests/policy/test_bench_policy.py"
RECORDED = ("tests/policy/test_recorded.py", "tests/cli/test_conformance.py")
COPIED = ("monitor", "tests", "pyproject.toml")
#: Seconds for one run, which takes some 10. A rule broken so that tests hang is noticed too.
PATIENCE_S = 240

# Nothing is learnt from a smaller counterexample here, and the same examples give the same answer every time.
PLUGIN = """
from hypothesis import HealthCheck, Phase, settings
settings.register_profile(
    "mutation", deadline=None, database=None, derandomize=True, max_examples=40,
    phases=(Phase.explicit, Phase.generate), suppress_health_check=[HealthCheck.too_slow],
)
"""


class Result(NamedTuple):
    """`code` is pytest's exit code (None: it hung); `said` the first failure."""

    code: int | None
    said: str


def run_tests(tree: Path, skipped: Iterable[str]) -> Result:
    """The policy's tests in ``tree`` but those ``skipped``, until the first failure."""
    (tree / "mutation_profile.py").write_text(PLUGIN)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "mutation_profile"]
    command += ["--hypothesis-profile=mutation", *(name for name in TESTS if name not in skipped)]
    command += [f"--ignore={name}" for name in skipped]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Result(None, f"nothing after {PATIENCE_S} s")
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return Result(done.returncode, failures[0] if failures else (done.stdout + done.stderr).strip()[-300:])


def copied(tree: Path) -> Path:
    """What the tests need of the project, in ``tree``."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, tree / name)
    return tree


def misplaced(mutation: Mutation, tree: Path) -> str:
    """Why ``mutation`` cannot be made; empty if it can."""
    file = tree / "monitor" / "policy" / mutation.file
    found = file.read_text().count(mutation.old) if file.exists() else 0
    return "" if found == 1 else f"{mutation.old!r} is {found} times in monitor/policy/{mutation.file}, not once"


def tried(mutation: Mutation, source: Path, skipped: Iterable[str]) -> Result:
    """The tests with one rule broken, in a copy of ``source``."""
    with tempfile.TemporaryDirectory(prefix="outrace-mutation-") as directory:
        tree = Path(directory) / "tree"
        shutil.copytree(source, tree, symlinks=True)
        file = tree / "monitor" / "policy" / mutation.file
        file.write_text(file.read_text().replace(mutation.old, mutation.new))
        return run_tests(tree, skipped)


def main() -> int:
    """Make every mutation (or those whose rule contains the text given) and say who noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="?", default="", help="only rules that contain this text")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="how many at a time (default 2)")
    parser.add_argument(
        "--without-recorded", action="store_true", help="leave the recorded answers of a kubelet out of the tests"
    )
    options = parser.parse_args()
    skipped = (SKIPPED, *(RECORDED if options.without_recorded else ()))
    chosen = [mutation for mutation in MUTATIONS if options.only in mutation.rule]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outrace-mutation-") as directory:
        # One picture of the tree for all: it may be worked on meanwhile.
        source = copied(Path(directory) / "source")
        wrong = [complaint for mutation in chosen if (complaint := misplaced(mutation, source))]
        untouched = run_tests(source, skipped)
        if untouched.code != 0:
            wrong.append(f"the tests fail without any mutation: {untouched.said}")
        if wrong or not chosen:
            print("\n".join(wrong) or f"no rule contains {options.only!r}", file=sys.stderr)
            return 2
        survived = broken = 0
        with ThreadPoolExecutor(max(1, options.jobs)) as pool:
            for mutation, result in zip(chosen, pool.map(lambda m: tried(m, source, skipped), chosen), strict=True):
                noticed = result.code in (1, None)
                survived += result.code == 0
                broken += not noticed and result.code != 0
                verdict = "caught  " if noticed else "SURVIVED" if result.code == 0 else "BROKEN  "
                print(f"{verdict} {mutation.rule} ({mutation.file})", f"         {result.said}", sep="\n", flush=True)
    print(f"{len(chosen)} rules broken, {len(chosen) - survived - broken} noticed, {survived} survived, in", end=" ")
    print(f"{time.monotonic() - began:.0f} s")
    return 2 if broken else 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
