"""Whether evicting the next pod helps while memory is short; evictions that would not help are suspended.

The kubelet evicts for as long as a threshold is met, whatever uses the memory. For a process outside all pods it
evicts every pod, however small, and the process is still there (five pods of 3.3 MiB, each far below its request, died
in 67 ms). Here a pod is evicted only if that can help:

1. Evictable pods grow: evictions continue, always. Growth is measured over its last `GREW` bytes; a quarter of it in
   these pods is enough. So is half of it, and of `GREW`, in the first candidate alone: memory that others free
   meanwhile then hides nothing.
2. Else evictions are suspended where all candidates together have less than what is missing (`NOT_COVERED`), where
   growth outside would use up what they have within `LASTS_NS` (`OUTGROWN`), or where the last evictions gained
   nothing (`NO_GAIN`).
3. While evictions are suspended, one pod is evicted when memory is about to be used up (within `RESERVE_NS` at the
   measured growth, or less than a quarter of the threshold), and only if that buys time: all candidates together last
   `LASTS_NS`, or the first covers what is missing for as long as it takes to die and no eviction was in vain. A pod
   that buys no time is left alone: the OOM killer ranks by size, and most likely kills the process that grows.

Unknown is not zero: a candidate of unknown usage may cover anything, and while growth is not measured, only the other
numbers of this moment suspend evictions. If the shortage is older than the daemon, the daemon first measures what
grows, for `OBSERVE_NS` at most: one that was restarted while evictions were suspended evicted five pods of 3.3 MiB
within a second, for a process in no pod. Nor does it evict while something outside frees memory: a process of 100 MiB
that ended its shortage itself cost a pod its life when what was missing had become less than what the pods have.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from monitor.policy.signals import Observation
from monitor.policy.thresholds import Threshold

NOT_COVERED = "not_covered"
OUTGROWN = "outgrown"
NO_GAIN = "no_gain"
REASONS = (NOT_COVERED, OUTGROWN, NO_GAIN)

#: Growth is measured over at least this much of it, if there was as much: a CPU charges 256 KiB ahead for a cgroup, so
#: less says little about which cgroup grew.
GREW = 4 << 20
#: ... and over at least this long.
LEAST_SPAN_NS = 5_000_000
#: Less than this within the window is no growth.
NOISE = 1 << 20
#: Time that evictions have to buy to be worth it.
LASTS_NS = 60_000_000_000
#: A shortage older than the daemon is observed for this long before an eviction, unless something grows sooner. A
#: process that grows by less than `NOISE` in this time leaves time enough to measure it.
OBSERVE_NS = 2_000_000_000
#: Memory that would be used up within this time is about to be: four times what a pod of 400 MiB took to free it.
RESERVE_NS = 250_000_000
#: Time in which a victim frees its memory, with a margin.
DYING_NS = 100_000_000
#: After so many evictions in a row that gained nothing, the next would gain nothing either.
IN_VAIN = 2


class Growth(NamedTuple):
    """Growth within ``span_ns``, in bytes: ``inside`` evictable pods, and ``outside`` of all pods that are known not to
    be critical. Memory that an ended pod freed does not reduce the growth of others. ``first``: of the first candidate
    alone, 0 where that is not known.
    """

    span_ns: int
    inside: int
    outside: int
    first: int = 0

    @property
    def grew(self) -> int:
        return max(0, self.inside) + max(0, self.outside)

    @property
    def is_of_first(self) -> bool:
        """Whether the first candidate is plainly the one that grows."""
        return 2 * self.first >= max(GREW, self.grew)


class Figures(NamedTuple):
    """What is known of a domain when the next victim is to be chosen; sizes in bytes.

    ``left``: until memory is used up; ``lasts_ns``: how long that takes at a growth that was measured over a quarter of
    it, so that a few MiB at once say nothing of the rest; None if there was none. ``first``: what the first candidate
    has, None if unknown. ``pods``: what all candidates have, without the ``unknown`` ones. ``in_vain``: evictions of
    this shortage, the last ones in a row, that gained nothing. ``unseen``: memory was short at the first sample, less
    than `OBSERVE_NS` ago. ``eases``: outside of the pods `NOISE` or more was freed within the last moment (half a
    second at most).
    """

    left: int
    lasts_ns: int | None
    first: int | None
    pods: int
    unknown: int
    in_vain: int
    growth: Growth | None
    unseen: bool = False
    eases: bool = False


class Answer(NamedTuple):
    """``go``: evict. ``reason``: why evictions are suspended, "" if they are not; with ``go``, this one buys time.
    Neither: wait until it is known what grows, or what is freed.
    """

    go: bool
    reason: str


GO = Answer(True, "")
WAIT = Answer(False, "")


def missing(threshold: Threshold, available: int, capacity: int) -> int:
    """Bytes to the end of the shortage: to the threshold, and above the threshold to the min reclaim.

    Not to both at once: where the candidates cover the first and not the second, evicting them ends the shortage, and
    only evictions after that are in vain.
    """
    line = threshold.quantity(capacity)
    if available < line or threshold.min_reclaim is None:
        return line - available
    return line + threshold.min_reclaim.amount(capacity) - available


def grown(before: Mapping[str, int], now: Mapping[str, int], candidates: Container[str]) -> tuple[int, int]:
    """From what each pod (uid) had and has: the growth of the ``candidates``, and that of all pods.

    A candidate that has less than half of what it had is not in the first: it is ending, and hides no other's growth.
    """
    inside = everywhere = 0
    for uid, has in now.items():
        had = before.get(uid, 0)
        everywhere += has - had
        if uid in candidates and 2 * has >= had:
            inside += has - had
    return inside, everywhere - sum(had for uid, had in before.items() if uid not in now)


def judge(met: Iterable[Threshold], seen: Mapping[str, Observation], known: Mapping[str, Figures]) -> Answer:
    """Whether the first candidate is to be evicted for one of the thresholds for memory that are ``met``.

    ``known``: figures of the domain by signal; a threshold without figures does not count. One that evictions help is
    enough.
    """
    found = None
    for threshold in met:
        figures = known.get(threshold.signal)
        if figures is None:
            continue
        o = seen[threshold.signal]
        one = answer(missing(threshold, o.available, o.capacity), threshold.quantity(o.capacity), figures)
        if found is None or (one.go and (not found.go or not one.reason)):
            found = one
    return GO if found is None else found


def answer(missing: int, line: int, figures: Figures) -> Answer:
    """Whether the first candidate is to be evicted, where ``missing`` bytes are short for a threshold of ``line``."""
    growth = figures.growth
    if growth is not None and (growth.is_of_first or growth.inside >= max(NOISE, growth.grew // 4)):
        return GO
    reason = _reason(missing, figures)
    if not reason:
        return WAIT if _is_to_be_observed(figures) else GO
    return Answer(_is_critical(line, figures) and _buys(missing, figures), reason)


def lasts_ns(left: int, growth: Growth) -> int | None:
    """How long ``left`` bytes last at this growth; None without any."""
    return max(0, left) * growth.span_ns // growth.grew if growth.grew >= NOISE else None


def was_in_vain(freed: int, claimed: int, outside: int) -> bool:
    """Whether an eviction gained nothing: the pod, which had ``claimed``, freed less than a quarter of it, or growth
    ``outside`` used up most of what it freed. A pod that had next to nothing proves nothing.
    """
    return claimed >= NOISE and (freed < claimed // 4 or outside >= freed * 3 // 4)


def _is_to_be_observed(figures: Figures) -> bool:
    """Whether to wait, because it is soon known what grows, or the shortage is soon over. Not where so little is left
    that it would be used up before.
    """
    grows = figures.growth is not None and figures.growth.grew >= NOISE
    return figures.left >= GREW and (figures.eases or (figures.unseen and not grows))


def _reason(missing: int, figures: Figures) -> str:
    """Why evictions cannot help, "" if they may."""
    if not figures.unknown:
        if figures.pods < missing:
            return NOT_COVERED
        if not _lasts(figures, figures.pods - max(0, missing)):
            return OUTGROWN
    return NO_GAIN if figures.in_vain >= IN_VAIN else ""


def _lasts(figures: Figures, room: int) -> bool:
    """Whether ``room`` bytes last `LASTS_NS` against the growth outside."""
    growth = figures.growth
    return growth is None or growth.outside < NOISE or room * growth.span_ns >= growth.outside * LASTS_NS


def _is_critical(line: int, figures: Figures) -> bool:
    """Whether what is left is about to be used up."""
    growth = figures.growth
    if growth is None or growth.grew < NOISE:
        return False
    return 4 * figures.left < line or (figures.lasts_ns is not None and figures.lasts_ns < RESERVE_NS)


def _buys(missing: int, figures: Figures) -> bool:
    """Whether evicting the first is worth its life when memory is about to be used up."""
    growth = figures.growth
    assert growth is not None, "only what grows is critical"
    if figures.in_vain < IN_VAIN and not figures.unknown and _lasts(figures, figures.pods):
        return True
    while_dying = growth.grew * DYING_NS // growth.span_ns
    return not figures.in_vain and figures.first is not None and figures.first >= missing + while_dying
