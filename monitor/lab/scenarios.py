"""Scripted situations on the real kernel, each with its known truth: who won the race, and why.

All are played in a memory cgroup that stands for the node, so none can cost the machine a process. What they cannot
show there: `global` (the machine itself runs out).
"""

from __future__ import annotations

from monitor.errors import ConfigError
from monitor.lab import plays
from monitor.lab.stage import Scenario, freezer, two_lists, unified
from monitor.lab.truth import NOTHING, Truth
from monitor.race import incident as i

_SOFT_ONLY = ("--eviction-hard", "nodefs.available<1%")


def hard(mib: int) -> tuple[str, ...]:
    """Only a hard threshold for memory."""
    return ("--eviction-hard", f"memory.available<{mib}Mi")


def soft(mib: int, period: str, grace_s: int = 0) -> tuple[str, ...]:
    """Only a soft threshold for memory, met for ``period`` before anybody is evicted with at most ``grace_s``."""
    return (
        *_SOFT_ONLY,
        *("--eviction-soft", f"memory.available<{mib}Mi"),
        *("--eviction-soft-grace-period", f"memory.available={period}"),
        *("--eviction-max-pod-grace-period", str(grace_s)),
    )


def _flags(*names: str) -> frozenset[str]:
    return frozenset(names)


HOG = ("hog",)
SCENARIOS = (
    Scenario(
        "evicted-hard",
        "a pod grows over a hard threshold and is evicted",
        Truth(i.EVICTION_WON, evicted=HOG),
        plays.evicted_hard,
        hard(32),
        enforce=True,
        grows_steadily=True,
    ),
    Scenario(
        "slow-leak",
        "a pod leaks slowly and is evicted",
        Truth(i.EVICTION_WON, evicted=("leak",)),
        plays.slow_leak,
        hard(64),
        enforce=True,
        grows_steadily=True,
    ),
    Scenario(
        "full-speed",
        "a pod takes memory as fast as the kernel gives it, and is evicted",
        Truth(i.EVICTION_WON, evicted=HOG),
        plays.full_speed,
        hard(64),
        enforce=True,
        node_mib=256,
    ),
    Scenario(
        "evicted-soft",
        "a soft threshold is met for its grace period; the pod obeys SIGTERM",
        Truth(i.EVICTION_WON, evicted=HOG),
        plays.evicted_soft,
        soft(64, "300ms", 10),
        enforce=True,
        grows_steadily=True,
    ),
    Scenario(
        "ignores-term",
        "an evicted pod ignores SIGTERM and gets SIGKILL when its grace is over",
        Truth(i.EVICTION_WON, evicted=("deaf",)),
        plays.ignores_term,
        soft(64, "100ms", 10),
        enforce=True,
    ),
    Scenario(
        "two-hogs",
        "two pods grow at once; both are evicted, the larger one first",
        Truth(i.EVICTION_WON, evicted=("big", "small")),
        plays.two_hogs,
        hard(48),
        enforce=True,
    ),
    Scenario(
        "tmpfs-hog",
        "a pod fills a tmpfs that goes with it",
        Truth(i.EVICTION_WON, evicted=("writer",)),
        plays.tmpfs_hog,
        hard(32),
        enforce=True,
    ),
    Scenario(
        "fork-bomb",
        "a pod forks many small processes; all are killed",
        Truth(i.EVICTION_WON, evicted=("bomb",)),
        plays.fork_bomb,
        hard(64),
        enforce=True,
    ),
    Scenario(
        "over-eviction",
        "the first victim is frozen and cannot die, so a second pod is evicted",
        Truth(i.EVICTION_WON, _flags(i.OVER_EVICTION), evicted=("large", "small")),
        plays.over_eviction,
        hard(48),
        enforce=True,
        needs=freezer,
    ),
    Scenario(
        "would-have-won",
        "the monitor only observes; there would have been time",
        Truth(i.EVICTION_WON, evicted=HOG, killed=HOG, observed=True),
        plays.would_have_won,
        hard(64),
        grows_steadily=True,
    ),
    Scenario(
        "burst",
        "the monitor only observes; the threshold is too small for the speed",
        Truth(i.OOM_DURING_GRACE, evicted=HOG, killed=HOG, observed=True),
        plays.burst,
        hard(4),
        node_mib=448,
    ),
    Scenario(
        "stalled-monitor",
        "the monitor gets no CPU while a pod grows over the threshold",
        Truth(i.OOM_BEFORE_DECISION, killed=HOG),
        plays.stalled_monitor,
        hard(64),
    ),
    Scenario(
        "in-soft-period",
        "the OOM killer comes before a soft threshold's grace period is over",
        Truth(i.OOM_BEFORE_DECISION, killed=HOG),
        plays.in_soft_period,
        soft(64, "10m"),
        enforce=True,
        grows_steadily=True,
    ),
    Scenario(
        "grace-too-long",
        "a pod in its grace ignores SIGTERM and grows on to the limit",
        Truth(i.OOM_DURING_GRACE, evicted=("deaf",), killed=("deaf",)),
        plays.grace_too_long,
        soft(64, "100ms", 30),
        enforce=True,
    ),
    Scenario(
        "frozen-victim",
        "the evicted pod cannot die; the kernel kills a critical pod",
        Truth(i.OOM_DURING_GRACE, _flags(i.BRAKED), evicted=("stuck",), killed=("agent",)),
        plays.frozen_victim,
        hard(64),
        enforce=True,
        needs=freezer,
    ),
    Scenario(
        "tmpfs-outlives",
        "an evicted pod leaves its memory in a tmpfs",
        Truth(i.OOM_AFTER_EVICTION, evicted=("writer",), killed=("agent",)),
        plays.tmpfs_outlives,
        hard(32),
        enforce=True,
    ),
    Scenario(
        "no-threshold",
        "no threshold for memory at all",
        Truth(i.OOM_UNSEEN, killed=HOG),
        plays.no_threshold,
        _SOFT_ONLY,
        enforce=True,
    ),
    Scenario(
        "pinned-cache",
        "inactive page cache that cannot be given back",
        Truth(i.OOM_UNSEEN, killed=HOG),
        plays.pinned_cache,
        hard(32),
        enforce=True,
        needs=two_lists,
    ),
    Scenario(
        "kubepods-limit",
        "the limit of kubepods is hit, not the node's",
        Truth(i.EVICTION_WON, _flags(i.KUBEPODS_LIMIT), evicted=HOG, killed=HOG, observed=True, domain="kubepods"),
        plays.kubepods_limit,
        hard(48),
        node_mib=256,
        prepare=plays.with_kubepods,
    ),
    Scenario(
        "wrong-victim",
        "the kernel goes by oom_score_adj and kills the database",
        Truth(i.OOM_BEFORE_DECISION, _flags(i.WRONG_VICTIM), killed=("database",)),
        plays.wrong_victim,
        soft(64, "10m"),
        node_mib=128,
    ),
    Scenario(
        "collateral",
        "a service outside the pods is killed",
        Truth(i.OOM_BEFORE_DECISION, _flags(i.COLLATERAL), killed=("",)),
        plays.collateral,
        soft(64, "10m"),
    ),
    Scenario(
        "braked",
        "a process in no pod grows; no pod is evicted for what none can give back",
        Truth(i.OOM_BEFORE_DECISION, _flags(i.COLLATERAL, i.BRAKED), killed=("",)),
        plays.braked,
        hard(32),
        enforce=True,
        grows_steadily=True,
    ),
    Scenario(
        "own-limit",
        "a container hits its own limit",
        Truth(i.OWN_LIMIT, killed=HOG, domain="/c0"),
        plays.own_limit,
        hard(32),
        enforce=True,
    ),
    Scenario(
        "sidecar",
        "a sidecar hits its own limit; the rest of the pod lives",
        Truth(i.OWN_LIMIT, killed=("web",), domain="/c1"),
        plays.sidecar,
        hard(32),
        enforce=True,
    ),
    Scenario(
        "pod-limit",
        "two containers together hit the limit of their pod",
        Truth(i.OWN_LIMIT, killed=("pair",), domain=""),
        plays.pod_limit,
        hard(32),
        enforce=True,
    ),
    Scenario(
        "group-kill",
        "a container whose processes die together hits its own limit",
        Truth(i.OWN_LIMIT, _flags(i.GROUP_KILL), killed=("family",), domain="/c0"),
        plays.group_kill,
        hard(32),
        enforce=True,
        needs=unified,
    ),
    Scenario(
        "relieved",
        "a pod gives its memory back by itself; observed",
        Truth(i.RELIEVED, observed=True, evicted=HOG),
        plays.relieved,
        hard(32),
    ),
    Scenario(
        "relieved-in-soft-period",
        "memory comes back within a soft threshold's grace period",
        Truth(i.RELIEVED),
        plays.relieved_in_soft_period,
        soft(64, "10m"),
        enforce=True,
    ),
    Scenario(
        "active-flood",
        "page cache that was read twice looks like a working set, then goes",
        Truth(i.RELIEVED, observed=True, evicted=("reader",)),
        plays.active_flood,
        hard(32),
    ),
    Scenario(
        "cache-flood",
        "three times the node in page cache, read once: nothing",
        Truth(NOTHING),
        plays.cache_flood,
        hard(32),
        enforce=True,
    ),
    Scenario(
        "user-kill",
        "somebody sends SIGKILL to a process of a pod",
        Truth(i.RELIEVED, _flags(i.USER_KILL), domain=""),
        plays.user_kill,
        hard(32),
        enforce=True,
    ),
    Scenario(
        "already-exiting",
        "the OOM killer marks a process that was killed by its owner already",
        Truth(i.RELIEVED, _flags(i.USER_KILL, i.ALREADY_EXITING), domain="/c0"),
        plays.already_exiting,
        _SOFT_ONLY,
        needs=freezer,
    ),
    Scenario(
        "lost-records",
        "more processes are killed than a ring holds while nobody reads it",
        Truth(i.RELIEVED, _flags(i.USER_KILL, i.LOST_EVENTS), domain=""),
        plays.lost_records,
        hard(32),
    ),
    Scenario(
        "record-stops",
        "the monitor is stopped in the middle of it",
        Truth(i.UNDETERMINED, observed=True, evicted=HOG),
        plays.record_stops,
        hard(32),
        stops=True,
    ),
)


def named(names: tuple[str, ...]) -> tuple[Scenario, ...]:
    """The scenarios of these names, all if there are none. Raises ConfigError for one that there is not."""
    known = {s.name: s for s in SCENARIOS}
    for name in names:
        if name not in known:
            raise ConfigError(f"--only {name}: there is no such scenario", f"name one of {', '.join(known)}")
    return tuple([known[name] for name in names]) if names else SCENARIOS
