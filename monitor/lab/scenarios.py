"""Scripted situations on the real kernel, each with its known truth: what won the race, and why.

All are played in a memory cgroup that stands for the node, so none can cost the machine a process. What they cannot
show there: `global` (the machine itself runs out).
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from monitor.errors import EXIT_FAILURE, EXIT_OK, CannotError, MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.meminfo import multi_gen_lru
from monitor.lab.bench import Found, Row, bench, number, progress
from monitor.lab.node import MIB, LabNode
from monitor.lab.stage import NOTHING, SCENARIOS, STEADY, Outcome, Scenario, Stage, grows, play, scenario
from monitor.race import incident as i

HOG = ("hog",)
#: Priority of a pod that is never evicted.
CRITICAL = 2_000_001_000
NO_MEMORY_THRESHOLD = ("--eviction-hard", "nodefs.available<1%")


def hard(mib: int) -> tuple[str, ...]:
    """Only a hard threshold for memory."""
    return ("--eviction-hard", f"memory.available<{mib}Mi")


#: Only a hard threshold for memory by a formula of outrace's own.
OWN = ("--eviction-hard", "memory.reclaimable<32Mi")


def soft(period: str, grace_s: int = 0) -> tuple[str, ...]:
    """Only a soft threshold for memory, met for ``period`` before anybody is evicted with at most ``grace_s``."""
    return (
        *NO_MEMORY_THRESHOLD,
        *("--eviction-soft", "memory.available<64Mi"),
        *("--eviction-soft-grace-period", f"memory.available={period}"),
        *("--eviction-max-pod-grace-period", str(grace_s)),
    )


# Why this machine cannot play a scenario; "" if it can.


def freezer() -> str:
    """To hold a process that has been killed: the freezer of cgroup v2 lets it go."""
    remedy = "mount it, which may be beside cgroup v2: mount -t cgroup -o freezer freezer DIRECTORY"
    return "" if cgroupfs.freezer() else f"cgroup v1's freezer is not mounted; {remedy}"


def unified() -> str:
    return "" if cgroupfs.detect().version == 2 else "memory.oom.group is of cgroup v2"


def two_lists() -> str:
    """Page cache that cannot be given back stays inactive. The multi-gen LRU makes a quarter of it active at the first
    try (Linux 6.12, 100 MiB in pipes), which counts as working set, so that a threshold is met after all.
    """
    return "page cache that cannot be given back turns active under the multi-gen LRU" if multi_gen_lru() else ""


#: The OOM killer comes before any eviction, however fast the monitor is.
_LOST = soft("10m")


@scenario(OWN, i.RELIEVED, i.KUBELET_ONLY, enforce=True)
def only_the_kubelet(stage: Stage) -> None:
    """Page cache read twice by memory.reclaimable: nobody is evicted, and the kernel gets it back."""
    reader = stage.filled(stage.pod("reader"), 140, kind="file", rate=STEADY, reread=3, sync=1)
    server = stage.filled(stage.pod("server"), 80, rate=STEADY)  # anonymous: the page cache has to go for it
    server.free()
    reader.free()


# -- a pod grows until it is killed, and that is all -------------------------------------------------------------------


_DEAF, _FULL = {"ignore_term": 1}, {"mib": 800, "rate": 0}
_WOULD: dict[str, Any] = {"evicted": HOG, "killed": HOG, "observed": True}

# Over a hard threshold: steadily, as fast as the kernel gives memory; in a tmpfs that goes with the pod; by
# many small processes.
grows("evicted-hard", hard(32), i.EVICTION_WON, evicted=HOG, enforce=True)
grows("full-speed", hard(64), i.EVICTION_WON, evicted=HOG, enforce=True, node_mib=256, how=_FULL)
grows("tmpfs-hog", hard(32), i.EVICTION_WON, evicted=("writer",), enforce=True, how={"kind": "tmpfs"})
grows("fork-bomb", hard(64), i.EVICTION_WON, evicted=("bomb",), enforce=True, how={"kind": "fork", "rate": 0})
# Over a soft threshold, for its grace period: the pod obeys SIGTERM; gets SIGKILL when its grace is over; or grows on
# to the limit. Or the OOM killer comes before the period is over.
grows("evicted-soft", soft("300ms", 10), i.EVICTION_WON, evicted=HOG, enforce=True, how={"mib": 120})
_SOON: dict[str, Any] = {"pod": {"grace_s": 1}, "how": {**_DEAF, "mib": 120}}
grows("ignores-term", soft("100ms", 10), i.EVICTION_WON, evicted=("deaf",), enforce=True, **_SOON)
_LATE: dict[str, Any] = {"evicted": ("deaf",), "killed": ("deaf",), "how": _DEAF}
grows("grace-too-long", soft("100ms", 30), i.OOM_DURING_GRACE, enforce=True, **_LATE)
grows("in-soft-period", _LOST, i.OOM_BEFORE_DECISION, killed=HOG, enforce=True)
# Beside active page cache, by outrace's own formula; beside active page cache that cannot be given back: here the
# kubelet's formula is right; beside inactive page cache that cannot be given back, which is available by that formula.
_CACHE = {"kind": "file", "reread": 3, "sync": 1}
grows("evicted-beside-cache", OWN, i.EVICTION_WON, evicted=HOG, enforce=True, beside={"mib": 60, **_CACHE})
_PINNED = {**_CACHE, "mib": 100, "pin": 1}
grows("active-and-pinned", OWN, i.OOM_UNSEEN, killed=HOG, enforce=True, beside=_PINNED)
_UNREAD = {**_PINNED, "reread": 0}
grows("pinned-cache", hard(32), i.OOM_UNSEEN, killed=HOG, enforce=True, needs=two_lists, beside=_UNREAD)
# There is no threshold for memory.
grows("no-threshold", NO_MEMORY_THRESHOLD, i.OOM_UNSEEN, killed=HOG, enforce=True)
# The monitor only observes: there would have been time; or the threshold is too small for the speed. (4 MiB are gone
# in a few ms; the 400 MiB that it holds take 65 ms to be freed. Nice, because another process that needs this CPU would
# otherwise be given those 65 ms.)
grows("would-have-won", hard(64), i.EVICTION_WON, **_WOULD)
grows("burst", hard(4), i.OOM_DURING_GRACE, node_mib=448, how={**_FULL, "nice": -20}, **_WOULD)
# The limit of kubepods is hit, not the node's.
_BELOW: dict[str, Any] = {
    "domain": "kubepods",
    "prepare": lambda node: cgroupfs.set_limit(cgroupfs.make(node.cgroup / "kubepods"), 128 * MIB),
    "pod": {"under": "kubepods"},
}
grows("kubepods-limit", hard(48), i.EVICTION_WON, i.KUBEPODS_LIMIT, node_mib=256, **_WOULD, **_BELOW)


# A container is at its own limit; a sidecar is, and the rest of the pod lives; two containers are at that of their pod.
grows("own-limit", hard(32), i.OWN_LIMIT, killed=HOG, domain="/c0", enforce=True, limit=("c0", 48), how={"mib": 80})
_TWO: dict[str, Any] = {"enforce": True, "pod": {"containers": 2}, "how": {"mib": 80, "container": "c1"}}
grows("sidecar", hard(32), i.OWN_LIMIT, killed=("web",), domain="/c1", limit=("c1", 24), first=40, **_TWO)
grows("pod-limit", hard(32), i.OWN_LIMIT, killed=("pair",), domain="", limit=("", 64), first=20, **_TWO)


# -- a pod takes memory and gives it back ------------------------------------------------------------------------------

# Observed; within a soft threshold's grace period.
grows("relieved", hard(32), i.RELIEVED, observed=True, evicted=HOG, frees={"mib": 140, "rate": STEADY})
grows("relieved-in-soft-period", _LOST, i.RELIEVED, enforce=True, frees={"mib": 120, "rate": STEADY})
# Page cache that was read twice looks like a working set, then goes: the kernel could drop it at once. Three times the
# node in page cache, read once: the kernel drops it as it comes.
_FLOOD = {"kind": "file", "mib": 140, "rate": STEADY, "reread": 3}
grows("active-flood", hard(32), i.RELIEVED, observed=True, evicted=HOG, frees=_FLOOD)
_ONCE = {"kind": "file", "mib": 480, "reread": 0, "sync": 1}
grows("cache-flood", hard(32), NOTHING, enforce=True, frees=_ONCE)


# -- an eviction wins --------------------------------------------------------------------------------------------------


@scenario(hard(48), i.EVICTION_WON, evicted=("big", "small"), enforce=True)
def two_hogs(stage: Stage) -> None:
    """Two pods grow at once; both are evicted, the larger one first."""
    big, small = (stage.hog(stage.pod(name), 400, rate=STEADY // 2) for name in ("big", "small"))
    big.go()
    time.sleep(0.3)  # so that it is known which one is larger
    small.go()
    stage.dies(big, small)


@scenario(hard(48), i.EVICTION_WON, i.OVER_EVICTION, evicted=("large", "small"), enforce=True, needs=freezer)
def over_eviction(stage: Stage) -> None:
    """The first victim is frozen and cannot die, so a second pod is evicted."""
    # The first one holds more than is short, in tmpfs pages, which process_mrelease cannot take from it.
    large = stage.filled(stage.pod("large"), 80, kind="tmpfs")
    small = stage.hog(stage.pod("small"), 60, rate=STEADY)
    with stage.frozen(large.pid):
        small.go()
        stage.dies(small)
    stage.dies(large)


# -- the OOM killer wins -----------------------------------------------------------------------------------------------


@scenario(hard(64), i.OOM_BEFORE_DECISION, killed=HOG)
def stalled_monitor(stage: Stage) -> None:
    """The monitor gets no CPU while a pod grows over the threshold."""
    pod = stage.pod("hog")
    with stage.stalled():
        stage.grow(pod)


@scenario(hard(64), i.OOM_DURING_GRACE, i.BRAKED, evicted=("stuck",), killed=("agent",), enforce=True, needs=freezer)
def frozen_victim(stage: Stage) -> None:
    """The evicted pod cannot die; the kernel kills a critical pod."""
    # What process_mrelease was tried on, the OOM killer passes over; and it cannot take tmpfs pages.
    stuck = stage.filled(stage.pod("stuck"), 80, kind="tmpfs")
    agent = stage.pod("agent", priority=CRITICAL)
    with stage.frozen(stuck.pid):
        stage.grow(agent)
    stage.dies(stuck)


@scenario(hard(32), i.OOM_AFTER_EVICTION, evicted=("writer",), killed=("agent",), enforce=True)
def tmpfs_outlives(stage: Stage) -> None:
    """An evicted pod leaves its memory in a tmpfs."""
    with tempfile.TemporaryDirectory(prefix=f"{stage.node.cgroup.name}-", dir="/dev/shm") as directory:
        stage.node.also_remove(Path(directory))
        agent = stage.pod("agent", priority=CRITICAL)
        stage.grow(stage.pod("writer"), 140, kind="tmpfs", path=f"{directory}/data")
        stage.daemon.told("evicted")
        stage.grow(agent)


@scenario(soft("10m"), i.OOM_BEFORE_DECISION, i.WRONG_VICTIM, killed=("database",), node_mib=128)
def wrong_victim(stage: Stage) -> None:
    """The kernel goes by oom_score_adj and kills the database."""  # the policy's first is over its request
    database = stage.filled(stage.pod("database", qos="Guaranteed", request=64 * MIB), 40)
    database.oom_score_adj = 1000
    hog = stage.hog(stage.pod("hog"), 100, rate=STEADY)
    stage.spare(hog)
    hog.go()
    stage.dies(database)
    hog.expect("grown")


@scenario(hard(32), i.OOM_BEFORE_DECISION, i.COLLATERAL, i.BRAKED, killed=("",), enforce=True)
def braked(stage: Stage) -> None:
    """A process in no pod grows; no pod is evicted for what none can give back."""  # all are far below their requests
    pods = [stage.filled(stage.pod(f"small-{n}", qos="Burstable", request=32 * MIB), 3) for n in range(5)]
    service = stage.node.start_hog(cgroupfs.make(stage.node.cgroup / "system"), mib=400, rate=STEADY)
    service.go()
    stage.dies(service)
    if any(hog.process.poll() is not None for hog in pods):
        raise MonitorError("a pod died for what it could not give back")


# -- no race -----------------------------------------------------------------------------------------------------------


@scenario(hard(32), i.OWN_LIMIT, i.GROUP_KILL, killed=("family",), domain="/c0", enforce=True, needs=unified)
def group_kill(stage: Stage) -> None:
    """A container whose processes die together hits its own limit."""
    # Kubernetes sets memory.oom.group in every container on cgroup v2: one process too many costs all of them.
    pod = stage.pod("family")
    (pod.containers["c0"] / "memory.oom.group").write_text("1")
    cgroupfs.set_limit(pod.containers["c0"], 64 * MIB)
    sibling = stage.filled(pod, 16)
    stage.grow(pod, 80)
    stage.dies(sibling)


@scenario(hard(32), i.RELIEVED, i.USER_KILL, domain="", enforce=True)
def user_kill(stage: Stage) -> None:
    """Somebody sends SIGKILL to a process of a pod."""
    hog = stage.filled(stage.pod("web"), 20)
    os.kill(hog.pid, signal.SIGKILL)
    stage.dies(hog)


@scenario(NO_MEMORY_THRESHOLD, i.RELIEVED, i.USER_KILL, i.ALREADY_EXITING, domain="/c0", needs=freezer)
def already_exiting(stage: Stage) -> None:
    """The OOM killer marks a process that was killed by its owner already."""
    # A frozen one, which is then let go on, and thus dies.
    leaving = stage.filled(stage.pod("leaving"), 40)
    leaving.oom_score_adj = 1000
    hog = stage.hog(stage.pod("hog"), 140)
    stage.spare(hog)
    with stage.frozen(leaving.pid):
        os.kill(leaving.pid, signal.SIGKILL)
        hog.go()
        stage.dies(leaving)
        hog.expect("grown")


@scenario(hard(32), i.RELIEVED, i.USER_KILL, i.LOST_EVENTS, domain="")
def lost_records(stage: Stage) -> None:
    """More processes are killed than a ring holds while nobody reads it."""
    # From outside: what a pod's own processes kill has a budget, and does not fill it.
    kills = 'for _ in $(seq 800); do sleep 100 & echo $! >"$0/cgroup.procs"; kill -9 $!; wait $!; done'
    pod = stage.pod("killed")
    with stage.stalled():
        subprocess.run(["/bin/sh", "-c", kills, str(pod.containers["c0"])], stderr=subprocess.DEVNULL, check=False)


@scenario(hard(32), i.UNDETERMINED, observed=True, evicted=HOG)
def record_stops(stage: Stage) -> None:
    """The monitor is stopped in the middle of it."""
    stage.filled(stage.pod("hog"), 140, rate=STEADY)
    stage.daemon.told("would evict")
    stage.daemon.stop()


@bench("name truth flags runs right")
@number("--runs", 20, "Runs of each scenario.")
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    type=click.Choice([one.name for one in SCENARIOS]),
    help="Only this scenario; repeatable.",
)
def scenarios(runs: int, only: tuple[str, ...]) -> Found:
    """Play scripted situations and compare the incidents with the truth; exit code 1 if any is wrong.

    The truth is the verdict, exactly these flags, and the pods that were evicted and killed.
    """
    rows = []
    with LabNode("scenarios", 64 * MIB) as home:
        state_dir = home.state_dir()
        for one in (one for one in SCENARIOS if not only or one.name in only):
            if problem := one.needs():
                if only:
                    raise CannotError(f"scenario {one.name} cannot be played here: {problem}", "leave it out")
                progress(f"{one.name}: left out: {problem}")
                continue
            rows.append(_row(one, [play(one, state_dir, run) for run in range(runs)]))
    totals = {key: sum(row[key] for row in rows) for key in ("runs", "right")}
    return Found(rows, totals, EXIT_OK if totals["right"] == totals["runs"] else EXIT_FAILURE)


def _row(scenario: Scenario, outcomes: Sequence[Outcome]) -> Row:
    wrong = [o.wrong for o in outcomes if o.wrong]
    progress(f"{scenario.name}: {len(outcomes) - len(wrong)} of {len(outcomes)}")
    for problem in dict.fromkeys(wrong):
        progress(f"  {problem}")
    return {
        "name": scenario.name,
        "truth": scenario.verdict,
        "flags": sorted(scenario.flags),
        "verdicts": dict(Counter(o.verdict for o in outcomes)),
        "wrong": wrong,
        "runs": len(outcomes),
        "right": len(outcomes) - len(wrong),
    }
