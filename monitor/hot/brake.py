"""The brake on evictions in the hot process: what grows and where, and whether the next victim is let through.

What is decided is decided in `monitor.policy.eviction_brake`. This file measures growth, brings the figures, and says
when evictions are held and when they are not any more. At a crossing it is enough that the victim itself has grown, or
else a few sums that are kept anyway; only where they leave a doubt is every pod looked at (0.2 ms for 110).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any, NamedTuple

from monitor.hot.gauge import Gauge
from monitor.hot.registry import PodEntry, Registry
from monitor.hot.trigger import Trigger
from monitor.kernel.domains import Reading
from monitor.link.counters import SharedStats
from monitor.link.messages import Braked, Released, Send
from monitor.policy.eviction_brake import (
    DYING_NS,
    GO,
    GREW,
    LEAST_SPAN_NS,
    NOISE,
    OBSERVE_NS,
    Answer,
    Figures,
    Growth,
    answer,
    grown,
    judge,
    lasts_ns,
    was_in_vain,
)
from monitor.policy.patience import Coming
from monitor.policy.signals import MEMORY_SIGNALS
from monitor.policy.synchronize import Observation, Outcome
from monitor.policy.thresholds import Threshold
from monitor.sources.watch import NODE_SIGNAL, Watch

#: Between two samples of growth: as long as it takes to differ from noise, and 50 us more for each pod, so that it
#: costs 1 % of a CPU at most.
SPACING_NS, POD_NS = LEAST_SPAN_NS, 50_000
#: Where files have to be read for it (2 ms for 110 pods).
COSTLY_NS = 250_000_000
#: A node that stands still is sampled so often, and of one that moves one sample is kept that often: with `SAMPLES` of
#: them growth is remembered for 12 s. (Not for the last `SAMPLES` alone, 0.12 s: 4 MiB a second are noise in that.)
STILL_NS = 500_000_000
SAMPLES = 24
#: That evictions are held is reported at most so often; the counter and the state know of every time.
QUIET_NS = 1_000_000_000


class Sample(NamedTuple):
    """A domain at a moment: its working set, that of each pod, that of all candidates (bytes). ``ranked``: the last, by
    what each had when it was ranked; ``joined``: what of it they had when they became known (`Registry.joined`).
    """

    ts_ns: int
    working_set: int
    usages: Mapping[str, int]
    pods: int
    ranked: int
    joined: int


class Asked(NamedTuple):
    """What came out, and the figures it came from, by signal, for the record."""

    answer: Answer
    known: Mapping[str, Figures]


class Measured(NamedTuple):
    """By a few sums: when, what candidates have and what the first of them does (bytes), and what grew."""

    now_ns: int
    pods: int
    first: int | None
    growth: Growth | None


UNASKED = Asked(GO, {})


class Brake:
    """``state`` is what the side is sent of evictions being held; None while they are not."""

    def __init__(
        self, gauge: Gauge, registry: Registry, trigger: Trigger, stats: SharedStats, send: Send, *, active: bool
    ) -> None:
        self._gauge = gauge
        self._registry = registry
        self._trigger = trigger
        self._stats = stats
        self._send = send
        self._active = active
        self.state: dict[str, Any] | None = None
        self._changed = False
        self._said = ""  # the reason that was reported last, until it is reported that evictions are not held any more
        self._samples: dict[str, deque[Sample]] = {}
        self._kept: dict[str, deque[Sample]] = {}  # some of them, for longer
        self._observe_ns: dict[str, int] = {}  # signal -> until then a shortage that nobody saw begin is observed
        self._due_ns = self._recounted_ns = self._said_ns = 0
        self._in_vain = 0
        self._begun: tuple[str, int, Sample] | None = None  # the last eviction: uid, what the pod had, the node then
        self._measured: Measured | None = None  # at a crossing, until the signal is out
        self._members = -1  # of the registry, when `_strays` was made
        self._strays: dict[str, frozenset[str]] = {}  # signal -> pods that are not in its domain

    # measuring

    def begin(self, now_ns: int) -> None:
        """All pods are known and counted from now on: what was measured before knows nothing of them."""
        self._samples.clear()
        self._due_ns = 0
        self.note(now_ns)

    def note(self, now_ns: int) -> None:
        """Take a sample, if that is due and something moved. Not for the moment of a crossing."""
        if not self._active or now_ns < self._due_ns:
            return
        if not self._gauge.arming.armed:
            self._samples.clear()  # the counters of pods stand still from now on
            return
        costly = not self._gauge.is_precise
        self._due_ns = now_ns + (COSTLY_NS if costly else SPACING_NS + POD_NS * len(self._registry))
        for watch in self._gauge.watches:
            if not watch.thresholds or not self._gauge.known(watch):
                continue
            if watch.signal not in self._samples:
                self._samples[watch.signal], self._kept[watch.signal] = deque(maxlen=SAMPLES), deque(maxlen=SAMPLES)
                short = watch.capacity - self._gauge.reading(watch).working_set < max(watch.lines)
                self._observe_ns[watch.signal] = now_ns + OBSERVE_NS if short else 0
            taken = self._samples[watch.signal]
            if taken and now_ns - taken[-1].ts_ns < STILL_NS:
                moved = self._gauge.reading(watch).working_set - taken[-1].working_set
                if max(abs(moved), abs(self._registry.held[0] - taken[-1].ranked)) < NOISE:
                    continue
            taken.append(self._sample(watch))
            kept = self._kept[watch.signal]
            if not kept or now_ns - kept[-1].ts_ns >= STILL_NS:
                kept.append(taken[-1])

    def _sample(self, watch: Watch, reading: Reading | None = None) -> Sample:
        """The domain at this moment, or with its ``reading`` of just now; every pod is looked at."""
        now = time.monotonic_ns()
        if self._gauge.is_precise or now - self._recounted_ns >= COSTLY_NS // 10:
            self._gauge.recount()
            self._recounted_ns = now
        usages, pods = self._registry.usages()
        for uid in self._away(watch):
            has = usages.pop(uid, 0)
            if self._registry.is_candidate(uid):
                pods -= has
        reading = reading or self._gauge.reading(watch)
        ranked, joined = self._registry.held[0], self._registry.joined
        return Sample(time.monotonic_ns(), reading.working_set, usages, pods, ranked, joined)

    def _away(self, watch: Watch) -> frozenset[str]:
        """Pods that are not in the domain: a service of the VM is not in kubepods."""
        if self._members != self._registry.members:
            self._members = self._registry.members
            self._strays = {
                w.signal: frozenset(e.uid for e in self._registry if w.path not in e.cgroup.parents)
                for w in self._gauge.watches
                if w.path is not None
            }
        return self._strays.get(watch.signal, frozenset())

    def _then(self, sample: Sample, now: Sample) -> Mapping[str, int]:
        """What each pod had then. One that is known since then is taken for what it had when it was counted first: a
        pod that stands still is no growth because its manifest comes late, and one that grows is seen from then on.
        """
        by_uid = self._registry.by_uid
        return {**{uid: by_uid[uid].began for uid in now.usages if uid not in sample.usages}, **sample.usages}

    def _before(self, watch: Watch, working_set: int, now_ns: int, grew: int = GREW) -> Sample | None:
        """The sample that growth up to now is measured from: so long ago that it ``grew`` by that, or the oldest."""
        found = None
        recent, kept = self._samples.get(watch.signal, ()), self._kept.get(watch.signal, ())
        for sample in chain(reversed(recent), reversed(kept)):
            if now_ns - sample.ts_ns >= LEAST_SPAN_NS:
                found = sample
                if working_set - sample.working_set >= grew:
                    break
        return found

    # asking

    def crossing(self, watch: Watch, reading: Reading, moved: Mapping[int, int], coming: Mapping[str, Coming]) -> Asked:
        """Whether the first of the order may go although no pass was made: a hard threshold of ``watch`` is met.

        ``moved``: domain index -> working set, of pods that were not ranked anew. ``coming``: what the dead give back
        still, which helps as much as what candidates have.
        """
        self._measured = None
        if not self._active:
            return UNASKED
        measured = self._measure(watch, reading, moved)
        if measured.growth is not None and measured.growth.is_of_first:
            self._measured = measured
            return UNASKED
        thresholds = [t for t, line in zip(watch.thresholds, watch.lines, strict=True) if t.hard and line]
        seen = {watch.signal: watch.observation(reading, 0)}
        figures = _with(coming, watch, self._quickly(watch, reading, measured))
        found = judge(thresholds, seen, {watch.signal: figures})
        if not _is_plain(found, (figures,)):
            figures = _with(coming, watch, self._exactly(watch, reading))
            found = judge(thresholds, seen, {watch.signal: figures})
        return Asked(found, {watch.signal: figures})

    @property
    def is_of_first(self) -> bool:
        """Whether the last crossing was let through because the first candidate itself had grown."""
        return self._measured is not None

    def figured(self, asked: Asked, watch: Watch, reading: Reading, coming: Mapping[str, Coming]) -> Asked:
        """What `crossing` answered, with the figures that it had no need of. For when the signal is out: 40 us."""
        measured, self._measured = self._measured, None
        if measured is None:
            return asked
        return Asked(asked.answer, {watch.signal: _with(coming, watch, self._quickly(watch, reading, measured))})

    def ask(
        self,
        outcome: Outcome,
        seen: Mapping[str, Observation],
        readings: Mapping[str, Reading],
        coming: Mapping[str, Coming],
        *,
        settled: bool,
    ) -> Asked:
        """Whether the victim of a pass may go. What it is decided for is memory, or it may.

        ``coming`` as above; ``settled``: nothing is, so that it is known what the last eviction gained.
        """
        met = [threshold for threshold in outcome.met if threshold.signal in MEMORY_SIGNALS]
        if not self._active or outcome.starved is None or outcome.starved.signal not in MEMORY_SIGNALS:
            return UNASKED
        if settled:
            self._settle()
        watches = [w for w in self._gauge.watches if w.name in readings]
        known = {w.signal: _with(coming, w, self._quickly(w, readings[w.name])) for w in watches}
        found = judge(met, seen, known)
        if not _is_plain(found, known.values()):
            known = {w.signal: _with(coming, w, self._exactly(w, readings[w.name])) for w in watches}
            found = judge(met, seen, known)
        return Asked(found, known)

    def forbids_arming(self) -> bool:
        """Whether the victim would not be let through at a crossing of this moment: then the kernel may not pull."""
        if not self._active:
            return False
        if self.state is not None:
            return True
        for watch in self._gauge.watches:
            if watch.hard_line and self._gauge.known(watch):
                reading = self._gauge.reading(watch)
                short = max(0, watch.hard_line - watch.capacity + reading.working_set)
                if answer(short, watch.hard_line, self._quickly(watch, reading)) != GO:
                    return True
        return False

    def _measure(self, watch: Watch, reading: Reading, moved: Mapping[int, int]) -> Measured:
        """What grew, by the sums of what was ranked: what every pod has may be off by a step."""
        now, pods = time.monotonic_ns(), self._registry.held[0]
        for index, working_set in moved.items():
            entry = self._registry.by_index.get(index)
            if entry is not None and entry.summed[0]:
                pods += working_set - entry.summed[0]
        sample = self._before(watch, reading.working_set, now)
        first = self._registry.first()
        has = None if first is None else moved.get(first.index, first.usage)
        if sample is None:
            return Measured(now, pods, has, None)
        inside = pods - sample.ranked - (self._registry.joined - sample.joined)
        had = None if first is None else sample.usages.get(first.uid)
        grew = 0
        if first is not None and has is not None and had is not None:  # the rank may be of before it gave memory back
            grew = min(has, self._gauge.table.working_set(first.index)) - had
        growth = Growth(now - sample.ts_ns, inside, reading.working_set - sample.working_set - inside, grew)
        return Measured(now, pods, has, growth)

    def _quickly(self, watch: Watch, reading: Reading, measured: Measured | None = None) -> Figures:
        """By what was measured like that, or is now."""
        now, pods, has, growth = measured or self._measure(watch, reading, {})
        left = self._left(watch, reading)
        lasts, unseen = self._lasts_ns(watch, reading, left, now), now < self._observe_ns.get(watch.signal, 0)
        eases = self._eases(watch, reading.working_set - pods + self._registry.joined, now)
        return Figures(left, lasts, has, pods, self._registry.held[1], self._in_vain, growth, unseen, eases)

    def _exactly(self, watch: Watch, reading: Reading) -> Figures:
        """By what every pod has at this moment."""
        now = self._sample(watch, reading)
        sample = self._before(watch, now.working_set, now.ts_ns)
        growth = None
        first = self._registry.first()
        has = None if first is None or first.usage is None else now.usages.get(first.uid, first.usage)
        if sample is not None:
            inside, everywhere = grown(self._then(sample, now), now.usages, self._registry.candidate_uids)
            outside = now.working_set - sample.working_set - everywhere
            had = None if first is None else sample.usages.get(first.uid)
            grew = 0 if has is None or had is None else has - had
            growth = Growth(now.ts_ns - sample.ts_ns, inside, outside, grew)
        left, unknown = self._left(watch, reading), self._registry.held[1]
        lasts = self._lasts_ns(watch, reading, left, now.ts_ns)
        unseen = now.ts_ns < self._observe_ns.get(watch.signal, 0)
        eases = self._eases(watch, now.working_set - now.pods + now.joined, now.ts_ns)
        return Figures(left, lasts, has, now.pods, unknown, self._in_vain, growth, unseen, eases)

    def _eases(self, watch: Watch, outside: int, now_ns: int) -> bool:
        """Whether outside of candidates (and in what they had when they became known) less is in use than a moment ago:
        at the last sample, or at most `DYING_NS` ago. What the dead give back late is outside of them too.
        """
        most = outside
        for number, sample in enumerate(reversed(self._samples.get(watch.signal, ()))):
            if number and now_ns - sample.ts_ns > DYING_NS:
                break
            most = max(most, sample.working_set - sample.pods + sample.joined)
        return most - outside >= NOISE

    def _lasts_ns(self, watch: Watch, reading: Reading, left: int, now_ns: int) -> int | None:
        """How long what is left lasts, by growth over a quarter of it at least."""
        sample = self._before(watch, reading.working_set, now_ns, max(GREW, left // 4))
        if sample is None:
            return None
        return lasts_ns(left, Growth(now_ns - sample.ts_ns, 0, reading.working_set - sample.working_set))

    def _left(self, watch: Watch, reading: Reading) -> int:
        """Bytes until memory is used up: in a kubepods without a limit that is when the node's is."""
        left = watch.capacity - reading.working_set
        node = self._gauge.watches[0]
        if watch is node:
            return left
        rest = node.capacity - self._gauge.reading(node).working_set
        return min(left, rest) if watch.limited else rest

    # what evictions gained

    def began(self, entry: PodEntry) -> None:
        """A pod was signalled; what becomes of it is looked at before the next one is."""
        if self._active and self._gauge.known(self._gauge.watches[0]):
            now = self._sample(self._gauge.watches[0])
            self._begun = (entry.uid, now.usages.get(entry.uid, entry.usage or 0), now)

    def _settle(self) -> None:
        """Look what the last eviction gained: nobody is being evicted now."""
        if self._begun is None or not self._gauge.known(self._gauge.watches[0]):
            return
        uid, claimed, then = self._begun
        self._begun = None
        now = self._sample(self._gauge.watches[0])
        everywhere = grown(self._then(then, now), now.usages, ())[1]
        outside = now.working_set - then.working_set - everywhere
        if was_in_vain(claimed - now.usages.get(uid, 0), claimed, outside):
            self._in_vain += 1
        elif claimed >= NOISE:
            self._in_vain = 0

    # saying it

    def lets(
        self, asked: Asked, outcome: Outcome, seen: Mapping[str, Observation], entry: PodEntry, now_ns: int
    ) -> bool:
        """Whether the victim of a pass is let through, and say it when evictions are held or are not any more.

        None is signalled in the kernel while they are.
        """
        if asked.answer.reason:
            self._hold(asked, outcome, seen, entry, now_ns)
        elif asked.known and asked.answer.go:
            self._release("evictions help now", now_ns)
        if not asked.answer.go:
            self._trigger.rest()
        return asked.answer.go

    def look_after(self, outcome: Outcome, now_ns: int) -> None:
        """A pass is over: evictions are not held where nothing asks for them any more. Take a sample, if it is time."""
        starved = outcome.starved
        if starved is None or starved.signal not in MEMORY_SIGNALS:
            self._in_vain, self._begun = 0, None  # what follows is another shortage
            self._release("the shortage is over", now_ns)
        elif outcome.victim is None:
            self._release("no pod is left that may be evicted", now_ns)
        self.note(now_ns)

    def take_changed(self) -> bool:
        """Whether `state` is another one since this was asked last."""
        changed, self._changed = self._changed, False
        return changed

    def _hold(
        self, asked: Asked, outcome: Outcome, seen: Mapping[str, Observation], entry: PodEntry, now_ns: int
    ) -> None:
        threshold = outcome.starved
        assert threshold is not None
        reason = asked.answer.reason
        before = self.state
        if before is None:
            self._stats.add(f"braked_{reason}")
        known = asked.known.get(threshold.signal) or next(iter(asked.known.values()))
        self.state = {
            "since_ns": now_ns if before is None else before["since_ns"],
            "reason": reason,
            **_about(threshold, seen[threshold.signal]),
            "pods_bytes": known.pods,
            "outside_bytes": self._outside(threshold),
            **_rates(known.growth),
            "victim": entry.uid,
            "name": entry.title,
        }
        if before is None or (before["reason"], before["victim"]) != (reason, entry.uid):
            self._changed = True
        if self._said != reason and now_ns - self._said_ns >= QUIET_NS:
            self._said, self._said_ns = reason, now_ns
            self._send(Braked(ts_ns=now_ns, order=self._registry.leaders(), **self.state))

    def _release(self, why: str, now_ns: int) -> None:
        state, self.state = self.state, None
        if state is None:
            return
        self._changed = True
        if self._said:
            self._said = ""
            about = {key: state[key] for key in ("signal", "domain", "kind")}
            held_ns = now_ns - state["since_ns"]
            self._send(Released(ts_ns=now_ns, was=state["reason"], why=why, held_ns=held_ns, **about))

    def _outside(self, threshold: Threshold) -> int:
        """What is in use outside of all pods that may be evicted."""
        watch = next(w for w in self._gauge.watches if w.signal == threshold.signal)
        return max(0, self._gauge.reading(watch).working_set - self._registry.held[0])


