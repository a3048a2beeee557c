"""Stall: the share of time in which a pod waits for memory that it had, and the pod that took it. Pure.

A reader whose files no longer fit beside a growing pod ran at 1/365 of its speed, with 208 MiB available and memory
pressure at 1 %: the kernel counts a refault of file pages as io pressure, unless they were in the working set. So the
share here is memory pressure, and of io pressure the part that refaults explain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from monitor.policy.errors import PolicyError
from monitor.policy.gosyntax import parse_duration, parse_percentage

#: What a rule is about: each pod, all of them together, the machine, its swap.
POD, KUBEPODS, MACHINE, SWAP = "pod", "kubepods", "machine", "swap.used"
SCOPES = (POD, KUBEPODS, MACHINE, SWAP)
#: The share that users see is measured over this: a window of PSI's own averages (10 s) lags.
WINDOW_NS = 1_000_000_000
#: A stall is over when the share has been below its line for so long: a reader that stalls has single good seconds.
CALM_NS = 5_000_000_000
#: Growth that can be the cause is measured over this.
GROWTH_NS = 30_000_000_000
#: A pod is a cause if it explains at least this part of what the stalled pod lacks, and grew by half as much as the
#: one that grew most, and by no less than this: every pod grows by some pages.
EXPLAINS, LEAST_GREW = 1 / 3, 4 << 20
#: A pod can be the cause of a full swap with this part of it (systemd-oomd(8)).
LEAST_SWAP = 1 / 20
#: systemd-oomd kills below a unit whose memory pressure has been above this for so long, and when more of swap is in
#: use: DefaultMemoryPressureLimit=, DefaultMemoryPressureDurationSec= and SwapUsedLimit= of oomd.conf(5).
OOMD_SHARE, OOMD_NS, OOMD_SWAP = 0.6, 30_000_000_000, 0.9
#: What reclaim brings back so fast is noise: pages.
_FEW_REFAULTS = 10
#: So many pages go through the memory of any node.
_FEW_PASSED = 1024
#: Pods shrink by less all the time: bytes.
_LEAST_LOST = 1 << 20
_DEFAULT_GRACE_NS, LONGEST_GRACE_NS = 10_000_000_000, 3600 * WINDOW_NS
_RULE = re.compile(r"(?P<scope>[a-z.]+)>(?P<share>[^,]+%)(,grace=(?P<grace>[^,]+))?(?P<acts>(,evict|,relax)*)")
#: A memory.high is raised by this part of it at most, so often at most, and by no less than the smaller part: less
#: lets nothing go on.
RELAX_PART, LEAST_PART, RELAX_PACE_NS = 1 / 8, 1 / 64, 5_000_000_000
#: It is put back when its pod has not stalled for so long. A pod that stalls again then has lost the grace and some
#: steps, a quarter of that; so each time that it does, the time is twice as long, up to the longest.
RELAXED_NS, LONGEST_RELAXED_NS = 60_000_000_000, 3_600_000_000_000


class Load(NamedTuple):
    """Counters of a cgroup at a moment. ``memory_us``, ``io_us``: time in which at least one task
    waited (PSI, ``some``). ``refaults``, ``reclaimed``, ``swap_ins`` (refaults from swap), and what it has, ``size``:
    pages; None: not read. ``passed``: pages of files that the machine has read or written for the first time, but for a
    constant; it may fall.
    """

    ts_ns: int
    memory_us: int
    io_us: int
    refaults: int | None = None
    reclaimed: int | None = None
    swap_ins: int | None = None
    size: int | None = None
    passed: int | None = None


class Rule(NamedTuple):
    """``share`` of time, 0 to 1, of `SWAP` of its bytes; a stall counts when the share over the last ``grace_ns`` is
    above it. ``evict``: then the pod that grew is evicted. ``relax``: then memory.high of a pod that is throttled there
    is raised.
    """

    scope: str
    share: float
    grace_ns: int = _DEFAULT_GRACE_NS
    evict: bool = False
    relax: bool = False


#: Where a unit has ManagedOOMSwap=kill: as much as systemd-oomd lets be used (oomd.conf(5)).
SWAP_RULE = Rule(SWAP, OOMD_SWAP)


def parse_rule(text: str) -> Rule:
    """``pod>50%,grace=10s``, perhaps with ``,evict`` and ``,relax``. Raises PolicyError."""
    found = _RULE.fullmatch(text.replace(" ", ""))
    if found is None or found["scope"] not in SCOPES:
        raise PolicyError(f"{text!r} is not a rule like 'pod>50%,grace=10s' (pod, kubepods, machine or swap.used)")
    share = parse_percentage(found["share"])
    if not 0 < share < 1:
        raise PolicyError(f"{text!r}: the share is more than 0% and less than 100%")
    grace_ns = _DEFAULT_GRACE_NS if found["grace"] is None else parse_duration(found["grace"])
    if not WINDOW_NS <= grace_ns <= LONGEST_GRACE_NS:
        raise PolicyError(f"{text!r}: the grace is 1s to 1h")
    acts = found["acts"].split(",")
    if "relax" in acts and found["scope"] != POD:
        raise PolicyError(f"{text!r}: relax is for pods: write it in a rule like 'pod>50%,grace=10s,relax'")
    return Rule(found["scope"], share, grace_ns, "evict" in acts, "relax" in acts)


def share(before: Load, now: Load) -> float:
    """The share of the time between two samples in which work waited because of memory, 0 to 1.

    Where the pages are not known, io counts as no wait for memory: the share is a lower bound then.
    """
    took_us = (now.ts_ns - before.ts_ns) / 1000
    if took_us <= 0:
        return 0.0
    memory, io = now.memory_us - before.memory_us, now.io_us - before.io_us
    return min(1.0, max(0.0, (memory + io * _refault_share(before, now)) / took_us))


def in_use(last: Load | None, now_ns: int, used: float) -> Load:
    """A share in use (of swap) as a sample: `share` of two is what was in use between them."""
    if last is None:
        return Load(now_ns, 0, 0)
    return Load(now_ns, last.memory_us + round(used * (now_ns - last.ts_ns) / 1000), 0)


def waited(before: Load, now: Load) -> float:
    """The share of time in which work waited for memory or io: no stall is above it."""
    took_us = (now.ts_ns - before.ts_ns) / 1000
    return 0.0 if took_us <= 0 else (now.memory_us - before.memory_us + now.io_us - before.io_us) / took_us


def _refault_share(before: Load, now: Load) -> float:
    """Which part of the pages that reclaim took was needed again: 1 where it took none and there are refaults."""
    if None in (before.refaults, before.reclaimed) or now.refaults is None or now.reclaimed is None:
        return 0.0
    refaults, reclaimed = now.refaults - (before.refaults or 0), now.reclaimed - (before.reclaimed or 0)
    if reclaimed > 0:
        return min(1.0, max(0, refaults) / reclaimed)
    return 1.0 if refaults > _FEW_REFAULTS else 0.0


def swaps(before: Load, now: Load) -> bool:
    """Whether more than half of the pages that were read again came from swap."""
    if before.refaults is None or before.swap_ins is None or now.refaults is None or now.swap_ins is None:
        return False
    return 2 * (now.swap_ins - before.swap_ins) > now.refaults - before.refaults > 0


def goes_round(loads: Sequence[Load]) -> bool:
    """Whether a pod reads pages again and does not get larger, because others are taken from it. One that grows by half
    of what it reads only reads back what it had lost, after an eviction for example.
    """
    known = [(one.refaults, one.size) for one in loads if one.refaults is not None and one.size is not None]
    if len(known) < 2:
        return False
    (refaults, size), (refaults_now, size_now) = known[0], known[-1]
    return refaults_now - refaults > max(_FEW_REFAULTS, 2 * (size_now - size))


def files_passed(first: Load, now: Load) -> int:
    """Pages of files, read or written once, that went through memory in that time; 0 where they were no more than one
    for two that the pod read again. Beside a backup 2 to 7 for one; beside a pod that grew 1 for 280.
    """
    if first.passed is None or first.refaults is None or now.passed is None or now.refaults is None:
        return 0
    passed = now.passed - first.passed
    return passed if passed > max(_FEW_PASSED, (now.refaults - first.refaults) // 2) else 0


def latest(loads: Sequence[Load]) -> float | None:
    """The share over the last `WINDOW_NS`, by samples in order of time; None where they do not go back so far.

    By parts: of a part without pages only the memory pressure is known.
    """
    if not loads or loads[-1].ts_ns - loads[0].ts_ns < WINDOW_NS * 9 // 10:
        return None
    since_ns, waited_ns, over_ns = loads[-1].ts_ns - WINDOW_NS, 0.0, 0
    for before, now in reversed(list(pairwise(loads))):
        if over_ns and before.ts_ns < since_ns:
            break
        waited_ns += share(before, now) * (now.ts_ns - before.ts_ns)
        over_ns += now.ts_ns - before.ts_ns
    return waited_ns / over_ns if over_ns else None


class Oomd(NamedTuple):
    """What systemd-oomd would have seen of a stall: the most of memory pressure ``full`` (avg10, 0 to 1; None: not
    known), since when that has been above its limit, and whether it would have killed.
    """

    full: float | None = None
    since_ns: int | None = None
    kills: bool = False

    def seen(self, full: float | None, now_ns: int) -> Oomd:
        """By the defaults of oomd.conf(5)."""
        if full is None:
            return self
        since_ns = None if full <= OOMD_SHARE else now_ns if self.since_ns is None else self.since_ns
        kills = since_ns is not None and now_ns - since_ns >= OOMD_NS
        return Oomd(max(full, self.full or 0.0), since_ns, self.kills or kills)


UNSEEN = Oomd()


class Stall(NamedTuple):
    """One stall: since when, when the share was last above the line, the most it was, how much of the time since then
    was waiting. ``counts``: its grace is over.
    """

    since_ns: int
    above_ns: int
    most: float
    waited_ns: float = 0.0
    counts: bool = False


def advance(rule: Rule, stall: Stall | None, loads: Sequence[Load]) -> Stall | None:
    """The stall of one subject after another sample; None where there is none, or it is over.

    It counts where the share over a whole grace is above the line. A program that writes files waits as long now and
    then (26 of 200 seconds), so single seconds prove nothing.
    """
    now_share = latest(loads)
    if now_share is None:
        return stall
    before, now = loads[-2], loads[-1]
    if now_share > rule.share:
        stall = stall or Stall(before.ts_ns, now.ts_ns, now_share)
        stall = stall._replace(above_ns=now.ts_ns, most=max(stall.most, now_share))
    elif stall is None or now.ts_ns - stall.above_ns >= CALM_NS:
        return None
    stall = stall._replace(waited_ns=stall.waited_ns + share(before, now) * (now.ts_ns - before.ts_ns))
    lasts_ns = now.ts_ns - stall.since_ns
    if stall.counts or lasts_ns < rule.grace_ns:
        return stall
    if stall.waited_ns > rule.share * lasts_ns:
        return stall._replace(counts=True)
    return stall._replace(since_ns=now.ts_ns, waited_ns=0.0)


#: Why a stall is over: its cause has freed half of what it took, or was evicted; the pod's memory.high was raised; the
#: stalled pod is gone; or none of these.
FREED, EVICTED, RELAXED, GONE, CALM = "freed", "evicted", "relaxed", "gone", "calm"
#: Why a pod is the cause: it reached its own limit or its memory.high; it grew; what grew is in no pod; files that are
#: read or written once, whosoever's; no growth explains a third. Of a full swap: it has most of it.
OWN_LIMIT, THROTTLED, GREW, OUTSIDE, UNKNOWN = "own_limit", "throttled", "grew", "outside", "unknown"
FILES, SWAPPED = "files", "swapped"


class Size(NamedTuple):
    """Bytes of a pod: those that reclaim cannot take, and of its page cache."""

    kept: int
    cache: int


NOTHING = Size(0, 0)


class Lacks(NamedTuple):
    """What a stalled pod lacks. ``lost``: by how many bytes its memory shrank in `GROWTH_NS`; ``refaulted``: bytes that
    it read again in the last second, the same ones perhaps many times, so no more than it has. ``limit``: `OWN_LIMIT`
    or `THROTTLED` where it is at one; "" else. ``passed``: bytes of `files_passed` in the stall.
    """

    uid: str
    lost: int = 0
    refaulted: int = 0
    limit: str = ""
    passed: int = 0

    @property
    def size(self) -> int:
        return self.lost if self.lost >= _LEAST_LOST else self.refaulted


class Cause(NamedTuple):
    """``uid``: the pod that caused it, "" for none. ``grew``: its bytes of memory that cannot be reclaimed; those of
    `SWAPPED` are in swap.
    """

    uid: str
    why: str
    grew: int = 0


def growth(before: Mapping[str, Size], now: Mapping[str, Size]) -> tuple[dict[str, int], int]:
    """By how much each pod grew, in bytes that reclaim cannot take; and all outside pods."""
    if not before:
        return {}, 0
    grew = {uid: has.kept - before.get(uid, NOTHING).kept for uid, has in now.items()}
    whole = grew.pop(MACHINE, 0)
    grew.pop(KUBEPODS, None)
    return grew, whole - sum(grew.values()) + gone(before, now)


def gone(before: Mapping[str, Size], now: Mapping[str, Size]) -> int:
    """What pods had that have ended, in bytes that reclaim cannot take."""
    return sum(had.kept for uid, had in before.items() if uid not in now and uid not in (MACHINE, KUBEPODS))


def cause(lacks: Lacks, grew: Mapping[str, int], outside: int, order: Sequence[str]) -> Cause:
    """Which pod caused a stall. ``grew``: by how much each pod grew in `GROWTH_NS`, in bytes of memory that cannot be
    reclaimed; ``outside``: all that is in no pod. ``order``: uids in eviction order, critical pods last. Of
    several that explain the stall (`EXPLAINS`) it is the first of the order; none where files that passed do.
    """
    if lacks.limit:
        return Cause(lacks.uid, lacks.limit, max(0, grew.get(lacks.uid, 0)))
    if not lacks.size:  # not known: any growth would explain it
        return Cause("", UNKNOWN)
    least = max(LEAST_GREW, int(lacks.size * EXPLAINS), max(0, outside, *grew.values()) // 2)
    if lacks.passed >= least:
        return Cause("", FILES)
    able = {uid for uid, more in grew.items() if more >= least and uid != lacks.uid}
    found = next((uid for uid in order if uid in able), "")
    if found:
        return Cause(found, GREW, grew[found])
    if grew.get(lacks.uid, 0) >= least:
        return Cause(lacks.uid, GREW, grew[lacks.uid])
    return Cause("", OUTSIDE, outside) if outside >= least else Cause("", UNKNOWN)


def most_swapped(swapped: Mapping[str, int], total: int) -> Cause:
    """Which of these pods has most of a full swap of ``total`` bytes (0: not known)."""
    uid = max(swapped, key=lambda one: swapped[one], default="")
    return Cause(uid, SWAPPED, swapped[uid]) if uid and swapped[uid] >= total * LEAST_SWAP > 0 else Cause("", UNKNOWN)


def relaxed(high: int, most: int | None, free: int) -> int:
    """The memory.high, bytes, with which a throttled pod goes on; ``high`` itself where it is not to be raised.
    ``most``: the lowest memory.max of the cgroup and those above it. ``free``: what the machine and the cgroups above
    it have available over their highest lines, of which it gets half at most.
    """
    wanted = high + min(int(high * RELAX_PART), free // 2)
    if most is not None:
        wanted = min(wanted, most)
    return wanted if wanted - high >= max(1, int(high * LEAST_PART)) else high


def relaxed_for_ns(last_ns: int, since_ns: int) -> int:
    """How long a memory.high that is raised now stays so after the stall. ``last_ns``: the same of the last time, 0
    without one; ``since_ns``: how long ago it was put back then.
    """
    if not last_ns or since_ns > last_ns:
        return RELAXED_NS
    return min(2 * last_ns, LONGEST_RELAXED_NS)
