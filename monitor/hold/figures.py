"""Figures for the policy of holds: available memory, its growth under the brakes, and the pods that grow."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from monitor.hold.brakes import UNTIL_NEXT_LOOK, Hold, HoldBrakes
from monitor.policy import hold
from monitor.policy.hold import Domain, Look, Rules, State, who_grew, who_grows_on
from monitor.sources.gauge import Gauge
from monitor.sources.registry import PodEntry, Registry
from monitor.sources.suspension_figures import SuspensionFigures
from monitor.sources.watch import Watch

#: Growth under a hold is measured over the last so long, and over no less than that.
WINDOW_NS, LEAST_NS = 50_000_000, 4_000_000
#: The kubelet reports an eviction when the pod has ended (it waits 30 s at most) and a status is due (10 s).
_REPORTS_NS = 60_000_000_000


class KubeletAnswers:
    """How a kubelet answers a hold: it evicts the held pod, one that the policy would evict before it, or another one.
    ``other``: another one, evicted for memory; ``last``: the last of those, for the report of the hold.
    ``answered``: the kubelet evicted the held pod or one before it.
    """

    def __init__(self) -> None:
        self.other = self.last = ""
        self.answered = False
        self._next_ns = 0  # when the end of a pod that is not held counts again
        self._before: dict[str, int] = {}  # held pods, those before them, and when: the kubelet reports after the kill

    def hold(self, before: Iterable[str], now_ns: int) -> None:
        """A pod is held now; ``before``: its uid, and those before it in eviction order."""
        latest = {uid: ns for uid, ns in self._before.items() if now_ns - ns < _REPORTS_NS}
        self._before = latest | dict.fromkeys(before, now_ns)

    def take(self, uid: str, now_ns: int) -> None:
        """The kubelet evicted a pod for memory."""
        if now_ns - self._before.get(uid, -_REPORTS_NS) < _REPORTS_NS:
            self.answered = True
        else:
            self.other = self.last = uid

    def gone(self, uid: str, now_ns: int, *, held: bool) -> None:
        """A pod is gone. If it was ``held``, or one of those before, the kubelet samples again, and may report it
        later. Of those before one counts in `_REPORTS_NS`: jobs start and end.
        """
        if now_ns - self._before.get(uid, -_REPORTS_NS) < _REPORTS_NS and (held or now_ns >= self._next_ns):
            self.answered = True
            self._next_ns = self._next_ns if held else now_ns + _REPORTS_NS

    def forget(self) -> None:
        """The policy has used these answers."""
        self.other, self.answered = "", False


@dataclass(eq=False)
class HoldFigures:
    gauge: Gauge
    registry: Registry
    rules: Rules
    figures: SuspensionFigures
    brakes: HoldBrakes
    log: Callable[..., None]

    def __post_init__(self) -> None:
        self._before: dict[str, Mapping[str, int]] = {}  # signal -> working sets, to measure growth from
        #: Signal -> when, bytes available and used by pods that run for a moment, bytes available and used by all pods
        #: held with a cap; since a brake changed.
        self._available: dict[str, deque[tuple[int, int, int]]] = {}
        self._counted = set[str](), set[str]()  # uids of capped pods of known usage; of those that run
        self.refused: set[str] = set()  # uids of pods that cannot be held, reported

    def domains(self) -> dict[str, Domain]:
        found = {}
        for watch in self.gauge.watches:
            if watch.hard_line and self.gauge.known(watch):
                available = watch.capacity - self.gauge.reading(watch).used
                above = [t.min_reclaim.amount(watch.capacity) for t in watch.thresholds if t.hard and t.min_reclaim]
                found[watch.signal] = Domain(available, watch.hard_line, watch.hard_line + max(above, default=0))
        return found

    def is_short(self, domain: Domain) -> bool:
        return domain.available < hold.hold_line(self.rules, domain)

    def braked(self) -> None:
        """A brake was put in force or released: growth is measured from now on."""
        self._available.clear()

    def with_rates(
        self, domains: Mapping[str, Domain], now_ns: int, caps: Mapping[str, int], state: State
    ) -> dict[str, Domain]:
        """The domains with their rates of growth under the brakes in force. ``caps``: uid -> bytes, of pods held with
        a cap. Their growth ends there; it counts only where all of it would reach the kill threshold. That of pods
        that run for a moment, below caps that would not reach it, does not count.
        """
        found = {}
        usages = {uid: has for uid in caps if (has := self.usage(uid)) is not None}
        running = {brake.uid for brake in self.brakes.running if brake.is_capped and brake.uid in usages}
        if self._counted != (set(usages), running):  # else the usage of a pod that cannot be read any more is growth
            self._counted = set(usages), running
            self._available.clear()
        room = sum(max(0, caps[uid] - has) for uid, has in usages.items())
        if running:  # after `domains` was read: what is taken in between would be growth
            self.gauge.reread()
        sets = {uid: self._working_set(uid) for uid in running}
        ran = sum(sets.values())
        for signal, domain in domains.items():
            taken = self._available.setdefault(signal, deque())
            while taken and now_ns - taken[0][0] > WINDOW_NS:
                taken.popleft()
            # By usage, page cache that is replaced by memory would be growth.
            now = (now_ns, domain.available + ran, domain.available + sum({**usages, **sets}.values()))
            rate = 0
            if taken and now_ns - taken[0][0] >= LEAST_NS:
                is_bounded = domain.available - room > hold.kill_threshold(state.left.get(signal, domain.available))
                which = 2 if is_bounded else 1
                rate = max(0, (taken[0][which] - now[which]) * 1_000_000_000 // (now_ns - taken[0][0]))
            taken.append(now)
            found[signal] = domain._replace(rate=rate)
        return found

    def room(self, held: Hold, holds: Iterable[Hold]) -> int:
        """Bytes that ``held``, and those of ``holds`` that run already, may allocate until the next check, or up to
        their caps: also in the place of page cache, which counts toward a cap, but is available. By counters as they
        were read last.
        """
        run = [one for one in holds if one is held or self.brakes.runs(one.pod.uid) or "freeze" not in one.brake]
        rooms = [max(0, one.cap - self._working_set(one.pod.uid)) if one.cap else UNTIL_NEXT_LOOK for one in run]
        return sum(min(room, UNTIL_NEXT_LOOK) for room in rooms)

    def _working_set(self, uid: str) -> int:
        """By the registry's entry: that of a hold may be older than a container that was started again."""
        entry = self.registry.by_uid.get(uid)
        return 0 if entry is None else self.gauge.table.working_set(entry.index)

    def available(self, watch: Watch) -> int:
        """Bytes, for reports."""
        return watch.capacity - self.gauge.reading(watch).used

    def who_grew(self, watch: Watch) -> list[str]:
        """Uids of pods that grow at a crossing, in eviction order."""
        grown = self.figures.grown_pods(watch, self.gauge.reading(watch))
        self._before = {watch.signal: grown.usages}
        return who_grew(grown.pods, grown.everywhere, self._order(grown.pods), grown.lately)

    def who_grows_on(self, domains: Mapping[str, Domain], state: State) -> list[str]:
        """Uids of pods that grow although others are held, in eviction order."""
        short = [signal for signal, domain in domains.items() if self.is_short(domain)]
        found: list[str] = []
        if not short:
            return found
        self.gauge.reread()
        usages, _ = self.registry.usages()
        for signal in short:
            before = self._before.setdefault(signal, usages)
            by_uid = self.registry.by_uid  # a pod known since then may have had it all along
            grew = {
                uid: has - before.get(uid, by_uid[uid].began) for uid, has in usages.items() if uid not in state.uids
            }
            left = state.left.get(signal, domains[signal].available)
            found += [uid for uid in who_grows_on(grew, left, self._order(grew)) if uid not in found]
        return found

    def look(
        self,
        domains: Mapping[str, Domain],
        state: State,
        growers: Sequence[str] = (),
        victim: PodEntry | None = None,
    ) -> Look:
        usages = {uid: has for uid in state.uids if (has := self.usage(uid)) is not None}
        held = None if victim is None else self._may_hold(victim.uid)
        wanted = [(uid, has) for uid in growers if (has := self._may_hold(uid)) is not None]
        whose = (*state.uids, *(uid for uid, _ in wanted), *(() if victim is None or held is None else (victim.uid,)))
        return Look(
            now_ns=time.monotonic_ns(),
            domains=domains,
            growers=wanted,
            victim=("", 0) if victim is None or held is None else (victim.uid, held),
            first="" if (first := self.registry.first()) is None else first.uid,
            usages=usages,
            freezes=all("freeze" in brake.kind for uid in whose if (brake := self.brakes.get(uid)) is not None),
            slow=[uid for uid in usages if (brake := self.brakes.get(uid)) is not None and "high" in brake.kind],
        )

    def usage(self, uid: str) -> int | None:
        brake = self.brakes.get(uid)
        return None if brake is None else brake.usage()

    def forget(self, uid: str) -> None:
        self.refused.discard(uid)

    def up_to(self, uid: str) -> list[str]:
        """A pod, and those before it in eviction order."""
        order = [c.uid for c in self.registry.order() if not c.critical]
        return order[: order.index(uid) + 1] if uid in order else [uid]

    def _order(self, among: Container[str]) -> list[str]:
        """Those of them that may be held, in eviction order."""
        return [c.uid for c in self.registry.order() if c.uid in among and not c.critical]

    def _may_hold(self, uid: str) -> int | None:
        """Bytes charged to a pod that can be held; None where it cannot, which is reported once."""
        entry = self.registry.by_uid.get(uid)
        if entry is None or entry.critical:
            return None
        brake = self.brakes.of(entry)
        if brake.problem:
            if uid not in self.refused:
                self.refused.add(uid)
                self.log("warning", "a pod cannot be held", pod=entry.title, problem=brake.problem)
            return None
        return brake.usage()
