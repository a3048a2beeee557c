"""Scripted situations on the real kernel, each with its known truth: what won the race, and why.

All are played in a memory cgroup that stands for the node, so none can cost the machine a process. What they cannot
show there: `global` (the machine itself runs out).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence

import click

from monitor.errors import EXIT_FAILURE, EXIT_OK, ConfigError, MonitorError
from monitor.kernel import cgroupfs
from monitor.lab.bench import Found, Row, bench, number, progress
from monitor.lab.child import until
from monitor.lab.node import MIB, LabNode
from monitor.lab.race import CHECKED
from monitor.lab.stage import (
    CRITICAL,
    HOG,
    NO_MEMORY_THRESHOLD,
    NOTHING,
    OWN,
    SCENARIOS,
    STEADY,
    Outcome,
    Scenario,
    Stage,
    freezer,
    hard,
    play,
    scenario,
    soft,
    two_lists,
    unified,
)
from monitor.race import incident as i


def named(names: tuple[str, ...]) -> tuple[Scenario, ...]:
    """The scenarios of these names, all if there are none. Raises ConfigError for one that there is not."""
    known = {s.name: s for s in SCENARIOS}
    for name in names:
        if name not in known:
            raise ConfigError(f"--only {name}: there is no such scenario", f"name one of {', '.join(known)}")
    return tuple(known[name] for name in names or known)


# -- a race is lost, and which pod it costs (`monitor.side.process_watch`) ---------------------------------------------

#: The OOM killer comes before any eviction, however fast the monitor is.
_LOST = soft("10m")


@scenario(_LOST, i.OOM_BEFORE_DECISION, killed=("small",), enforce=True, node_mib=256)
def guided(stage: Stage) -> None:
    """The kernel is guided to the policy's next victim, the smaller pod. Both are below their requests, so their
    priorities decide; a service in no pod takes what is left. Left alone, the kernel would take the larger one.
    """
    pods = {
        "database": stage.filled(stage.pod("database", qos="Burstable", request=160 * MIB, priority=1_000_000), 130),
        "small": stage.filled(stage.pod("small", qos="Burstable", request=100 * MIB, priority=-10), 60),
    }
    until(lambda: pods["small"].oom_score_adj == 1000, "oom_score_adj 1000 of the policy's victim")
    service = stage.hog_outside_pods(90, rate=STEADY)
    service.go()
    stage.dies(pods["small"])
    service.expect("grown")


# -- thresholds by outrace's own formula (docs/signals.md) -------------------------------------------------------------


@scenario(OWN, i.EVICTION_WON, evicted=HOG, enforce=True)
def evicted_beside_cache(stage: Stage) -> None:
    """By memory.reclaimable a pod that grows beside active page cache is evicted."""
    stage.filled(stage.pod("reader"), 60, kind="file", reread=3, sync=1)
    stage.grow(stage.pod("hog"))


@scenario(OWN, i.OOM_UNSEEN, killed=HOG, enforce=True, needs=unified)
def protected_and_unseen(stage: Stage) -> None:
    """By memory.reclaimable, page cache that memory.min keeps is available."""
    server = stage.pod("server", priority=CRITICAL)
    stage.node.protect(server, 100)
    stage.filled(server, 90, kind="file", reread=0, sync=1)
    stage.grow(stage.pod("hog"))


@scenario(OWN, i.OOM_UNSEEN, killed=HOG, enforce=True)
def active_and_pinned(stage: Stage) -> None:
    """Active page cache that cannot be given back: here the kubelet's formula is right."""
    stage.filled(stage.pod("server"), 100, kind="file", reread=3, sync=1, pin=1)
    stage.grow(stage.pod("hog"))


@scenario(OWN, i.RELIEVED, i.KUBELET_ONLY, enforce=True)
def only_the_kubelet(stage: Stage) -> None:
    """Page cache read twice by memory.reclaimable: nobody is evicted, and the kernel gets it back."""
    reader = stage.filled(stage.pod("reader"), 140, kind="file", rate=STEADY, reread=3, sync=1)
    server = stage.filled(stage.pod("server"), 80, rate=STEADY)  # anonymous: the page cache has to go for it
    server.free()
    reader.free()


# -- an eviction wins --------------------------------------------------------------------------------------------------


