"""`make test-vm`: run the project's tests on Debian's kernels, each in virtual machines of its own."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from chosen import choose_by_change
from commands import VmError, say, stop_building
from guest import Options, Outcome, Stopped, boot, end_all, obstacle, stopping
from images import ROOT, Builder, Family, Image, choose, install_tools
from report import Row, counts, failures, lines, unproven
from suites import Suite, guest_command, suites

CACHE = Path(os.environ.get("OUTRACE_VM_CACHE", ROOT / ".vm"))
#: An emulated guest is bound by its CPU: one more than there are makes all of them late.
JOBS = os.cpu_count() or 1
#: A guest that is begun with less than this left of `--within` could only be killed in the middle.
LEAST_S = 120.0
DEFAULT_MEMORY = 1024
EPILOG = """\
Without --kernel and --all one kernel, chosen by the commit's hash; all of them where the last commits touched bpf/ or
monitor/kernel. What follows `--` goes to pytest in the guest, instead of what is run else: the tests marked `kernel` or
`live` that are neither `races` nor `once`, and then, in a guest of 512 MiB that may be lost, those marked `expendable`:
  make test-vm ARGS="--kernel 6.1 -- tests/kernel -k oom"
Results are in .vm/results/NAME: console.log, junit.xml, dmesg.txt, exit-code, and .vm/results/matrix.json for all.
Exit code 0: every guest ran its tests and they passed. 1: tests failed, or a guest died, hung or could not be made.
2: wrong usage. 3: none could be made."""


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
    made.add_argument(
        "--memory",
        type=int,
        default=DEFAULT_MEMORY,
        metavar="MIB",
        help=f"memory of a guest (default {DEFAULT_MEMORY})",
    )
    made.add_argument("--cpus", type=int, default=2, help="CPUs of a guest (default 2)")
    made.add_argument(
        "--jobs", type=int, default=JOBS, metavar="N", help=f"guests at a time (default: one a CPU, {JOBS})"
    )
    made.add_argument(
        "--deadline", type=float, default=2400, metavar="S", help="a guest that runs longer is killed (2400)"
    )
    made.add_argument(
        "--within", type=float, default=float("inf"), metavar="S", help="seconds for everything, images included"
    )
    made.add_argument("--append", default="", metavar="WORDS", help="more words for the kernel command line")
    made.add_argument(
        "--accel", choices=("auto", "kvm", "tcg"), default="auto", help="auto: kvm if a probe boot succeeds"
    )
    made.add_argument(
        "--command", metavar="SH", help="run this in the guest, in the project's directory, instead of pytest"
    )
    made.add_argument("--before", metavar="SH", help="run this in the guest before pytest")
    made.add_argument("--all", action="store_true", help="all kernels")
    made.add_argument(
        "--quick",
        action="store_true",
        help="one kernel, by the commit's hash; only tests of cgroup files and of the programs of its best hook",
    )
    made.add_argument(
        "--alike", action="store_true", help="also tests that are alike on every kernel (`once`, `newest` and its like)"
    )
    made.add_argument("--results", type=Path, metavar="DIR", help="where results go (default .vm/results)")
    made.add_argument("--build-only", action="store_true", help="build the images that are missing and stop")
    made.add_argument("--rebuild", action="store_true", help="build images anew, with today's packages")
    made.add_argument("pytest", nargs="*", help=argparse.SUPPRESS)
    return made


def prefixed(name: str) -> Callable[[str], None]:
    def show(line: str) -> None:
        sys.stdout.write(f"[{name}] {line}\n")  # in one piece: other guests write too
        sys.stdout.flush()

    return show


def clear(results: Path) -> None:
    """Remove an earlier run's results, so that none is taken for this run's."""
    for name in (
        "console.log",
        "output.log",
        "junit.xml",
        "dmesg.txt",
        "exit-code",
    ):
        (results / name).unlink(missing_ok=True)


def one(image: Image, suite: Suite, options: argparse.Namespace, results: Path, ends: float) -> Row:
    """Boot one guest and say what came of it. ``ends``: time.monotonic() at which all must be over."""
    family = image.family
    name = name_of(family, suite, options)
    memory = suite.memory_mib or options.memory
    place = results / name
    clear(place)

    def row(code: int | None, why: str, seconds: float = 0.0) -> Row:
        said = (name, suite.what, family.kernel, image.release, options.cgroup, memory)
        return Row(*said, *counts(place), seconds, code, why)

    left = ends - time.monotonic()
    if left < LEAST_S:
        return row(None, f"not begun: only {max(0, left):.0f} s were left of --within")
    deadline = min(options.deadline, left)
    how = Options(memory, options.cpus, options.cgroup, options.append, deadline, options.accel)
    outcome = boot(
        image, guest_command(options, suite.on(family, options.cgroup), deadline), how, place, prefixed(name)
    )
    if outcome.code is None:
        explain(name, outcome, place)
    why = unproven(place) if outcome.code == 0 and not options.command else outcome.why
    return row(outcome.code, why, outcome.seconds)


def name_of(family: Family, suite: Suite, options: argparse.Namespace) -> str:
    """What the guest is called: in the table, and its directory of results."""
    return f"{family.kernel}{'' if options.cgroup == 'v2' else '-v1'}{suite.suffix}"


def without_guests(family: Family, options: argparse.Namespace, results: Path, why: str) -> list[Row]:
    """The lines of a kernel that there is no image of."""
    rows = []
    for suite in suites(options):
        name, memory = name_of(family, suite, options), suite.memory_mib or options.memory
        clear(results / name)
        said = (name, suite.what, family.kernel, "", options.cgroup, memory)
        rows.append(Row(*said, 0, 0, 0, 0.0, None, why.splitlines()[0]))
    return rows


def explain(name: str, outcome: Outcome, place: Path) -> None:
    """Show the end of the console of a guest that died or hung."""
    tail = [f"  {name} | {line}" for line in outcome.console]
    say("\n".join([f"{name} {outcome.why}. The end of its console ({place / 'console.log'}):", *tail]))


def possible(options: argparse.Namespace) -> list[Family]:
    """The families that were asked for and can be had; the others are named with the reason."""
    families: Sequence[Family] = choose(options.kernel)
    if not (options.kernel or options.all or options.cgroup == "v1"):
        families, why = choose_by_change(one=options.quick)
        say(why)
    for family in families:
        if why := obstacle(family, options.cgroup):
            say(f"{family.kernel} is left out: {why}")
    found = [family for family in families if not obstacle(family, options.cgroup)]
    if not found:
        raise VmError(f"{obstacle(families[0], options.cgroup)}: --cgroup {options.cgroup} is for 6.1")
    return found


def guests(options: argparse.Namespace, families: Sequence[Family], results: Path, ends: float) -> list[Row]:
    """Build images, one for each CPU at a time, and boot guests as soon as theirs is there, `--jobs` at a time.

    What takes longest on every kernel first, so that no CPU is left without work in the end.
    """
    first, *others = suites(options)
    waiting: dict[tuple[int, int], Future[Row]] = {}
    unbuilt: list[Row] = []
    with ThreadPoolExecutor(max(1, options.jobs)) as pool, ThreadPoolExecutor(os.cpu_count() or 1) as builders:
        try:
            building = {
                builders.submit(Builder(families[k], CACHE).get, options.rebuild): k for k in range(len(families))
            }
            images: dict[int, Image] = {}
            for built in as_completed(building):
                k = building[built]
                try:
                    images[k] = built.result()
                except VmError as error:  # its mirror may be down; the other kernels have theirs
                    say(f"{families[k].kernel}: {error}")
                    unbuilt += without_guests(families[k], options, results, str(error))
                    if len(unbuilt) == len(families) * (1 + len(others)):
                        raise
                    continue
                if not options.build_only:
                    waiting[k, 0] = pool.submit(one, images[k], first, options, results, ends)
            for n, suite in enumerate(others if waiting else (), 1):
                for k, image in images.items():
                    waiting[k, n] = pool.submit(one, image, suite, options, results, ends)
            return [*(waiting[key].result() for key in sorted(waiting)), *unbuilt]
        except BaseException:  # Ctrl-C and SIGTERM too
            for threads in (builders, pool):
                threads.shutdown(wait=False, cancel_futures=True)
            stop_building()
            end_all()
            raise


def revision(root: Path = ROOT) -> dict[str, Any]:
    """Which code runs: its ``commit``, and ``dirty``, whether files that are not ignored differ from it.

    {} where there is no git checkout, or no git, to tell.
    """
    if not (root / ".git").exists() or not shutil.which("git"):
        return {}
    git = ("git", "-c", "safe.directory=*", "-C", str(root))
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)
    if head.returncode or changes.returncode:  # no commit yet, or no repository after all
        return {}
    return {"commit": head.stdout.strip(), "dirty": bool(changes.stdout.strip())}


def matrix(options: argparse.Namespace) -> int:
    began = time.monotonic()
    code = revision()
    families = possible(options)
    install_tools()
    results = options.results or CACHE / "results"
    rows = guests(options, families, results, began + options.within)
    if options.build_only:
        return 1 if rows else 0  # those that could not be built
    seconds = time.monotonic() - began
    if code and revision() != code:
        code["dirty"] = True  # files were edited meanwhile, and every guest takes what is there when it boots
    record = {**code, "seconds": round(seconds), "rows": [asdict(row) for row in rows]}
    results.mkdir(parents=True, exist_ok=True)
    (results / "matrix.json").write_text(json.dumps(record, indent=1) + "\n")
    for row in rows:
        for name, message in failures(results / row.name):
            print(f"{row.name}: FAILED {name}: {message}")
    print(lines(rows))
    if not options.command:
        sums = [sum(getattr(row, what) for row in rows) for what in ("passed", "failed", "skipped")]
        print("{} passed, {} failed, {} skipped, in {:.0f} s".format(*sums, seconds))
    return 0 if all(row.good for row in rows) else 1


def others_files(error: Exception) -> str:
    """The error in one line. Root makes the images; the user that boots them has to be allowed to write beside them."""
    if not isinstance(error, PermissionError):
        return str(error)
    remedy = f"chown -R {CACHE} to yourself, or name another place with OUTRACE_VM_CACHE=DIR"
    return f"{error.filename}: {error.strerror}; {remedy}"


def exit_code(name: str, work: Callable[[], int]) -> int:
    """What ``work`` returns; 3 with a line for what it cannot do, 130 and 143 where it is interrupted or ended."""
    try:
        with stopping():
            return work()
    except (VmError, PermissionError) as error:
        print(f"outrace: error: {name}: {others_files(error)}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    except Stopped:
        return 143


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code("test-vm", partial(matrix, parser().parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
