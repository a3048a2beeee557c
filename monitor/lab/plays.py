"""The scripts of the scenarios (monitor/lab/scenarios.py says what must come out of them)."""

from __future__ import annotations

import os
import signal
import time

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.lab.node import MIB, LabNode
from monitor.lab.stage import Stage

#: Growth that a busy machine still keeps up with, in MiB/s: a margin of 32 MiB lasts a third of a second.
STEADY = 100


# -- an eviction wins --------------------------------------------------------------------------------------------------


def evicted_hard(stage: Stage) -> None:
    hog = stage.hog(stage.pod("hog"), 400, rate=STEADY)
    hog.go()
    stage.dies(hog)


def slow_leak(stage: Stage) -> None:
    hog = stage.hog(stage.pod("leak"), 400, rate=40)
    hog.go()
    stage.dies(hog)


def full_speed(stage: Stage) -> None:
    hog = stage.hog(stage.pod("hog"), 800)
    hog.go()
    stage.dies(hog)


def evicted_soft(stage: Stage) -> None:
    hog = stage.hog(stage.pod("hog"), 120, rate=STEADY)
    hog.go()
    stage.dies(hog)


def ignores_term(stage: Stage) -> None:
    hog = stage.hog(stage.pod("deaf", grace_s=1), 120, rate=STEADY, ignore_term=1)
    hog.go()
    stage.dies(hog)