@scenario(hard(32), i.EVICTION_WON, evicted=HOG, enforce=True)
def evicted_hard(stage: Stage) -> None:
    """A pod grows over a hard threshold and is evicted."""
    stage.grow(stage.pod("hog"))


@scenario(hard(64), i.EVICTION_WON, evicted=("leak",), enforce=True)
def slow_leak(stage: Stage) -> None:
    """A pod leaks slowly and is evicted."""
    stage.grow(stage.pod("leak"), rate=40)


@scenario(hard(64), i.EVICTION_WON, evicted=HOG, enforce=True, node_mib=256)
def full_speed(stage: Stage) -> None:
    """A pod takes memory as fast as the kernel gives it, and is evicted."""
    stage.grow(stage.pod("hog"), mib=800, rate=0)


@scenario(soft("300ms", 10), i.EVICTION_WON, evicted=HOG, enforce=True)
def evicted_soft(stage: Stage) -> None:
    """A soft threshold is met for its grace period; the pod obeys SIGTERM."""
    stage.grow(stage.pod("hog"), mib=120)


@scenario(soft("100ms", 10), i.EVICTION_WON, evicted=("deaf",), enforce=True)
def ignores_term(stage: Stage) -> None:
    """An evicted pod ignores SIGTERM and gets SIGKILL when its grace is over."""
    stage.grow(stage.pod("deaf", grace_s=1), 120, ignore_term=1)


