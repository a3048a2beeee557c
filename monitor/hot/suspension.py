"""Suspends evictions in the hot process where they would not help.

`monitor.policy.suspension` decides, by the figures of `monitor.sources.suspension_figures`. This file calls it, and
reports when evictions are suspended and when they are resumed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from monitor.hot.trigger import Trigger
from monitor.kernel.domains import Reading
from monitor.link.messages import Suspended
from monitor.link.outbox import Outbox
from monitor.policy.eviction_pass import Outcome
from monitor.policy.pending_release import Coming
from monitor.policy.signals import DOMAIN_OF, MEMORY_SIGNALS, Observation
from monitor.policy.suspension import GO, GREW, NOISE, WAIT, Answer, Figures, answer, judge
from monitor.policy.thresholds import Threshold
from monitor.sources.gauge import Gauge
from monitor.sources.registry import PodEntry, Registry
from monitor.sources.suspension_figures import Measured, SuspensionFigures
from monitor.sources.watch import Watch

#: Suspended evictions are reported at most so often; the counter and the state have every time.
QUIET_NS = 1_000_000_000


class Asked(NamedTuple):
    """The answer, and the figures that it follows from, by signal, for the record. ``is_of_first``: it is let through
    because the first candidate itself had grown; other figures than that are not needed.
    """

    answer: Answer
    known: Mapping[str, Figures]
    is_of_first: bool = False


UNASKED = Asked(GO, {})


@dataclass(eq=False)
class Suspension:
    """``state`` is the report to the helper of suspended evictions; None while they are not suspended."""

    gauge: Gauge
    registry: Registry
    trigger: Trigger
    figures: SuspensionFigures
    outbox: Outbox
    active: bool = field(kw_only=True)

    def __post_init__(self) -> None:
        self.state: dict[str, Any] | None = None
        self._changed = False
        self._reported_reason = ""  # the last one; "" once it is reported that evictions are resumed
        self._reported_ns = 0

    # asking

    def crossing(self, watch: Watch, reading: Reading, moved: Mapping[int, int], coming: Mapping[str, Coming]) -> Asked:
        """Whether the first of the order may be evicted before a pass: a hard threshold of ``watch`` is met.

        ``moved``: domain index -> working set, of pods that were not ranked anew. ``coming``: the pending release,
        which helps as much as what candidates have.
        """
        if not self.active:
            return UNASKED
        measured = self.figures.measure(watch, reading, moved)
        if measured.growth is not None and measured.growth.is_of_first:
            return Asked(GO, {}, is_of_first=True)
        thresholds = [t for t, line in zip(watch.thresholds, watch.lines, strict=True) if t.hard and line]
        seen = {watch.signal: watch.observation(reading, 0)}
        return self._judged(thresholds, seen, ((watch, reading),), coming, measured)

    def ask(
        self,
        outcome: Outcome,
        seen: Mapping[str, Observation],
        readings: Mapping[str, Reading],
        coming: Mapping[str, Coming],
        *,
        settled: bool,
    ) -> Asked:
        """Whether the victim of a pass may be evicted: always, if the pass is not for memory.

        ``coming`` as above; ``settled``: no release is pending, so it is known what the last eviction gained.
        """
        met = [threshold for threshold in outcome.met if threshold.signal in MEMORY_SIGNALS]
        if not self.active or outcome.starved is None or outcome.starved.signal not in MEMORY_SIGNALS:
            return UNASKED
        if settled:
            self.figures.settle()
        return self._judged(
            met, seen, [(w, readings[w.signal]) for w in self.gauge.watches if w.signal in readings], coming
        )

    def _judged(
        self,
        met: Sequence[Threshold],
        seen: Mapping[str, Observation],
        domains: Sequence[tuple[Watch, Reading]],
        coming: Mapping[str, Coming],
        measured: Measured | None = None,
    ) -> Asked:
        """By a few sums, and by every pod where these leave a doubt."""
        figures = self.figures
        known = {w.signal: _with(coming, w, figures.of_sums(w, reading, measured)) for w, reading in domains}
        found = judge(met, seen, known)
        if not _is_plain(found, known.values()):
            known = {w.signal: _with(coming, w, figures.of_every_pod(w, reading)) for w, reading in domains}
            found = judge(met, seen, known)
        return Asked(found, known)

    def arming(self) -> Answer:
        """Whether the victim would be evicted at a crossing of this moment: else the kernel must not signal it."""
        if not self.active:
            return GO
        if self.state is not None:
            return WAIT
        for watch in self.gauge.watches:
            if watch.hard_line and self.gauge.known(watch):
                reading = self.gauge.reading(watch)
                short = max(0, watch.hard_line - watch.capacity + reading.used)
                if answer(short, watch.hard_line, self.figures.of_sums(watch, reading)) != GO:
                    return WAIT
        return GO

    # reports

    def take(
        self, asked: Asked, outcome: Outcome, seen: Mapping[str, Observation], entry: PodEntry, now_ns: int
    ) -> None:
        """Report when evictions are suspended or resumed. While they are suspended the kernel signals no pod."""
        if asked.answer.reason:
            self._suspend(asked, outcome, seen, entry, now_ns)
        elif (asked.known or asked.is_of_first) and asked.answer.go:
            self._resume("evictions help now", now_ns)
        if not asked.answer.go:
            self.trigger.stand_down()

    def look_after(self, outcome: Outcome, now_ns: int) -> None:
        """A pass is over: evictions are resumed where no threshold needs them. Take a sample, if it is due."""
        starved = outcome.starved
        if starved is None or starved.signal not in MEMORY_SIGNALS:
            self.figures.forget_evictions()
            self._resume("the shortage is over", now_ns)
        elif outcome.victim is None:
            self._resume("no pod is left that may be evicted", now_ns)
        self.figures.note(now_ns)

    def take_changed(self) -> bool:
        changed, self._changed = self._changed, False
        return changed

    def _suspend(
        self, asked: Asked, outcome: Outcome, seen: Mapping[str, Observation], entry: PodEntry, now_ns: int
    ) -> None:
        threshold = outcome.starved
        assert threshold is not None
        reason = asked.answer.reason
        before = self.state
        if before is None:
            self.outbox.stats.add(f"braked_{reason}")
        known = asked.known.get(threshold.signal) or next(iter(asked.known.values()))
        growth, observed = known.growth, seen[threshold.signal]
        watch = next(w for w in self.gauge.watches if w.signal == threshold.signal)
        self.state = {
            "since_ns": now_ns if before is None else before["since_ns"],
            "reason": reason,
            "signal": threshold.signal,
            "domain": DOMAIN_OF[threshold.signal],
            "kind": "hard" if threshold.hard else "soft",
            "quantity": threshold.quantity(observed.capacity),
            "available": observed.available,
            "capacity": observed.capacity,
            "pods_bytes": known.pods,
            "outside_bytes": max(0, self.gauge.reading(watch).working_set - self.registry.sum),
            "growth_outside": growth and growth.outside * 1_000_000_000 // growth.span_ns,  # None: not measured yet
            "growth_inside": growth and growth.inside * 1_000_000_000 // growth.span_ns,
            "victim": entry.uid,
            "name": entry.title,
        }
        if before is None or (before["reason"], before["victim"]) != (reason, entry.uid):
            self._changed = True
        if self._reported_reason != reason and now_ns - self._reported_ns >= QUIET_NS:
            self._reported_reason, self._reported_ns = reason, now_ns
            self.outbox.send(Suspended(ts_ns=now_ns, order=self.registry.leaders(), **self.state))

    def _resume(self, why: str, now_ns: int) -> None:
        state, self.state = self.state, None
        if state is None:
            return
        self._changed = True
        if self._reported_reason:
            self._reported_reason = ""
            self.outbox.send(Suspended(ts_ns=now_ns, resumed=why, **state))


def _is_plain(found: Answer, known: Collection[Figures]) -> bool:
    """Whether the victim may be evicted by sums that are off by a re-rank step of each pod: half of the growth is of
    candidates, or nearly none outside, and no memory is freed there.
    """
    grew = [f.growth for f in known if f.growth is not None]
    if any(f.eases for f in known):
        return False
    return found == GO and all(2 * g.inside >= max(GREW, g.grew) or g.outside < NOISE for g in grew)


def _with(coming: Mapping[str, Coming], watch: Watch, figures: Figures) -> Figures:
    """The pending release counts like the memory of candidates."""
    seen = coming.get(watch.signal)
    return figures if seen is None else figures._replace(pods=figures.pods + seen.coming)
