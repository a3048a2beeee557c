"""Evictions in an episode: those with a recorded decision, and a kubelet's, which only a runtime's signals show."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from monitor.policy.ranking import Candidate
from monitor.race import events as ev
from monitor.race.badness import evictable

#: How long a killed process takes to die, for an eviction that was only observed: 1 ms, then 7 GB/s (one CPU).
EXIT_NS = 1_000_000
EXIT_BYTES_PER_S = 7_000_000_000
#: The kubelet's runtime layer never gives a pod less than 2 s between SIGTERM and SIGKILL.
KUBELET_MIN_GRACE_S = 2

#: A threshold: domain, signal, hard.
Threshold = tuple[str, str, bool]


@dataclass(slots=True)
class Pressed:
    """A time in which thresholds of memory were met, and the crossings of those."""

    since_ns: int
    crossed: dict[Threshold, ev.Crossing]
    until_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RecordedEviction:
    """One eviction, done or only decided (`observed`). Times in ns, None: did not happen (or was not recorded).
    `settled_ns`: when nothing more was expected of it. `again_ns`: when it was last decided anew, while it went on.
    """

    decision: ev.Decided
    signalled_ns: int | None = None
    killed_ns: int | None = None
    gone_ns: int | None = None
    freed: int | None = None
    settled_ns: int | None = None
    again_ns: int | None = None

    @property
    def grace_ns(self) -> int:
        """What its processes really get: outrace what it decided (a hard threshold without `--hard-grace`: none), a
        kubelet 2 s at least."""
        d = self.decision
        if d.by == ev.KUBELET:
            return max(KUBELET_MIN_GRACE_S, d.grace_s) * 10**9
        return 0 if d.hard and d.observed else max(0, d.grace_s) * 10**9

    @property
    def forced_ns(self) -> int:
        """When SIGKILL was sent, or would have been."""
        if self.killed_ns is not None:
            return self.killed_ns
        return (self.signalled_ns or self.decision.ts_ns) + self.grace_ns

    @property
    def done_ns(self) -> int | None:
        """When its last process was gone. For an observed one: when it would have been, by an estimate."""
        if self.gone_ns is not None or not self.decision.observed:
            return self.gone_ns
        size = self.decision.working_set or 0
        return self.forced_ns + EXIT_NS + size * 10**9 // EXIT_BYTES_PER_S


def recorded_evictions(events: Iterable[ev.Event]) -> list[RecordedEviction]:
    """Every eviction with its outcome: one while its pod is dying, or (observed) until its threshold is clear."""
    found: list[RecordedEviction] = []
    over: set[int] = set()  # of those, the observed ones whose threshold cleared
    for event in events:
        if isinstance(event, ev.Clear):
            decisions = enumerate(e.decision for e in found)
            over |= {i for i, d in decisions if d.observed and d.threshold == event.threshold}
        elif isinstance(event, ev.Decided | ev.Signalled | ev.Gone):
            observed = isinstance(event, ev.Decided) and event.observed
            its = (event.pod, event.by, observed)
            going_on = ((i, e.decision) for i, e in enumerate(found) if e.gone_ns is None and i not in over)
            at = next((i for i, d in going_on if (d.pod, d.by, d.observed) == its), None)
            if at is not None:
                found[at] = _advanced(found[at], event)
            elif isinstance(event, ev.Decided):
                found.append(RecordedEviction(event))
    return found


def _advanced(e: RecordedEviction, event: ev.Decided | ev.Signalled | ev.Gone) -> RecordedEviction:
    if isinstance(event, ev.Decided):
        return replace(e, again_ns=event.ts_ns)
    if isinstance(event, ev.Gone):
        return replace(e, gone_ns=event.ts_ns, freed=event.freed, settled_ns=event.settled_ns)
    first = event.ts_ns if e.signalled_ns is None else e.signalled_ns
    forced = event.ts_ns if event.signal == ev.SIGKILL and e.killed_ns is None else e.killed_ns
    return replace(e, signalled_ns=first, killed_ns=forced)


def met_before(events: Iterable[ev.Event], until_ns: int) -> dict[tuple[str, str, bool], ev.Crossing | int]:
    """The thresholds met just before ``until_ns``, each with its crossing, or its time if only a decision has it."""
    met: dict[tuple[str, str, bool], ev.Crossing | int] = {}
    for event in events:
        if event.ts_ns >= until_ns:
            break
        if isinstance(event, ev.Crossing):
            met.setdefault(event.threshold, event)
        elif isinstance(event, ev.Decided):
            met.setdefault(event.threshold, event.crossed_ns or event.ts_ns)
        elif isinstance(event, ev.Clear):
            met.pop(event.threshold, None)
    return met


def by_kubelet(events: Iterable[ev.Event]) -> list[RecordedEviction]:
    """Evictions by a kubelet, which reports nothing when it decides: the first SIGKILL stands for that, or when memory
    came back. Known by what its runtime did: SIGKILL to a pod that might be evicted, while a threshold of the node was
    met, until no process of it was left. Or by what it wrote to the server: a pod that obeys SIGTERM gets no SIGKILL.
    Not of a pod that outrace evicts or in which the OOM killer was.
    """
    known = _ByKubelet()
    for event in events:
        known.take(event)
    return list(known.over.values())


class _ByKubelet:
    """What is known of a kubelet's evictions so far, by uid: those that go on, and those that are ``over``."""

    def __init__(self) -> None:
        self.over: dict[str, RecordedEviction] = {}
        self._going_on: dict[str, RecordedEviction] = {}
        self._met: dict[Threshold, ev.Crossing] = {}
        self._pressed: list[Pressed] = []
        self._order: tuple[Candidate, ...] = ()
        self._others: set[str | None] = set()  # pods that outrace evicts, or in which the OOM killer was
        self._gone: dict[str, int] = {}  # ns

    def take(self, event: ev.Event) -> None:
        if isinstance(event, ev.Crossing | ev.Clear):
            self._press(event)
        elif isinstance(event, ev.Ranked):
            self._order = event.order
        elif isinstance(event, ev.Mark) or (isinstance(event, ev.Decided) and not event.observed):
            self._others.add(event.pod)
        elif isinstance(event, ev.Kill) and event.by_runtime:
            self._killed(event)
        elif isinstance(event, ev.Gone) and event.by == ev.KUBELET:
            self._gone[event.pod] = event.ts_ns
            if event.pod in self._going_on:
                began = self._going_on.pop(event.pod)
                self.over[event.pod] = replace(began, gone_ns=event.ts_ns, freed=event.freed)
        elif isinstance(event, ev.KubeletEvicted) and event.pod not in {*self._others, *self.over}:
            self._reported(event)

    def _press(self, event: ev.Crossing | ev.Clear) -> None:
        if isinstance(event, ev.Clear):
            if self._met.pop(event.threshold, None) is not None and not self._met:
                self._pressed[-1].until_ns = event.ts_ns
        elif event.domain in (ev.NODE, ev.KUBEPODS):
            if not self._met:
                self._pressed.append(Pressed(event.ts_ns, {}))
            self._met.setdefault(event.threshold, event)
            self._pressed[-1].crossed.update(self._met)

    def _killed(self, event: ev.Kill) -> None:
        if event.pod is None or not self._met or event.pod in {*self._going_on, *self._others}:
            return
        made = _kubelets(event.ts_ns, event.pod, self._met, self._order, {*self._going_on, *self.over})
        if made is not None:
            self._going_on[event.pod] = made

    def _reported(self, event: ev.KubeletEvicted) -> None:
        ended_ns = self._gone.get(event.pod, event.ts_ns)
        began = self._going_on.pop(event.pod, None)
        then = next((one for one in reversed(self._pressed) if one.since_ns <= ended_ns), None)
        if began is None and then is not None:
            if then.until_ns is not None:  # what it gave back ended the pressure: it was on until then
                ended_ns = min(ended_ns, then.until_ns - 1)
            taken = {*self._going_on, *self.over}
            began = _kubelets(ended_ns, event.pod, then.crossed, self._order, taken, event.pod_name)
        if began is not None:
            self.over[event.pod] = replace(began, gone_ns=ended_ns)


