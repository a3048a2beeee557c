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


class Mutation(NamedTuple):
    """In ``file`` (below monitor/policy) ``old``, which stands there once, becomes ``new``: that breaks ``rule``."""

    rule: str
    file: str
    old: str
    new: str


MUTATIONS = (
    Mutation(
        "a threshold is met strictly below its value",
        "synchronize.py",
        "if needed > seen.available:",
        "if needed >= seen.available:",
    ),
    Mutation("a grace is over at its end, not after it", "synchronize.py", "if now_ns >= due:", "if now_ns > due:"),
    Mutation(
        "one healthy pass starts the grace anew",
        "synchronize.py",
        "since: list[int | None] = [None] * len(first)",
        "since: list[int | None] = list(first)",
    ),
    Mutation(
        "a condition ends with the transition period, not after it",
        "synchronize.py",
        "now_ns - when >= period",
        "now_ns - when > period",
    ),
    Mutation(
        "a soft threshold raises its condition at once, before its grace is over",
        "synchronize.py",
        "_conditions(config, state, merged, now_ns, deadline)",
        "_conditions(config, state, list(met), now_ns, deadline)",
    ),
    Mutation(
        "the same observation twice does not act twice",
        "synchronize.py",
        "stamp == 0 or stamp > old)",
        "stamp == 0 or stamp >= old)",
    ),
    Mutation(
        "an observation without a time always acts",
        "synchronize.py",
        "old is None or stamp == 0 or stamp > old",
        "old is None or stamp > old",
    ),
    Mutation(
        "min reclaim lets go when value and min reclaim are available, not a byte later",
        "synchronize.py",
        "_reclaimed(rule, seen.capacity) > seen.available",
        "_reclaimed(rule, seen.capacity) >= seen.available",
    ),
    Mutation(
        "min reclaim in percent is added to the value",
        "synchronize.py",
        "(0 if reclaim is None else reclaim.amount(capacity))",
        "0",
    ),
    Mutation(
        "min reclaim holds only what has acted",
        "synchronize.py",
        "merged = _merged(rules, state.met,",
        "merged = _merged(rules, tuple(range(len(rules))),",
    ),
    Mutation("hard before soft", "synchronize.py", "not threshold.hard, signal", "threshold.hard, signal"),
    Mutation(
        "memory before everything else",
        "synchronize.py",
        "return (signal not in MEMORY_SIGNALS,",
        "return (signal in MEMORY_SIGNALS,",
    ),
    Mutation("a critical pod is passed over", "synchronize.py", "if not candidate.critical:", "if candidate.uid:"),
    Mutation(
        "a soft eviction gets the smaller of the pod's grace and the maximum",
        "synchronize.py",
        "min(config.max_pod_grace_s, victim.grace_period_s)",
        "max(config.max_pod_grace_s, victim.grace_period_s)",
    ),
    Mutation("a hard eviction gets one second", "synchronize.py", "HARD_GRACE_S = 1\n", "HARD_GRACE_S = 0\n"),
    Mutation(
        "a clean-up must clear min reclaim as well",
        "eviction_pass.py",
        "seen.capacity, with_reclaim=True):",
        "seen.capacity, with_reclaim=False):",
    ),
    Mutation(
        "a pass that evicts for local storage evicts for nothing else",
        "eviction_pass.py",
        "        if evictions:\n",
        "        if not pods:\n",
    ),
    Mutation(
        "the first pass does not look at the container file system",
        "eviction_pass.py",
        "replace(later, thresholds=in_place)",
        "replace(later, thresholds=thresholds)",
    ),
    Mutation(
        "critical pods are spared by limits of local storage too",
        "eviction_pass.py",
        "message is not None and not config.era.is_critical(pod)",
        "message is not None",
    ),
    Mutation("usage strictly exceeds the request", "ranking.py", "usage > allowed else", "usage >= allowed else"),
    Mutation("pods without stats go first", "ranking.py", "return (0, priority, 0, 0,", "return (3, priority, 0, 0,"),
    Mutation(
        "lower priority goes first",
        "ranking.py",
        "return (group, priority, request - usage,",
        "return (group, -priority, request - usage,",
    ),
    Mutation(
        "more above the request goes first",
        "ranking.py",
        "priority, request - usage,",
        "priority, usage - request,",
    ),
    Mutation("more processes go first", "victims.py", "else (1, -processes, 0)", "else (1, processes, 0)"),
    Mutation(
        "process ids: priority before missing stats",
        "victims.py",
        "return (pod.priority or 0, *order,",
        "return (order[0], pod.priority or 0, *order[1:],",
    ),
    Mutation(
        "inodes are held against the request for bytes",
        "victims.py",
        'amount = request if resource == "memory" else',
        'amount = request if resource != "ephemeral-storage" else',
    ),
    Mutation(
        "nodefs does not count writable layers that are on a dedicated imagefs",
        "layout.py",
        "return (LOGS, VOLUMES) if",
        "return (ROOTFS, LOGS, VOLUMES) if",
    ),
    Mutation(
        "containerfs copies the thresholds of the disk the containers are on",
        "layout.py",
        "_IMAGEFS_SIGNALS if layout.image_fs and not layout.container_fs else",
        "_IMAGEFS_SIGNALS if layout.image_fs else",
    ),
    Mutation("an emptyDir may be filled to its limit", "local_storage.py", "used[name] > most:", "used[name] >= most:"),
    Mutation(
        "with a dedicated imagefs a container's limit is about its logs alone",
        "local_storage.py",
        "(LOGS,) if layout.image_fs else",
        "(LOGS,) if layout.split else",
    ),
    Mutation(
        "the allocatable copy is made of hard thresholds only",
        "thresholds.py",
        "if t.signal == MEMORY and t.hard]",
        "if t.signal == MEMORY]",
    ),
    Mutation("100% switches a threshold off", "thresholds.py", 'text in ("0%", "100%")', 'text in ("0%",)'),
    Mutation(
        "a percentage is rounded to 32 bits", "gosyntax.py", "return _float32(number / 100)", "return number / 100"
    ),
    Mutation(
        "an amount rounds up to whole units",
        "quantity.py",
        "return -(-self.nanos // _NANO)",
        "return self.nanos // _NANO",
    ),
    Mutation(
        "amounts too fine to hold round away from zero",
        "quantity.py",
        "else -(-number // _pow10(-power))",
        "else number // _pow10(-power)",
    ),
    Mutation(
        "an init container runs beside the sidecars started before it",
        "resources.py",
        "sidecars if request is None else sidecars + request",
        "sidecars if request is None else request",
    ),
    Mutation(
        "a sidecar's request counts beside those of the containers",
        "resources.py",
        "total = total if request is None else total + request",
        "total = total if request is None else max(total, request)",
    ),
    Mutation(
        "pod-level resources hide those of the containers",
        "resources.py",
        "elif pod_level and pod_level_resources_set(pod):",
        "elif pod_level and pod_level_requests_set(pod):",
    ),
    Mutation(
        "overhead is for pods that asked for something",
        "resources.py",
        "if resource in pod.overhead and not total.is_zero:",
        "if resource in pod.overhead:",
    ),
    Mutation("priority 2000000000 is critical", "qos.py", ">= CRITICAL_PRIORITY", "> CRITICAL_PRIORITY"),
    Mutation("an empty source is that of a static pod", "qos.py", '_SOURCE, "api") != "api"', '_SOURCE) == "file"'),
    Mutation(
        "Guaranteed needs limits in every container",
        "qos.py",
        "if limited and requests == limits:",
        "if requests == limits:",
    ),
    Mutation("a Burstable score is 3 at least", "oom_score.py", "= 1000 + GUARANTEED_ADJ", "= 999 + GUARANTEED_ADJ"),
    Mutation(
        "a Burstable score of 1000 becomes 999",
        "oom_score.py",
        "return BURSTABLE_MAX if adj == BEST_EFFORT_ADJ else adj",
        "return adj",
    ),
    Mutation(
        "a sidecar counts as at least the smallest of the containers it serves",
        "oom_score.py",
        "adj = min(adj, by_request(min(",
        "adj = min(adj, by_request(max(",
    ),
    Mutation(
        "critical pods are admitted", "admission.py", "if not conditions or is_critical(pod):", "if not conditions:"
    ),
    Mutation(
        "BestEffort pods are refused under memory pressure",
        "admission.py",
        "if qos_class(pod, pod_level) != BEST_EFFORT:",
        "if qos_class(pod, pod_level):",
    ),
    Mutation(
        "a container is named only for using more than it requested",
        "messages.py",
        "not usage > requests[name]",
        "not usage >= requests[name]",
    ),
    Mutation(
        "the hard threshold is kept back from what pods are offered, not from their cgroup",
        "reservation.py",
        "kept = system.get(name, ZERO) + kube.get(name, ZERO)",
        "kept = system.get(name, ZERO) + kube.get(name, ZERO) + evicted_for.get(name, ZERO)",
    ),
)


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