def _is_plain(found: Answer, known: Collection[Figures]) -> bool:
    """Whether the victim may go by sums that are off by a step of each pod: half of what grew is theirs, or nearly
    nothing grew outside, and nothing is given back there.
    """
    grew = [f.growth for f in known if f.growth is not None]
    if any(f.eases for f in known):
        return False
    return found == GO and all(2 * g.inside >= max(GREW, g.grew) or g.outside < NOISE for g in grew)


def _with(coming: Mapping[str, Coming], watch: Watch, figures: Figures) -> Figures:
    """What the dead give back still is as good as what candidates would."""
    seen = coming.get(watch.signal)
    return figures if seen is None else figures._replace(pods=figures.pods + seen.coming)


def _about(threshold: Threshold, seen: Observation) -> dict[str, Any]:
    return {
        "signal": threshold.signal,
        "domain": "node" if threshold.signal == NODE_SIGNAL else "kubepods",
        "kind": "hard" if threshold.hard else "soft",
        "quantity": threshold.quantity(seen.capacity),
        "available": seen.available,
        "capacity": seen.capacity,
    }


def _rates(growth: Growth | None) -> dict[str, int | None]:
    """Bytes per second; None where it was not measured yet."""
    if growth is None:
        return {"growth_outside": None, "growth_inside": None}
    per_s = 1_000_000_000
    return {
        "growth_outside": growth.outside * per_s // growth.span_ns,
        "growth_inside": growth.inside * per_s // growth.span_ns,
    }
