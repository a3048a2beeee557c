"""Evictions in an episode: those with a recorded decision of outrace or a kubelet, and those that only a runtime's
signals show.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from monitor.policy.ranking import Candidate
from monitor.race import events as ev
from monitor.race.badness import evictable

#: The time a killed process needs to die, for an eviction that was only observed: its exit frees about
#: 7 GB/s, measured on one CPU, after about 1 ms.
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

    `settled_ns`: when nothing more was expected of it. `again_ns`: when the same was last decided anew, while it went
    on.
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
    """Every eviction with its outcome; a second decision on a pod that is still dying is the same eviction. An observed
    one lasts until its threshold is clear.
    """
    found: list[RecordedEviction] = []
    over: set[int] = set()  # of those, the observed ones whose threshold cleared
    for event in events:
        if isinstance(event, ev.Decided):
            for i, e in enumerate(found):
                if i not in over and _is_of(e, event.pod, event.by) and e.decision.observed == event.observed:
                    found[i] = replace(e, again_ns=event.ts_ns)
                    break
            else:
                found.append(RecordedEviction(event))
        elif isinstance(event, ev.Clear):
            for i, e in enumerate(found):
                d = e.decision
                if d.observed and d.threshold == event.threshold:
                    over.add(i)
        elif isinstance(event, ev.Signalled | ev.Gone):
            for i, e in enumerate(found):
                if _is_of(e, event.pod, event.by) and not e.decision.observed:
                    found[i] = _advanced(e, event)
                    break
    return found


def _is_of(eviction: RecordedEviction, pod: str, by: str) -> bool:
    return eviction.decision.pod == pod and eviction.decision.by == by and eviction.gone_ns is None


def _advanced(e: RecordedEviction, event: ev.Signalled | ev.Gone) -> RecordedEviction:
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
    """Evictions by a kubelet, which reports nothing when it decides.

    Known by what its runtime did: SIGKILL to a pod that might be evicted, while a threshold of the node was met, and
    then no process was left of that pod. Or by what it wrote to the server, whatever the runtime did: a pod that obeys
    SIGTERM gets no SIGKILL while the threshold is met.

    Not of a pod that outrace evicts or in which the OOM killer was: what a runtime kills then is what they left. When
    the kubelet decided is not known: the first SIGKILL stands for it, or when memory came back.
    """
    met: dict[Threshold, ev.Crossing] = {}
    pressed: list[Pressed] = []
    order: tuple[Candidate, ...] = ()
    others: set[str] = set()
    found: dict[str, RecordedEviction] = {}
    gone: dict[str, ev.Gone] = {}
    over: dict[str, RecordedEviction] = {}
    for event in events:
        if isinstance(event, ev.Crossing) and event.domain in (ev.NODE, ev.KUBEPODS):
            if not met:
                pressed.append(Pressed(event.ts_ns, {}))
            met.setdefault(event.threshold, event)
            pressed[-1].crossed.update(met)
        elif isinstance(event, ev.Clear):
            if met.pop(event.threshold, None) is not None and not met:
                pressed[-1].until_ns = event.ts_ns
        elif isinstance(event, ev.Ranked):
            order = event.order
        elif isinstance(event, ev.Mark) or (isinstance(event, ev.Decided) and not event.observed):
            if event.pod is not None:
                others.add(event.pod)
        elif isinstance(event, ev.Kill) and event.by_runtime and event.pod is not None and met:
            if event.pod not in found and event.pod not in others:
                made = _kubelets(event.ts_ns, event.pod, met, order, {*found, *over})
                if made is not None:
                    found[event.pod] = made
        elif isinstance(event, ev.Gone) and event.by == ev.KUBELET:
            gone[event.pod] = event
            if event.pod in found:
                over[event.pod] = replace(found.pop(event.pod), gone_ns=event.ts_ns, freed=event.freed)
        elif isinstance(event, ev.KubeletEvicted) and event.pod not in others and event.pod not in over:
            ended_ns = gone[event.pod].ts_ns if event.pod in gone else event.ts_ns
            began = found.pop(event.pod, None)
            then = next((one for one in reversed(pressed) if one.since_ns <= ended_ns), None)
            if began is None and then is not None:
                if then.until_ns is not None:  # what it gave back ended the pressure: it was on until then
                    ended_ns = min(ended_ns, then.until_ns - 1)
                began = _kubelets(ended_ns, event.pod, then.crossed, order, {*found, *over}, event.pod_name)
            if began is not None:
                over[event.pod] = replace(began, gone_ns=ended_ns)
    return list(over.values())


def _kubelets(
    ts_ns: int,
    pod: str,
    met: dict[Threshold, ev.Crossing],
    order: Sequence[Candidate],
    taken: Container[str],
    reported_name: str = "",
) -> RecordedEviction | None:
    """The eviction that a SIGKILL belongs to; None if the pod is none that a kubelet would evict.

    ``taken``: pods that it evicted before. ``reported_name``: its name, where the API server reports it as
    Evicted; its rank is 0 where it is not known.
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