def two_hogs(stage: Stage) -> None:
    hogs = [stage.hog(stage.pod(name), 400, rate=STEADY // 2) for name in ("big", "small")]
    hogs[0].go()
    time.sleep(0.3)  # so that it is known which one is larger
    hogs[1].go()
    stage.dies(*hogs)


def tmpfs_hog(stage: Stage) -> None:
    hog = stage.hog(stage.pod("writer"), 400, kind="shmem", rate=STEADY)
    hog.go()
    stage.dies(hog)


def fork_bomb(stage: Stage) -> None:
    parent = stage.hog(stage.pod("bomb"), 1, forks=200, rate=STEADY)
    parent.go()
    stage.dies(parent)


def over_eviction(stage: Stage) -> None:
    """The first victim cannot die, so the next one has to, although the first holds more than is short."""
    large = stage.filled(stage.pod("large"), 80, kind="shmem")  # which process_mrelease cannot take from it
    small = stage.hog(stage.pod("small"), 60, rate=STEADY)
    with stage.frozen(large.pid):
        small.go()
        stage.dies(small)
    stage.dies(large)


# -- the OOM killer wins -----------------------------------------------------------------------------------------------


def would_have_won(stage: Stage) -> None:
    hog = stage.hog(stage.pod("hog"), 400, rate=STEADY)
    hog.go()
    stage.dies(hog)


def burst(stage: Stage) -> None:
    """4 MiB at full speed are gone in a few ms; the 400 MiB that it holds take 65 ms to be freed.

    Nice, because another process that needs this CPU would otherwise be given those 65 ms.
    """
    hog = stage.hog(stage.pod("hog"), 800, nice=-20)
    hog.go()
    stage.dies(hog)


def stalled_monitor(stage: Stage) -> None:
    hog = stage.hog(stage.pod("hog"), 400, rate=STEADY)
    with stage.stalled():
        hog.go()
        stage.dies(hog)


def in_soft_period(stage: Stage) -> None:
    hog = stage.hog(stage.pod("hog"), 400, rate=STEADY)
    hog.go()
    stage.dies(hog)


def grace_too_long(stage: Stage) -> None:
    hog = stage.hog(stage.pod("deaf"), 400, rate=STEADY, ignore_term=1)
    hog.go()
    stage.dies(hog)


def frozen_victim(stage: Stage) -> None:
    """The evicted pod cannot die, and the pod that grows is never evicted. (What process_mrelease was tried on, the
    OOM killer passes over; and it cannot take tmpfs pages.)
    """
    stuck = stage.filled(stage.pod("stuck"), 80, kind="shmem")
    agent = stage.hog(stage.pod("agent", priority=2_000_001_000), 400, rate=STEADY)
    with stage.frozen(stuck.pid):
        agent.go()
        stage.dies(agent)
    stage.dies(stuck)


def tmpfs_outlives(stage: Stage) -> None:
    """What the evicted pod wrote to a tmpfs stays; then a pod grows that is never evicted."""
    with stage.tmpfs() as directory:
        writer = stage.hog(stage.pod("writer"), 140, kind="shmem", rate=STEADY, path=str(directory / "data"))
        agent = stage.hog(stage.pod("agent", priority=2_000_001_000), 400, rate=STEADY)
        writer.go()
        stage.dies(writer)
        stage.hears("evicted")
        agent.go()
        stage.dies(agent)


def no_threshold(stage: Stage) -> None:
    hog = stage.hog(stage.pod("hog"), 400, rate=STEADY)
    hog.go()
    stage.dies(hog)


def pinned_cache(stage: Stage) -> None:
    """Inactive page cache in pipes without a reader: available by the formula, but it cannot be reclaimed."""
    stage.filled(stage.pod("server"), 100, kind="file", reread=0, sync=1, pin=1)
    hog = stage.hog(stage.pod("hog"), 400, rate=STEADY)
    hog.go()
    stage.dies(hog)


def kubepods_limit(stage: Stage) -> None:
    hog = stage.hog(stage.pod("hog", under="kubepods"), 400, rate=STEADY)
    hog.go()
    stage.dies(hog)


def with_kubepods(node: LabNode) -> None:
    cgroupfs.set_limit(cgroupfs.make(node.cgroup / "kubepods"), 128 * MIB)


def wrong_victim(stage: Stage) -> None:
    """The policy's first is the pod that uses more than it requested; the kernel goes by oom_score_adj."""
    database = stage.filled(stage.pod("database", qos="Guaranteed", request=64 * MIB), 40)
    stage.score(database, 1000)
    hog = stage.hog(stage.pod("hog"), 100, rate=STEADY)
    stage.spare(hog)
    hog.go()
    stage.dies(database)
    hog.expect("grown")


def collateral(stage: Stage) -> None:
    service = stage.stranger(80)
    service.go()
    service.expect("grown")
    hog = stage.hog(stage.pod("hog"), 70, rate=STEADY)
    stage.filled(stage.pods["hog"], 20)
    hog.go()
    stage.dies(service)
    hog.expect("grown")


def braked(stage: Stage) -> None:
    """What grows is in no pod; five small pods, far below their requests, could not make up for it."""
    pods = [stage.filled(stage.pod(f"small-{n}", qos="Burstable", request=32 * MIB), 3) for n in range(5)]
    service = stage.stranger(400, rate=STEADY)
    service.go()
    stage.dies(service)
    if any(hog.process.poll() is not None for hog in pods):
        raise MonitorError("a pod died for what it could not give back")


# -- no race -----------------------------------------------------------------------------------------------------------


def own_limit(stage: Stage) -> None:
    pod = stage.pod("hog")
    cgroupfs.set_limit(pod.containers["c0"], 48 * MIB)
    stage.expect_kill_at(pod.containers["c0"])
    hog = stage.hog(pod, 80, rate=STEADY)
    hog.go()
    stage.dies(hog)


def sidecar(stage: Stage) -> None:
    pod = stage.pod("web", containers=2)
    cgroupfs.set_limit(pod.containers["c1"], 24 * MIB)
    stage.expect_kill_at(pod.containers["c1"])
    stage.filled(pod, 40)
    hog = stage.hog(pod, 80, container="c1", rate=STEADY)
    hog.go()
    stage.dies(hog)


def pod_limit(stage: Stage) -> None:
    pod = stage.pod("pair", containers=2)
    cgroupfs.set_limit(pod.cgroup, 64 * MIB)
    stage.expect_kill_at(pod.cgroup)
    stage.filled(pod, 20)
    hog = stage.hog(pod, 80, container="c1", rate=STEADY)
    hog.go()
    stage.dies(hog)


def group_kill(stage: Stage) -> None:
    """Kubernetes sets memory.oom.group in every container on cgroup v2: one process too many costs all of them."""
    pod = stage.pod("family")
    container = pod.containers["c0"]
    cgroupfs.set_limit(container, 64 * MIB)
    (container / "memory.oom.group").write_text("1")
    stage.expect_kill_at(container)
    sibling = stage.filled(pod, 16)
    hog = stage.hog(pod, 80, rate=STEADY)
    hog.go()
    stage.dies(hog, sibling)


def relieved(stage: Stage) -> None:
    hog = stage.filled(stage.pod("hog"), 140, rate=STEADY)
    hog.free()


def relieved_in_soft_period(stage: Stage) -> None:
    hog = stage.filled(stage.pod("hog"), 120, rate=STEADY)
    hog.free()


def active_flood(stage: Stage) -> None:
    """Page cache read twice counts as working set although the kernel could drop it at once."""
    hog = stage.filled(stage.pod("reader"), 140, kind="file", rate=STEADY, reread=3)
    hog.free()


def cache_flood(stage: Stage) -> None:
    """Three times the node, written once: the kernel drops it as it comes, and the formula knows."""
    stage.filled(stage.pod("copier"), 480, kind="file", reread=0, sync=1)


def user_kill(stage: Stage) -> None:
    hog = stage.filled(stage.pod("web"), 20)
    os.kill(hog.pid, signal.SIGKILL)
    stage.dies(hog)


def already_exiting(stage: Stage) -> None:
    """A frozen process that was killed by its owner is marked by the OOM killer, which lets it go on, and thus die."""
    leaving = stage.filled(stage.pod("leaving"), 40)
    stage.score(leaving, 1000)
    hog = stage.hog(stage.pod("hog"), 140)
    stage.spare(hog)
    with stage.frozen(leaving.pid):
        os.kill(leaving.pid, signal.SIGKILL)
        hog.go()
        stage.dies(leaving)
        hog.expect("grown")


def lost_records(stage: Stage) -> None:
    """800 processes of a pod are killed from outside while nobody reads the ring. (What a pod's own processes kill has
    a budget, and does not fill it.)
    """
    killer = stage.stranger(1, murders=800, murders_in=str(stage.pod("killed").containers["c0"]))
    with stage.stalled():
        killer.go()
        killer.expect("grown")


def record_stops(stage: Stage) -> None:
    stage.filled(stage.pod("hog"), 140, rate=STEADY)
    stage.hears("would evict")
    stage.daemon.stop()