@scenario(hard(48), i.EVICTION_WON, evicted=("big", "small"), enforce=True)
def two_hogs(stage: Stage) -> None:
    """Two pods grow at once; both are evicted, the larger one first."""
    big, small = (stage.hog(stage.pod(name), 400, rate=STEADY // 2) for name in ("big", "small"))
    big.go()
    time.sleep(0.3)  # so that it is known which one is larger
    small.go()
    stage.dies(big, small)


@scenario(hard(32), i.EVICTION_WON, evicted=("writer",), enforce=True)
def tmpfs_hog(stage: Stage) -> None:
    """A pod fills a tmpfs that goes with it."""
    stage.grow(stage.pod("writer"), kind="shmem")


@scenario(hard(64), i.EVICTION_WON, evicted=("bomb",), enforce=True)
def fork_bomb(stage: Stage) -> None:
    """A pod forks many small processes; all are killed."""
    bomb = stage.node.start(stage.pod("bomb"), CHECKED, kind="fork", mib=400, seed=1)
    bomb.send("go")
    stage.dies(bomb)


@scenario(hard(48), i.EVICTION_WON, i.OVER_EVICTION, evicted=("large", "small"), enforce=True, needs=freezer)
def over_eviction(stage: Stage) -> None:
    """The first victim is frozen and cannot die, so a second pod is evicted."""
    # The first one holds more than is short, in tmpfs pages, which process_mrelease cannot take from it.
    large = stage.filled(stage.pod("large"), 80, kind="shmem")
    small = stage.hog(stage.pod("small"), 60, rate=STEADY)
    with stage.frozen(large.pid):
        small.go()
        stage.dies(small)
    stage.dies(large)


# -- the OOM killer wins -----------------------------------------------------------------------------------------------


@scenario(hard(64), i.EVICTION_WON, evicted=HOG, killed=HOG, observed=True)
def would_have_won(stage: Stage) -> None:
    """The monitor only observes; there would have been time."""
    stage.grow(stage.pod("hog"))


@scenario(hard(4), i.OOM_DURING_GRACE, evicted=HOG, killed=HOG, observed=True, node_mib=448)
def burst(stage: Stage) -> None:
    """The monitor only observes; the threshold is too small for the speed."""
    # 4 MiB at full speed are gone in a few ms; the 400 MiB that it holds take 65 ms to be freed. Nice, because another
    # process that needs this CPU would otherwise be given those 65 ms.
    stage.grow(stage.pod("hog"), mib=800, rate=0, nice=-20)


@scenario(hard(64), i.OOM_BEFORE_DECISION, killed=HOG)
def stalled_monitor(stage: Stage) -> None:
    """The monitor gets no CPU while a pod grows over the threshold."""
    pod = stage.pod("hog")
    with stage.stalled():
        stage.grow(pod)


@scenario(soft("10m"), i.OOM_BEFORE_DECISION, killed=HOG, enforce=True)
def in_soft_period(stage: Stage) -> None:
    """The OOM killer comes before a soft threshold's grace period is over."""
    stage.grow(stage.pod("hog"))


@scenario(soft("100ms", 30), i.OOM_DURING_GRACE, evicted=("deaf",), killed=("deaf",), enforce=True)
def grace_too_long(stage: Stage) -> None:
    """A pod in its grace ignores SIGTERM and grows on to the limit."""
    stage.grow(stage.pod("deaf"), ignore_term=1)


@scenario(hard(64), i.OOM_DURING_GRACE, i.BRAKED, evicted=("stuck",), killed=("agent",), enforce=True, needs=freezer)
def frozen_victim(stage: Stage) -> None:
    """The evicted pod cannot die; the kernel kills a critical pod."""
    # What process_mrelease was tried on, the OOM killer passes over; and it cannot take tmpfs pages.
    stuck = stage.filled(stage.pod("stuck"), 80, kind="shmem")
    agent = stage.pod("agent", priority=CRITICAL)
    with stage.frozen(stuck.pid):
        stage.grow(agent)
    stage.dies(stuck)


@scenario(hard(32), i.OOM_AFTER_EVICTION, evicted=("writer",), killed=("agent",), enforce=True)
def tmpfs_outlives(stage: Stage) -> None:
    """An evicted pod leaves its memory in a tmpfs."""
    with stage.tmpfs() as directory:
        agent = stage.pod("agent", priority=CRITICAL)
        stage.grow(stage.pod("writer"), 140, kind="shmem", path=str(directory / "data"))
        stage.wait_for_log("evicted")
        stage.grow(agent)


@scenario(NO_MEMORY_THRESHOLD, i.OOM_UNSEEN, killed=HOG, enforce=True)
def no_threshold(stage: Stage) -> None:
    """No threshold for memory at all."""
    stage.grow(stage.pod("hog"))


@scenario(hard(32), i.OOM_UNSEEN, killed=HOG, enforce=True, needs=two_lists)
def pinned_cache(stage: Stage) -> None:
    """Inactive page cache that cannot be given back."""  # in pipes without a reader: available by the formula
    stage.filled(stage.pod("server"), 100, kind="file", reread=0, sync=1, pin=1)
    stage.grow(stage.pod("hog"))


def with_kubepods(node: LabNode) -> None:
    cgroupfs.set_limit(cgroupfs.make(node.cgroup / "kubepods"), 128 * MIB)


@scenario(
    *(hard(48), i.EVICTION_WON, i.KUBEPODS_LIMIT),
    evicted=HOG,
    killed=HOG,
    observed=True,
    domain="kubepods",
    node_mib=256,
    prepare=with_kubepods,
)
def kubepods_limit(stage: Stage) -> None:
    """The limit of kubepods is hit, not the node's."""
    stage.grow(stage.pod("hog", under="kubepods"))


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


@scenario(soft("10m"), i.OOM_BEFORE_DECISION, i.COLLATERAL, killed=("",))
def collateral(stage: Stage) -> None:
    """A service outside the pods is killed."""
    service = stage.hog_outside_pods(80)
    service.go()
    service.expect("grown")
    hog = stage.hog(stage.pod("hog"), 70, rate=STEADY)
    stage.filled(stage.pods["hog"], 20)
    hog.go()
    stage.dies(service)
    hog.expect("grown")


@scenario(hard(32), i.OOM_BEFORE_DECISION, i.COLLATERAL, i.BRAKED, killed=("",), enforce=True)
def braked(stage: Stage) -> None:
    """A process in no pod grows; no pod is evicted for what none can give back."""  # all are far below their requests
    pods = [stage.filled(stage.pod(f"small-{n}", qos="Burstable", request=32 * MIB), 3) for n in range(5)]
    service = stage.hog_outside_pods(400, rate=STEADY)
    service.go()
    stage.dies(service)
    if any(hog.process.poll() is not None for hog in pods):
        raise MonitorError("a pod died for what it could not give back")


# -- no race -----------------------------------------------------------------------------------------------------------


@scenario(hard(32), i.OWN_LIMIT, killed=HOG, domain="/c0", enforce=True)
def own_limit(stage: Stage) -> None:
    """A container hits its own limit."""
    pod = stage.pod("hog")
    cgroupfs.set_limit(pod.containers["c0"], 48 * MIB)
    stage.grow(pod, 80)


@scenario(hard(32), i.OWN_LIMIT, killed=("web",), domain="/c1", enforce=True)
def sidecar(stage: Stage) -> None:
    """A sidecar hits its own limit; the rest of the pod lives."""
    pod = stage.pod("web", containers=2)
    cgroupfs.set_limit(pod.containers["c1"], 24 * MIB)
    stage.filled(pod, 40)
    stage.grow(pod, 80, container="c1")


@scenario(hard(32), i.OWN_LIMIT, killed=("pair",), domain="", enforce=True)
def pod_limit(stage: Stage) -> None:
    """Two containers together hit the limit of their pod."""
    pod = stage.pod("pair", containers=2)
    cgroupfs.set_limit(pod.cgroup, 64 * MIB)
    stage.filled(pod, 20)
    stage.grow(pod, 80, container="c1")


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


@scenario(hard(32), i.RELIEVED, observed=True, evicted=HOG)
def relieved(stage: Stage) -> None:
    """A pod gives its memory back by itself; observed."""
    stage.filled(stage.pod("hog"), 140, rate=STEADY).free()


@scenario(soft("10m"), i.RELIEVED, enforce=True)
def relieved_in_soft_period(stage: Stage) -> None:
    """Memory comes back within a soft threshold's grace period."""
    stage.filled(stage.pod("hog"), 120, rate=STEADY).free()


@scenario(hard(32), i.RELIEVED, observed=True, evicted=("reader",))
def active_flood(stage: Stage) -> None:
    """Page cache that was read twice looks like a working set, then goes."""  # the kernel could drop it at once
    stage.filled(stage.pod("reader"), 140, kind="file", rate=STEADY, reread=3).free()


@scenario(hard(32), NOTHING, enforce=True)
def cache_flood(stage: Stage) -> None:
    """Three times the node in page cache, read once: nothing."""  # the kernel drops it as it comes
    stage.filled(stage.pod("copier"), 480, kind="file", reread=0, sync=1)


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


@scenario(hard(32), i.UNDETERMINED, observed=True, evicted=HOG, ends_daemon=True)
def record_stops(stage: Stage) -> None:
    """The monitor is stopped in the middle of it."""
    stage.filled(stage.pod("hog"), 140, rate=STEADY)
    stage.wait_for_log("would evict")
    stage.daemon.stop()


@bench("name truth flags runs right")
@number("--runs", 20, "Runs of each scenario.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this scenario; repeatable.")
def scenarios(runs: int, only: tuple[str, ...]) -> Found:
    """Play scripted situations and compare the incidents with the truth; exit code 1 if any is wrong.

    The truth is the verdict, exactly these flags, and the pods that were evicted and killed.
    """
    chosen = named(only)
    if not only:  # a scenario that is named fails with the reason
        problems = {scenario.name: scenario.needs() for scenario in chosen}
        for name, problem in problems.items():
            if problem:
                progress(f"{name}: left out: {problem}")
        chosen = tuple(scenario for scenario in chosen if not problems[scenario.name])
    rows = [_row(scenario, _play(scenario, runs)) for scenario in chosen]
    totals = {key: sum(row[key] for row in rows) for key in ("runs", "right")}
    return Found(rows, totals, EXIT_OK if totals["right"] == totals["runs"] else EXIT_FAILURE)


def _play(scenario: Scenario, runs: int) -> list[Outcome]:
    outcomes = play(scenario, runs)
    progress(f"{scenario.name}: {sum(not o.wrong for o in outcomes)} of {len(outcomes)}")
    for wrong in dict.fromkeys(o.wrong for o in outcomes if o.wrong):
        progress(f"  {wrong}")
    return outcomes


def _row(scenario: Scenario, outcomes: Sequence[Outcome]) -> Row:
    return {
        "name": scenario.name,
        "truth": scenario.verdict,
        "flags": sorted(scenario.flags),
        "verdicts": dict(Counter(o.verdict for o in outcomes)),
        "wrong": [o.wrong for o in outcomes if o.wrong],
        "runs": len(outcomes),
        "right": sum(not o.wrong for o in outcomes),
    }