def _kubelets(
    ts_ns: int,
    pod: str,
    met: dict[Threshold, ev.Crossing],
    order: Sequence[Candidate],
    taken: Container[str],
    reported_name: str = "",
) -> RecordedEviction | None:
    """The eviction that a SIGKILL belongs to; None if a kubelet would not evict the pod. ``taken``: evicted before.
    ``reported_name``: where the API server reports it as Evicted; its rank is 0 if not known.
    """
    left = (c for c in evictable(order) if c.uid not in taken)
    rank, its = next(((k, c) for k, c in enumerate(left, 1) if c.uid == pod), (0, None))
    if its is None and not reported_name:
        return None
    crossed = min(met.values(), key=lambda c: (not c.hard, c.ts_ns))
    decision = ev.Decided(
        ts_ns=ts_ns,
        domain=crossed.domain,
        signal=crossed.signal,
        hard=crossed.hard,
        quantity=crossed.quantity,
        capacity=crossed.capacity,
        available=crossed.available,
        usage=None,
        pod=pod,
        pod_name=reported_name if its is None else f"{its.namespace}/{its.name}",
        rank=rank,
        grace_s=0,
        observed=False,
        by=ev.KUBELET,
        crossed_ns=crossed.ts_ns,
        working_set=None if its is None else its.usage,
        request=None if its is None else its.request,
    )
    return RecordedEviction(decision, signalled_ns=ts_ns, killed_ns=ts_ns)
