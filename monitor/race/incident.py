"""The verdict on an episode, in the form other people's scripts read. Names, flags and keys are a contract."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from monitor.race.codec import Record
from monitor.race.counterfactual import Counterfactual
from monitor.race.holds import HeldPod
from monitor.race.memory import Memory
from monitor.race.stalls import StalledPod

EVICTION_WON = "eviction_won"
OOM_UNSEEN = "oom_unseen"
OOM_BEFORE_DECISION = "oom_before_decision"
OOM_DURING_GRACE = "oom_during_grace"
OOM_AFTER_EVICTION = "oom_after_eviction"
OWN_LIMIT = "own_limit"
RELIEVED = "relieved"
STALLED = "stalled"
UNDETERMINED = "undetermined"
VERDICTS = (
    EVICTION_WON, OOM_UNSEEN, OOM_BEFORE_DECISION, OOM_DURING_GRACE, OOM_AFTER_EVICTION, OWN_LIMIT, RELIEVED,
    UNDETERMINED, STALLED,
)  # fmt: skip
#: Verdicts of a race that was lost.
LOST_RACES = frozenset({OOM_UNSEEN, OOM_BEFORE_DECISION, OOM_DURING_GRACE, OOM_AFTER_EVICTION})

GLOBAL = "global"
KUBEPODS_LIMIT = "kubepods_limit"
WRONG_VICTIM = "wrong_victim"
COLLATERAL = "collateral"
GROUP_KILL = "group_kill"
OVER_EVICTION = "over_eviction"
USER_KILL = "user_kill"
ALREADY_EXITING = "already_exiting"
LOST_EVENTS = "lost_events"
BRAKED = "braked"
KUBELET_ONLY = "kubelet_only"
HELD = "held"
HELD_THEN_EVICTED = "held_then_evicted"
HOLD_UNANSWERED = "hold_unanswered"
BY_HAND = "by_hand"
THROTTLED = "throttled"
SWAP = "swap"
FLAGS = (
    GLOBAL, KUBEPODS_LIMIT, WRONG_VICTIM, COLLATERAL, GROUP_KILL, OVER_EVICTION, USER_KILL, ALREADY_EXITING,
    LOST_EVENTS, BRAKED, KUBELET_ONLY, HELD, HELD_THEN_EVICTED, HOLD_UNANSWERED, BY_HAND, OWN_LIMIT, THROTTLED, SWAP,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OomVictim(Record):
    """A process the OOM killer killed. `policy_rank`: its pod's place in the policy's order, from 1, or None."""

    pid: int
    comm: str
    pod: str | None
    memcg: str
    rss_bytes: int
    oom_score_adj: int
    policy_rank: int | None


@dataclass(frozen=True, slots=True)
class Invoker(Record):
    """The process whose allocation called the OOM killer: not the victim, and not to blame."""

    pid: int
    comm: str
    pod: str | None


@dataclass(frozen=True, slots=True)
class Evicted(Record):
    """A pod that was evicted, or (in an incident marked `observed`) would have been."""

    pod: str
    grace_s: int
    rank: int


@dataclass(frozen=True, slots=True)
class Incident(Record):
    """One episode judged. `start`, `end`: RFC 3339 in UTC, with milliseconds.

    `margin_bytes`, `margin_ms`: positive, eviction won by so much; negative, it was short of so much; None, not known
    or no race (docs/verdicts.md). `by`: whose eviction it is about. `missing`: what would have to be known
    (undetermined only). `counterfactual`: what a kubelet would have done, where worked out. `reported_evicted`: pods
    that the API server has as Evicted by the kubelet, whatever became of them. `refused`: pods that it was asked to
    evict and did not (`--evict-by api`). `holds`: pods that were held instead of killed. `stall`: the pod that waited
    for memory, of the verdict `stalled`.
    """

    id: str
    start: str
    end: str
    domain: str
    verdict: str
    flags: tuple[str, ...]
    oom_victims: tuple[OomVictim, ...]
    invoker: Invoker | None
    evicted: tuple[Evicted, ...]
    margin_bytes: int | None
    margin_ms: float | None
    steps: tuple[dict[str, Any], ...]
    advice: str
    summary: str
    observed: bool = False
    by: str | None = None
    missing: tuple[str, ...] = ()
    counterfactual: tuple[Counterfactual, ...] = ()
    reported_evicted: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    holds: tuple[HeldPod, ...] = ()
    memory: Memory | None = None
    stall: StalledPod | None = None


def timestamp(unix_ns: int) -> str:
    """``unix_ns`` as RFC 3339 in UTC with milliseconds: 2026-01-31T12:00:00.123Z."""
    time = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=unix_ns // 1000)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
