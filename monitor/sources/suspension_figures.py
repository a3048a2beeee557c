"""Figures by which evictions are suspended: what grows and where, what is left, what the last evictions gained.

At a crossing a few sums that are kept anyway are enough; only where they leave a doubt, every pod is sampled (0.2 ms
for 110).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from monitor.kernel.domains import Reading
from monitor.policy.suspension import (
    DYING_NS,
    GREW,
    LEAST_SPAN_NS,
    NOISE,
    OBSERVE_NS,
    Figures,
    Growth,
    grown,
    lasts_ns,
    was_in_vain,
)
from monitor.sources.gauge import Gauge
from monitor.sources.registry import PodEntry, Registry
from monitor.sources.watch import Watch

#: Between two samples of growth: as long as it takes to differ from noise, and 50 us more for each pod, so that samples
#: cost 1 % of a CPU at most.
SPACING_NS, POD_NS = LEAST_SPAN_NS, 50_000
#: Where files have to be read for it (2 ms for 110 pods).
COSTLY_NS = 250_000_000
#: A node that stands still is sampled this often; of one that moves, one sample is kept this often: `SAMPLES` of them
#: remember growth for 12 s. (The last `SAMPLES` alone remember 0.12 s: 4 MiB a second are noise in that.)
STILL_NS = 500_000_000
SAMPLES = 24
#: The growth of single pods is measured over this much: four pods took 4 MiB each, and 256 KiB more is noise.
_HOLD_GREW = 4 * GREW
#: ... and a pod that has not grown for so long stands still. Of 8 hogs on 2 CPUs each runs once in 12 ms, so not less.
#: Not more: with samples `COSTLY_NS` apart the latest that is so old can be within a pod's growth (1 of 7 races lost).
_STANDS_NS = 50_000_000


class Sample(NamedTuple):
    """A domain at a moment: its working set, that of each pod, that of all candidates (bytes). ``ranked``: the last, as
    of their ranking; ``joined``: what of it they had when they became known (`Registry.joined`).
    """

    ts_ns: int
    working_set: int
    usages: Mapping[str, int]
    pods: int
    ranked: int
    joined: int


class Measured(NamedTuple):
    """By a few sums: when, what all candidates have and what the first of them has (bytes), and what grew."""

    now_ns: int
    pods: int
    first: int | None
    growth: Growth | None


class Grown(NamedTuple):
    """By how much each pod grew (bytes, by uid) and the domain as a whole, and what each has now; ``lately``: by how
    much each grew in the last moment of that, None where there is no sample of its beginning.
    """

    pods: dict[str, int]
    everywhere: int
    usages: Mapping[str, int]
    lately: dict[str, int] | None


class SuspensionFigures:
    """Samples of the domains, and the figures that follow from them."""

    def __init__(self, gauge: Gauge, registry: Registry, *, active: bool) -> None:
        self._gauge = gauge
        self._registry = registry
        self._active = active
        self._samples: dict[str, deque[Sample]] = {}
        self._kept: dict[str, deque[Sample]] = {}  # some of them, for longer
        self._observe_ns: dict[str, int] = {}  # signal -> until then a shortage older than the first sample is observed
        self._due_ns = self._recounted_ns = 0
        self._is_missed = False  # there was no sample when something moved
        self.in_vain = 0  # evictions of this shortage, the last ones in a row, that gained nothing
        self._begun: tuple[str, int, Sample] | None = None  # the last eviction: uid, what the pod had, the node then
        self._members = -1  # of the registry, when `_strays` was made
        self._strays: dict[str, frozenset[str]] = {}  # signal -> pods that are not in its domain

    def begin(self, now_ns: int) -> None:
        """All pods are known and counted from now on: earlier samples do not have them."""
        self._clear()
        self._due_ns = 0
        self.note(now_ns)

    def due_ns(self) -> int | None:
        """When to take a sample that was not due yet: the last one of pods that have stopped growing since."""
        return self._due_ns if self._is_missed else None

    def _clear(self) -> None:
        self._samples.clear()
        self._kept.clear()
        self._is_missed = False

    def note(self, now_ns: int) -> None:
        """Take a sample, if that is due and something moved. Not for the moment of a crossing."""
        if not self._active:
            return
        if not self._gauge.arming.armed:
            self._clear()  # the counters of pods stand still from now on
            return
        self._is_missed = now_ns < self._due_ns
        if self._is_missed:
            return
        costly = not self._gauge.is_precise
        self._due_ns = now_ns + (COSTLY_NS if costly else SPACING_NS + POD_NS * len(self._registry))
        for watch in self._gauge.watches:
            if not watch.thresholds or not self._gauge.known(watch):
                continue
            if watch.signal not in self._samples:
                self._samples[watch.signal], self._kept[watch.signal] = deque(maxlen=SAMPLES), deque(maxlen=SAMPLES)
                short = watch.capacity - self._gauge.reading(watch).used < max(watch.lines)
                self._observe_ns[watch.signal] = now_ns + OBSERVE_NS if short else 0
            taken = self._samples[watch.signal]
            if taken and now_ns - taken[-1].ts_ns < STILL_NS:
                moved = self._gauge.reading(watch).working_set - taken[-1].working_set
                if max(abs(moved), abs(self._registry.sum - taken[-1].ranked)) < NOISE:
                    continue
            taken.append(self._sample(watch))
            kept = self._kept[watch.signal]
            if not kept or now_ns - kept[-1].ts_ns >= STILL_NS:
                kept.append(taken[-1])

    def _sample(self, watch: Watch, reading: Reading | None = None) -> Sample:
        """The domain at this moment, or with its ``reading`` of just now; every pod is sampled."""
        now = time.monotonic_ns()
        if self._gauge.is_precise or now - self._recounted_ns >= COSTLY_NS // 10:
            self._gauge.recount()
            self._recounted_ns = now
        usages, pods = self._registry.usages()
        for uid in self._away(watch):
            has = usages.pop(uid, 0)
            if uid in self._registry.candidate_uids:
                pods -= has
        reading = reading or self._gauge.reading(watch)
        ranked, joined = self._registry.sum, self._registry.joined
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
        """What each pod had then. A pod that became known later counts with what it had when it was first counted: a
        late manifest makes no growth of a pod that stands still, and a pod that grows is measured from then on.
        """
        by_uid = self._registry.by_uid
        return {**{uid: by_uid[uid].began for uid in now.usages if uid not in sample.usages}, **sample.usages}

    def _backwards(self, watch: Watch, before_ns: int) -> Iterator[Sample]:
        """The samples up to ``before_ns``, the latest first."""
        recent, kept = self._samples.get(watch.signal, ()), self._kept.get(watch.signal, ())
        return (sample for sample in chain(reversed(recent), reversed(kept)) if sample.ts_ns <= before_ns)

    def _before(self, watch: Watch, working_set: int, now_ns: int, grew: int = GREW) -> Sample | None:
        """The sample to measure growth from: the latest since which the domain ``grew`` by that, or the oldest."""
        found = None
        for found in self._backwards(watch, now_ns - LEAST_SPAN_NS):
            if working_set - found.working_set >= grew:
                break
        return found

    def measure(self, watch: Watch, reading: Reading, moved: Mapping[int, int]) -> Measured:
        """What grew, by the sums as of the ranking: each pod may be off by a re-rank step."""
        now, pods = time.monotonic_ns(), self._registry.sum
        for index, working_set in moved.items():
            entry = self._registry.by_index.get(index)
            if entry is not None and entry.summed:
                pods += working_set - entry.summed
        sample = self._before(watch, reading.working_set, now)
        first = self._registry.first()
        has = None if first is None else moved.get(first.index, first.usage)
        if sample is None:
            return Measured(now, pods, has, None)
        inside = pods - sample.ranked - (self._registry.joined - sample.joined)
        had = None if first is None else sample.usages.get(first.uid)
        grew = 0
        if first is not None and has is not None and had is not None:  # it may have freed memory since its ranking
            grew = min(has, self._gauge.table.working_set(first.index)) - had
        growth = Growth(now - sample.ts_ns, inside, reading.working_set - sample.working_set - inside, grew)
        return Measured(now, pods, has, growth)

    def of_sums(self, watch: Watch, reading: Reading, measured: Measured | None = None) -> Figures:
        """Figures by what was ``measured`` like that, or by a measurement now."""
        now, pods, has, growth = measured or self.measure(watch, reading, {})
        left = self._left(watch, reading)
        lasts, unseen = self._lasts_ns(watch, reading, left, now), now < self._observe_ns.get(watch.signal, 0)
        eases = self._eases(watch, reading.working_set - pods + self._registry.joined, now)
        unknown = 0  # a candidate has been counted
        return Figures(left, lasts, has, pods, unknown, self.in_vain, growth, unseen, eases)

    def of_every_pod(self, watch: Watch, reading: Reading) -> Figures:
        """Figures by what every pod has at this moment."""
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
        return self.of_sums(watch, reading, Measured(now.ts_ns, now.pods, has, growth))

    def grown_pods(self, watch: Watch, reading: Reading) -> Grown:
        """By how much each pod grew lately; empty where there is no earlier sample."""
        now = self._sample(watch, reading)
        sample = self._before(watch, now.working_set, now.ts_ns, _HOLD_GREW)
        if sample is None:
            return Grown({}, 0, now.usages, None)
        latest = next(self._backwards(watch, now.ts_ns - _STANDS_NS), None)
        # If the growth began later, no pod has stood still.
        lately = None if latest is None or latest.ts_ns <= sample.ts_ns else self._grown(latest, now)
        return Grown(self._grown(sample, now), now.working_set - sample.working_set, now.usages, lately)

    def _grown(self, sample: Sample, now: Sample) -> dict[str, int]:
        then = self._then(sample, now)
        return {uid: has - then.get(uid, 0) for uid, has in now.usages.items()}

    def _eases(self, watch: Watch, outside: int, now_ns: int) -> bool:
        """Whether outside of candidates (and in what they had when they became known) less is in use than a moment ago:
        at the last sample, or at most `DYING_NS` ago. The pending release is outside of them too.
        """
        most = outside
        for number, sample in enumerate(reversed(self._samples.get(watch.signal, ()))):
            if number and now_ns - sample.ts_ns > DYING_NS:
                break
            most = max(most, sample.working_set - sample.pods + sample.joined)
        return most - outside >= NOISE

    def _lasts_ns(self, watch: Watch, reading: Reading, left: int, now_ns: int) -> int | None:
        """How long the bytes that are ``left`` last, by growth over a quarter of them at least."""
        sample = self._before(watch, reading.working_set, now_ns, max(GREW, left // 4))
        if sample is None:
            return None
        return lasts_ns(left, Growth(now_ns - sample.ts_ns, 0, reading.working_set - sample.working_set))

    def _left(self, watch: Watch, reading: Reading) -> int:
        """Bytes until memory is used up: in a kubepods without a limit that is when the node's is."""
        left = watch.capacity - reading.used
        node = self._gauge.watches[0]
        if watch.name == node.name:
            return left
        rest = node.capacity - self._gauge.reading(node).used
        return min(left, rest) if watch.limited else rest

    # what evictions gained

    def forget_evictions(self) -> None:
        """What follows is another shortage."""
        self.in_vain, self._begun = 0, None

    def began(self, entry: PodEntry) -> None:
        """A pod was signalled; `settle` measures what that gained, before the next pod is signalled."""
        if self._active and self._gauge.known(self._gauge.watches[0]):
            now = self._sample(self._gauge.watches[0])
            self._begun = (entry.uid, now.usages.get(entry.uid, entry.usage or 0), now)

    def settle(self) -> None:
        """Measure what the last eviction gained: no pod is being evicted now."""
        if self._begun is None or not self._gauge.known(self._gauge.watches[0]):
            return
        uid, claimed, then = self._begun
        self._begun = None
        now = self._sample(self._gauge.watches[0])
        everywhere = grown(self._then(then, now), now.usages, ())[1]
        outside = now.working_set - then.working_set - everywhere
        if was_in_vain(claimed - now.usages.get(uid, 0), claimed, outside):
            self.in_vain += 1
        elif claimed >= NOISE:
            self.in_vain = 0
