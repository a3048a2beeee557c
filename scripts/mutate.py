#!/usr/bin/env python3
"""Break the code, one change at a time: do the project's own tests notice?

WHAT is a subject of scripts/mutants.py (hold, changes, evict, verdict, claims, codec, sweep) or a file: its
mutants are generated. `rules`: rules of the policy, broken. `faults`: mended faults, brought back. Default: all.

The tool changes a copy of the tree. A generated mutant runs the tests that execute its lines, in a PID namespace and
cgroups of its own. Exit code 1: a rule or a fault survives, or --compare finds a loss. 2: the result cannot be trusted,
because tests fail without any mutation or a mutation cannot be made.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from mutants import SUBJECTS, Mutant, by_hand, files_of, generated

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ROOT / "scripts" / "mutation"
NOT_COPIED = (".git", ".venv", ".vm", "dist", "build", "__pycache__", ".*_cache", ".hypothesis")
#: What is slow decides no sooner.
LEFT_OUT = ("slow", "cluster", "expendable", "races")
#: It measures, and asserts nothing about rules.
BENCH = "tests/policy/test_bench_policy.py"
#: They measure too, or are about guests and packages; those in tests/ itself read documents.
SKIPPED = (BENCH, "tests/lab/", "tests/vm/", "tests/deploy/")
#: Seconds for one run by hand. A rule broken so that tests hang is noticed too.
PATIENCE_S = 600
#: Seconds for a file of tests that is recorded: tests of daemons wait, in vain, until they can pin their programs.
RECORD_S = 60
#: PID 1 of the namespace. In place of the root of each hierarchy it has a cgroup of its own, $1. Where that cannot be
#: (cgroup v2), and in bpffs, it can only read.
SANDBOX = """own=$1; shift
for m in $(awk '$2 ~ "^/sys/fs/" && $3 ~ "^(cgroup2?|bpf)$" { print $2 }' /proc/self/mounts)
do { [ -e "$m/cgroup.procs" ] && mkdir "$m/$own" && echo $$ > "$m/$own/cgroup.procs" &&
mount --bind "$m/$own" "$m"; } 2>/dev/null || mount -o remount,bind,ro "$m" || exit 97
done; exec unshare --cgroup "$@" """
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", SANDBOX, "sh")


class Result(NamedTuple):
    """``verdict``: noticed, survived, unreached, races, stale or broken. ``by``: the test, or why."""

    verdict: str
    by: str


def remove_cgroups(own: str) -> None:
    """Those of a sandbox that has ended, when it has: a frozen process ends once it is thawed."""
    for hierarchy in Path("/sys/fs/cgroup").glob(f"*/{own}"):
        for state in hierarchy.rglob("freezer.state"):
            state.write_text("THAWED")
        remove = ["find", hierarchy, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+"]
        for _ in range(200):
            if not hierarchy.exists() or subprocess.run(remove, stderr=subprocess.DEVNULL, check=False).returncode == 0:
                break
            time.sleep(0.01)


def pytest_in(
    tree: Path,
    arguments: Iterable[str],
    *,
    alone: bool = True,
    races: bool = False,
    patience: float = PATIENCE_S,
    **more: str,
) -> Result:
    """What the tests in ``tree`` report. ``alone``: they reach no process and no cgroup of others."""
    known = (tree / "pyproject.toml").read_text()
    marks = [name for name in LEFT_OUT if f'"{name}:' in known and (alone or (name == "races" and not races))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "reached", f"--ignore={BENCH}"]
    command += ["--hypothesis-profile=mutation", f"-m={' and '.join(f'not {name}' for name in marks)}", *arguments]
    own = f"outrace-mutation-{tree.parent.name}-{tree.name}"
    command = [*UNSHARE, own, *command] if alone and os.geteuid() == 0 else command
    environment = {**os.environ, **more, "PYTHONPATH": f"{tree}:{PLUGIN}"}
    with tempfile.TemporaryFile("w+") as output:
        files: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT}
        run = subprocess.Popen(command, cwd=tree, env=environment, start_new_session=True, **files)
        try:
            code = run.wait(patience)
        except subprocess.TimeoutExpired:
            return Result("noticed", f"nothing after {patience:.0f} s")
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
            remove_cgroups(own)
        output.seek(0)
        report = output.read()
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", report, re.MULTILINE)
    # Only a test with a name has noticed it: pytest, or the sandbox, may fail by itself.
    verdict = {0: "survived", 5: "unreached"}.get(code, "noticed" if failures else "broken")
    return Result(verdict, failures[0] if failures else report.strip().rpartition("\n")[2])


class Trees:
    """Copies of the tree, one for each job. The tree itself may change meanwhile."""

    def __init__(self, directory: Path, jobs: int) -> None:
        self.source = directory / "source"
        shutil.copytree(ROOT, self.source, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        self._free: queue.Queue[Path] = queue.Queue()
        self._as_it_is: dict[str, str] = {}
        for number in range(jobs):
            self._free.put(shutil.copytree(self.source, directory / f"tree{number}", symlinks=True))

    def run(self, texts: Mapping[str, str], arguments: Iterable[str], **more: Any) -> Result:
        """The tests where the files of ``texts`` have that text."""
        tree = self._free.get()
        try:
            self._write(tree, texts)
            return pytest_in(tree, arguments, **more)
        finally:
            self._write(tree, {name: (self.source / name).read_text() for name in texts})
            self._free.put(tree)

    def unchanged(self, test: str, run: Callable[..., Result]) -> str:
        """The verdict of a test on the code as it is, once for all mutants."""
        if test not in self._as_it_is:
            self._as_it_is[test] = run({}, [test]).verdict
        return self._as_it_is[test]

    def _write(self, tree: Path, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            (tree / name).write_text(text)
            # Python knows a compiled file by second and size of its source: those of one mutant are those of the next.
            for compiled in (tree / name).parent.glob(f"__pycache__/{Path(name).stem}.*.pyc"):
                compiled.unlink()


@cache
def tests_of(root: Path, files: frozenset[str], distance: int) -> list[str]:
    """Files of tests that import any of ``files``, by so many steps at most."""
    paths = {str(p.relative_to(root)): p for part in ("monitor", "tests") for p in (root / part).rglob("*.py")}
    direct = dict[str, set[str]]()
    for name, path in paths.items():
        names = set[str]()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        direct[name] = {f"{module.replace('.', '/')}.py" for module in names} & paths.keys()
    reaching = set(files)
    for _ in range(distance):
        reaching |= {name for name, imported in direct.items() if imported & reaching}
    return sorted(name for name in reaching if re.match("tests/.*/test_", name) and not name.startswith(SKIPPED))


def executed(test: str, trees: Trees, files: frozenset[str]) -> dict[str, dict[str, Any]]:
    """Test of a file -> seconds, whether it passes and is marked `kernel`, and which lines of ``files`` it executes."""
    with tempfile.NamedTemporaryFile(prefix="outrace-reached-") as file:
        targets = {"MUTATION_REACHED": file.name, "MUTATION_TARGETS": ":".join(files)}
        result, found = trees.run({}, [test], patience=RECORD_S, **targets), dict[str, dict[str, Any]]()
        for line in Path(file.name).read_text().splitlines():
            ((name, more),) = json.loads(line).items()
            now = found.setdefault(name, {**more, "seconds": 0.0, "lines": set()})
            now["lines"].update(more["lines"])
            now |= {"seconds": now["seconds"] + more["seconds"], "passed": now["passed"] and more["passed"]}
    if result.verdict == "broken" and not found:
        found[test] = {"seconds": 0.0, "passed": False, "kernel": False, "lines": set()}
    return found


def tried(mutant: Mutant, trees: Trees, known: Mapping[str, dict[str, Any]], races: bool, distance: int) -> Result:
    """Whether the tests notice ``mutant``."""
    if mutant.stale:
        return Result("stale", mutant.stale)
    if mutant.lane == "races" and not races:
        return Result("races", "make races")
    alone = mutant.subject != "faults"
    run = partial(trees.run, alone=alone, races=races)
    if mutant.tests:
        there = [test for test in mutant.tests if (trees.source / test.partition("::")[0]).exists()]
        there, patience = there or tests_of(trees.source, frozenset(mutant.texts), distance), PATIENCE_S
    else:
        lines = {f"{file}:{line}" for file in mutant.texts for line in mutant.lines}
        able = {name: test["seconds"] for name, test in known.items() if test["passed"] and test["lines"] & lines}
        there, patience = sorted(able, key=lambda name: able[name]), 20 + 5 * sum(able.values())
    if not there:
        return Result("unreached", "no test executes it")
    result = run(mutant.texts, ["-x", *there], patience=patience)
    test = result.by.partition("[")[0]
    if result.verdict != "noticed" or not test.startswith("tests/"):  # else it hangs
        return result
    if mutant.tests and "::" not in test:
        return Result("broken", f"cannot be imported: {test}")
    if "::" in test and trees.unchanged(test, run) != "survived":
        return Result("broken", f"fails without any mutation: {test}")
    return result


def chosen(root: Path, options: argparse.Namespace, wanted: frozenset[str]) -> list[Mutant]:
    """The mutants; LookupError where there is no file."""
    found = list[Mutant]()
    for name in options.what:
        files = files_of(root, name)
        if name in ("rules", "faults"):
            found += by_hand(root, name)
        elif not files:
            raise LookupError(f"{name}: no such file, and none of {', '.join((*SUBJECTS, 'rules', 'faults'))}")
        for file in files:
            found += generated(root, name, file, options.budget, wanted)
    return [mutant for mutant in found if options.only in mutant.key]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=[*SUBJECTS, "rules", "faults"], metavar="WHAT")
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutants whose name contains TEXT")
    parser.add_argument("--budget", type=int, default=20, help="generated mutants of each file [default: 20]")
    parser.add_argument("--distance", type=int, default=2, help="tests so many imports away at most [default: 2]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel runs [default: the CPUs]")
    parser.add_argument("--races", action="store_true", help="run tests of the lane `races` too")
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help="list what OLD noticed and this run does not")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser.parse_args()


def trial(options: argparse.Namespace, wanted: frozenset[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """What came of each mutant, and the tests that fail without any. LookupError where there is no such file."""
    known, entries = dict[str, dict[str, Any]](), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="outrace-mutation-") as directory, ThreadPoolExecutor(options.jobs) as pool:
        trees = Trees(Path(directory), options.jobs)
        mutants = chosen(trees.source, options, wanted)
        files = frozenset(file for mutant in mutants if mutant.lines for file in mutant.texts)
        attempt = partial(tried, trees=trees, known=known, races=options.races, distance=options.distance)
        try:
            near = tests_of(trees.source, files, options.distance)
            for more in pool.map(partial(executed, trees=trees, files=files), near):
                known |= more
            for m, result in zip(mutants, pool.map(attempt, mutants), strict=True):
                entry = {"key": m.key, "subject": m.subject, "where": m.where, "lane": m.lane, **result._asdict()}
                entries.append(entry)
                if options.output == "table" and (result.verdict != "noticed" or m.tests):
                    print(f"{result.verdict:9} {m.where}: {m.key}\n          {result.by}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return entries, [name for name, test in known.items() if not test["passed"] and not test["kernel"]]


def main() -> int:
    """Make the mutants and report which ones the tests notice."""
    options, began = parsed(), time.monotonic()
    before = json.loads(options.compare.read_text())["mutants"] if options.compare else []
    try:
        entries, failing = trial(options, frozenset(entry["key"] for entry in before))
    except LookupError as wrong:
        print(wrong.args[0], file=sys.stderr)
        return 2
    counts = {name: Counter(e["verdict"] for e in entries if e["subject"] == name) for name in options.what}
    if options.output == "json":
        print(json.dumps({"mutants": entries, "counts": counts, "failing": failing}, indent=1))
    else:
        for name, verdicts in counts.items():
            print(f"{name}: {', '.join(f'{number} {verdict}' for verdict, number in sorted(verdicts.items()))}")
    now = {entry["key"]: entry["verdict"] for entry in entries}
    found = [(entry["key"], now.get(entry["key"], "stale")) for entry in before if entry["verdict"] == "noticed"]
    gone = [key for key, verdict in found if verdict not in ("noticed", "stale")]
    absent = len([key for key, verdict in found if verdict == "stale"])
    lines = [f"fails without any mutation, and is left out: {name}" for name in failing]
    lines += [f"no longer noticed: {key}" for key in gone]
    lines += [f"{len(entries)} mutants in {time.monotonic() - began:.0f} s"]
    print(*lines, f"{len(gone)} no longer noticed, {absent} of code that is gone", sep="\n", file=sys.stderr)
    by_hand = {entry["verdict"] for entry in entries if entry["subject"] in ("rules", "faults")}
    if failing or "broken" in now.values() or "stale" in by_hand:
        return 2
    return 1 if gone or by_hand & {"survived", "unreached"} else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
