"""Which pods wait because of memory, how much, and which pod caused it (`monitor.policy.stall`).

By a thread, because it reads two files of each pod every second: 3.3 ms of CPU for 110 pods, and next to nothing while
nothing on the machine waits. The kernel tells nothing: a trigger of PSI has no pod's refaults, and memory.available
stays above every threshold.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from monitor.kernel import meminfo, pressure
from monitor.kernel.wire import PAGE
from monitor.link.messages import SideMessage, StallCause
from monitor.policy import stall
from monitor.policy.stall import KUBEPODS, MACHINE, NOTHING, POD, UNSEEN, Cause, Lacks, Load, Oomd, Rule, Size, Stall
from monitor.race.events import NODE, Stalled
from monitor.race.units import size
from monitor.side.export.log import Log, LogBudget
from monitor.side.managed_oom import UNASKED, Units
from monitor.side.node_state import Figures, NodeState, OtherEviction, label
from monitor.side.relax import Relaxing
from monitor.side.stall_sizes import Sizes

T = TypeVar("T")

#: Time between two samples, and of a subject that waits for more than half of its line.
PACE_NS, NEAR_NS = 1_000_000_000, 250_000_000
#: ... and of one without pressure files (cgroup v1), which takes as long as reading them.
UNKNOWN_PACE_NS = 5_000_000_000
#: While the whole machine waited no longer than this, no pod did: microseconds. (The kernel weighs CPUs by their work,
#: so a pod on one of 64 may have waited for 64 times as long: for 6 % of a second.)
_CALM_US = 1000
#: Between two evictions: the first one changes what stalls. As long as a kubelet waits for an evicted pod to end.
EVICT_PACE_NS = 30_000_000_000
#: A pod is evicted for a stall no later than so long after its beginning, or twice the grace.
EVICT_FOR_NS = 120_000_000_000
#: Pods that outrace evicted last: one of them may be the cause of a stall that ends.
_EVICTED = 64
#: What the log says as a cause is found, as a stall counts, and as it is over.
_TEXTS = "a pod waits for memory that it had", "a pod stalls", "a pod does not stall any more"
_SWAP_TEXTS = "swap fills up", "swap is full", "swap is not full any more"


@dataclass(slots=True)
class _Subject:
    """A pod, or all of them, or the machine, or its swap. ``uid``: "" for all but a pod."""

    uid: str
    name: str
    cgroup: Path
    rule: Rule
    files: Path | None = None  # where its pressure files are
    loads: deque[Load] = field(default_factory=deque)
    stall: Stall | None = None
    again: Stall | None = None  # the same, without the time before a pod was last evicted
    origin: Load | None = None  # the first sample of that with pages
    before: Mapping[str, Size] = field(default_factory=dict)  # what each pod had before the stall, by uid
    had: Size = NOTHING  # this one, when it had most
    cause: Cause | None = None
    found_ns: int = 0  # when the grace began for which it was found
    oomd: Oomd = UNSEEN
    lacks: int = 0  # bytes, when the cause was found
    reported: Stalled | None = None
    asked: tuple[str, int] = ("", 0)  # the pod that hot was asked to evict last, and the bytes that were lost then
    relaxed: tuple[int, float] = (0, 0.0)  # when memory.high was looked at last, and how much of the stall was waiting
    due_ns: int = 0
    whole_us: int | None = None  # for which the machine had waited when its files were read last

    @property
    def texts(self) -> tuple[str, str, str]:
        return _SWAP_TEXTS if self.name == stall.SWAP else _TEXTS


@dataclass(eq=False)
class Stalls:
    """``shares`` and ``counted`` are for other threads: whole values. ``order``: uids in eviction order. ``machine``:
    for how long its work has waited.
    """

    node: NodeState
    figures: Figures
    log: Log
    report: Callable[[OtherEviction], object]
    send: Callable[[SideMessage], bool]
    order: Callable[[], Sequence[str]]
    machine: Callable[[], pressure.Waited | None] = lambda: pressure.waited(pressure.PROC)
    swap: Callable[[], tuple[float, int] | None] = meminfo.swap_in_use
    passed: Callable[[], int | None] = pressure.passed
    units: Units | None = None

    def __post_init__(self) -> None:
        self.shares: Mapping[str, float] = {}  # of the last second, by uid, `KUBEPODS`, `MACHINE`
        self.counted = 0  # stalls
        self._has = Sizes(self.node, self.figures, self.order)
        self._rules = {rule.scope: rule for rule in map(stall.parse_rule, self.node.config.stall)}
        self._whole_us: int | None = None
        self._v2 = pressure.unified(self.node.hierarchy)
        self._subjects: dict[str, _Subject] = {}
        self._matched: tuple[object, ...] = ()  # what `_match` saw last
        self._asked_ns = -EVICT_PACE_NS  # when hot was asked to evict a cause
        self._acted_ns = -EVICT_PACE_NS  # when a pod was evicted, or had ended, for any reason
        self._evicted: deque[tuple[int, str]] = deque(maxlen=_EVICTED)  # when, and the uid
        self._passed: tuple[int, int | None] = (0, None)  # when, and `passed()` then: 0.3 ms
        self._problem = ""  # logged last
        self._log_budget = LogBudget(self.log)  # of this thread: a pod can cause any number of lines
        self.relaxing = Relaxing(self.node, self.figures, self.log, self._log_budget)

    def acted(self, now_ns: int, uid: str = "") -> None:
        """An eviction begins or ends, for whatever reason; ``uid``: outrace's begins. From one other thread."""
        self._acted_ns = now_ns
        if uid:
            self._evicted.append((now_ns, uid))

    def start(self) -> None:
        """Begin; the thread ends with the process."""
        if pressure.waited(pressure.PROC) is None:
            self.log.info("stalls are not known: the kernel has no PSI (boot with psi=1)")
            self._rules = {scope: rule for scope, rule in self._rules.items() if scope == stall.SWAP}
        if self._rules or (self.units is not None and self.node.config.stall):  # a unit may have a rule for swap
            threading.Thread(target=self._run, name="stalls", daemon=True).start()

    def _run(self) -> None:
        while True:
            due_ns = self._guarded(self.turn, time.monotonic_ns()) or time.monotonic_ns() + PACE_NS
            time.sleep(max(0.01, (due_ns - time.monotonic_ns()) / 1e9))

    def _guarded(self, step: Callable[..., T], *given: Any) -> T | None:
        """One odd file ends neither the look for stalls nor that at the other pods."""
        try:
            return step(*given)
        except Exception as error:  # noqa: BLE001
            text = f"{type(error).__name__}: {error}"
            if text != self._problem:
                self._problem = text
                self._log_budget("error", "stalls cannot be looked for; trying again", problem=text)
            return None

    def turn(self, now_ns: int) -> int:
        """Sample what is due; when the next sample is."""
        self._match(now_ns)
        self._guarded(self._has.look, now_ns, any(subject.loads for subject in self._subjects.values()))
        whole = self.machine()
        self._whole_us = None if whole is None else sum(whole)
        for subject in self._subjects.values():
            if now_ns >= subject.due_ns:
                self._guarded(self._look, subject, now_ns)
        self._guarded(self.relaxing.turn, {one.uid for one in self._subjects.values() if one.stall}, now_ns)
        self._log_budget.flush()
        shares = {key: stall.latest(subject.loads) for key, subject in self._subjects.items()}
        self.shares = {key: share for key, share in shares.items() if share is not None}
        return min((subject.due_ns for subject in self._subjects.values()), default=now_ns + PACE_NS)

    def _match(self, now_ns: int) -> None:
        """Follow the pods that there are."""
        pods = self.node.pods
        if self.units is not None:
            self.units.look(pods, now_ns)
        for one in [one for one in self._subjects.values() if one.uid]:
            if one.uid not in pods or pods[one.uid].cgroup != one.cgroup:
                self._over(self._subjects.pop(one.uid), now_ns, stall.GONE)
        managed, machine = self.units.managed if self.units is not None else UNASKED, self.node.node_path
        if (pods, self.node.kubepods, managed) == self._matched:
            return
        places: dict[str, Path | None] = {MACHINE: machine, KUBEPODS: self.node.kubepods, stall.SWAP: machine}
        places |= {uid: found.cgroup for uid, found in pods.items()}
        for key, cgroup in places.items():
            if cgroup is None:
                continue
            rule = managed.rule(self._rules, POD if key in pods else key, self._path(cgroup))
            if rule is None:
                continue
            if key in self._subjects:
                self._subjects[key].rule = rule
            else:
                uid, name = (key, label(pods[key].pod)) if key in pods else ("", key)
                self._subjects[key] = _Subject(uid, name, cgroup, rule)
        self._matched = pods, self.node.kubepods, managed

    def _path(self, cgroup: Path) -> str:
        return f"/{cgroup.relative_to(self.node.hierarchy.root)}"

    def _look(self, one: _Subject, now_ns: int) -> None:
        one.due_ns = _due(now_ns, PACE_NS)
        if one.files is None:
            whole = one.cgroup == self.node.hierarchy.root
            one.files = pressure.PROC if whole else pressure.directory_of(self.node.hierarchy, self._v2, one.cgroup)
        load = self._load(one, now_ns)
        if load is None or one.uid in self.node.held:  # not known is not 0; outrace itself stops a held pod
            one.due_ns = _due(now_ns, UNKNOWN_PACE_NS if one.files is None else PACE_NS)
            one.files = one.again = None
            one.loads.clear()
            if one.stall is not None and now_ns - one.stall.above_ns >= stall.CALM_NS:
                self._over(one, now_ns, stall.CALM)
            return
        self._sample(one, load)
        goes_on = stall.advance(one.rule, one.stall, one.loads)
        if goes_on is not None:
            if one.stall is None or one.stall.since_ns != goes_on.since_ns:  # a grace begins, perhaps anew
                one.before, one.had = self._has.before, self._has.most(one.uid or one.name)
            swap = Oomd(goes_on.most, kills=goes_on.most > stall.OOMD_SWAP) if one.name == stall.SWAP else None
            one.stall, one.oomd = goes_on, swap or one.oomd.seen(pressure.full(one.files), now_ns)
            self._follow(one, goes_on, now_ns)
            if one.rule.relax and now_ns - one.relaxed[0] >= stall.RELAX_PACE_NS:
                self._relax(one, goes_on, now_ns)
        elif one.stall is not None:
            self._over(one, now_ns, self._end_of(one, one.stall))

    def _sample(self, one: _Subject, now: Load) -> None:
        """Add a sample, with pages where they matter; the next is due earlier where a stall is near."""
        is_wait = one.name != stall.SWAP and bool(one.loads)  # swap in use is a level, near its line for hours
        if is_wait and (one.stall or stall.waited(one.loads[-1], now) > one.rule.share / 4):
            pages = pressure.pages(self.node.hierarchy, one.cgroup)
            if pages is not None:
                has = self._has.of(one.cgroup) if one.rule.evict else None
                now = Load(*now[:3], *pages, None if has is None else sum(has) // PAGE, self._passed_by(now.ts_ns))
        one.loads.append(now)
        while len(one.loads) > 2 and one.loads[1].ts_ns <= now.ts_ns - stall.WINDOW_NS:
            one.loads.popleft()
        if is_wait and stall.waited(one.loads[-2], now) > one.rule.share / 2:
            one.due_ns = _due(now.ts_ns, NEAR_NS)
        again = one.again
        if again is not None and again.since_ns < max(self._acted_ns, now.ts_ns - 2 * one.rule.grace_ns):
            again = None
        one.again = stall.advance(one.rule, again, one.loads)
        origin = one.origin
        unknown = origin is None or None in (origin.refaults, origin.passed) or (one.rule.evict and origin.size is None)
        if again is None or unknown:
            one.origin = now

    def _load(self, one: _Subject, now_ns: int) -> Load | None:
        """From its files, or as they were read last if nothing has waited since. None: not known."""
        if one.name == stall.SWAP:
            found = self.swap()
            return None if found is None else stall.in_use(one.loads[-1] if one.loads else None, now_ns, found[0])
        whole = self._whole_us
        if one.loads and whole is not None and one.whole_us is not None and whole - one.whole_us <= _CALM_US:
            return Load(now_ns, one.loads[-1].memory_us, one.loads[-1].io_us)
        one.whole_us = whole
        waited = pressure.waited(one.files)
        return None if waited is None else Load(now_ns, *waited)

    def _passed_by(self, now_ns: int) -> int | None:
        if self._passed[0] != now_ns:
            self._passed = now_ns, self.passed()
        return self._passed[1]

    def _end_of(self, one: _Subject, was: Stall) -> str:
        """Why a stall is over."""
        told = one.reported
        if told is not None and told.why == stall.THROTTLED and self.relaxing.helped(one.uid, was.since_ns):
            return stall.RELAXED
        if told is None or not told.cause or told.why not in (stall.GREW, stall.SWAPPED):
            return stall.CALM
        if told.why == stall.SWAPPED:
            has = self._has.swapped([told.cause]).get(told.cause, told.grew)
        else:
            has = self._has.kept(told.cause) - one.before.get(told.cause, NOTHING).kept
        if 2 * has >= told.grew and told.cause in self.node.pods:
            return stall.CALM
        return stall.EVICTED if self._was_evicted(told.cause, was.since_ns) else stall.FREED

    def _was_evicted(self, uid: str, since_ns: int) -> bool:
        return any(other == uid and when_ns >= since_ns for when_ns, other in list(self._evicted))

    def _follow(self, one: _Subject, now: Stall, now_ns: int) -> None:
        """Name the cause of a stall as soon as it is one for two samples; report it when its grace is over. A cause
        that is known stays: its growth leaves the window while the stall goes on.
        """
        if len(one.loads) < 2 or now.since_ns >= one.loads[-2].ts_ns:
            return
        before, is_new = one.cause, one.found_ns != now.since_ns
        if is_new or before is None or _is_looked_for(one, now, before, now_ns):
            lacks, found = self._find_cause(one, now_ns)
            if is_new or before is None or not before.uid or found.why == stall.FILES:
                one.cause, one.lacks, one.found_ns = found, lacks.size, now.since_ns
        if self._may_evict(one, now, now_ns):
            self._evict(one, now, now_ns)
        cause = one.cause
        assert cause is not None
        fields = {"pod": one.name, "share": round(now.most, 2), "cause": self._has.name(cause.uid), "why": cause.why}
        fields |= {"lacks": one.lacks, "grew": cause.grew}
        if before is None or before[:2] != cause[:2]:
            self._log_budget("info", one.texts[0], **fields)
        told = one.reported
        if not now.counts or (told is not None and (told.cause or "", told.why) == cause[:2]):
            return
        if told is None:
            self.counted += 1
            self._log_budget("warning", one.texts[1], **fields, since_s=(now_ns - now.since_ns) / 1e9)
        one.reported = self._event(one, now, cause)
        self.report(one.reported)

    def _may_evict(self, one: _Subject, now: Stall, now_ns: int) -> bool:
        """Whether it stalls now, and has for a grace since anything last changed, but not for long: which pod
        took the memory of one that has stalled for an hour is not known any more.
        """
        again, origin = one.again, one.origin
        if again is None or origin is None or not again.counts or not one.rule.evict:
            return False
        if None in (origin.passed, one.loads[-1].passed) and one.name != stall.SWAP:
            return False  # nor whether files displace files
        if now_ns - max(self._asked_ns, self._acted_ns) < EVICT_PACE_NS:
            return False
        if now_ns - now.since_ns > max(EVICT_FOR_NS, 2 * one.rule.grace_ns) and one.name != stall.SWAP:
            return False  # which pod has most of swap is known at any time
        mean = again.waited_ns / (now_ns - again.since_ns)
        goes_round = one.name == stall.SWAP or all(map(stall.goes_round, (one.loads, [origin, one.loads[-1]])))
        return again.above_ns == now_ns and mean > one.rule.share and goes_round

    def _evict(self, one: _Subject, now: Stall, now_ns: int) -> None:
        """Ask hot to evict the pod that is the cause by what it has now. A guess evicts no pod."""
        lacks, cause = self._find_cause(one, now_ns)
        if cause.uid == one.uid or cause.uid not in self._has.now(now_ns)[1]:
            return
        if cause.why == stall.SWAPPED:
            why = f"{now.most:.0%} of swap is in use; {self._has.name(cause.uid)} has {size(cause.grew)} of it."
        elif cause.why == stall.GREW and (grew := self._grew_instead(one, cause.uid, now_ns)):
            waits = f"{one.name} waits for memory that it had, up to {now.most:.0%} of the time"
            why = f"{waits}; {self._has.name(cause.uid)} grew by {size(grew)}."
        else:
            return
        one.cause, one.lacks = cause, lacks.size
        if self.send(StallCause(cause.uid, why)):
            self._asked_ns = now_ns
            for other in self._subjects.values():
                if other.stall is not None:
                    other.asked = cause.uid, self._lost_files(other)

    def _grew_instead(self, one: _Subject, uid: str, now_ns: int) -> int:
        """Bytes by which a pod surely grew at this one's cost; 0: by too little, or an eviction before did not help."""
        lost, grew = self._lost_files(one), self._has.took(uid, one.before, now_ns)
        if lost < max(stall.LEAST_GREW, one.had.cache // 64) or grew < max(stall.LEAST_GREW, lost // 3):
            return 0
        last, lost_then = one.asked
        if last != uid and lost * 4 > lost_then * 3 and self._was_evicted(last, now_ns - EVICT_FOR_NS):
            return 0
        return grew

    def _relax(self, one: _Subject, now: Stall, now_ns: int) -> None:
        """Raise its memory.high, if that is why it stalls: now, and for more than its line since the last look."""
        then_ns, waited_ns = one.relaxed
        one.relaxed = now_ns, now.waited_ns
        goes_on = now.above_ns == now_ns and now.waited_ns - waited_ns > one.rule.share * (now_ns - then_ns)
        lacks, cause = self._find_cause(one, now_ns)
        if cause.why != stall.THROTTLED:
            return
        one.cause, one.lacks = cause, lacks.size
        for before, high in self.relaxing.step(one.uid, now_ns, may_raise=now.counts and goes_on):
            self.report(replace(self._event(one, now, cause), high_before=before, high=high))

    def _lost_files(self, one: _Subject) -> int:
        """Bytes of page cache that it had before the stall: other memory it may have freed itself."""
        return one.had.cache - (self._has.of(one.cgroup) or one.had).cache

    def _find_cause(self, one: _Subject, now_ns: int) -> tuple[Lacks, Cause]:
        """By what each pod has now and had before the stall."""
        sizes, order = self._has.now(now_ns)
        if one.name == stall.SWAP:
            whole = self.swap()
            return Lacks(""), stall.most_swapped(self._has.swapped(order), whole[1] if whole is not None else 0)
        one.before = one.before or self._has.before
        lacks = self._lacks(one)
        others = [uid for uid in self.node.pods if uid not in order]
        return lacks, stall.cause(lacks, *stall.growth(one.before, sizes), [*order, *others])

    def _event(self, one: _Subject, now: Stall, cause: Cause) -> Stalled:
        whole = self.figures.domains(counted=False).get(NODE)
        domain = NODE if one.name in (MACHINE, stall.SWAP) else one.name
        known = [load for load in one.loads if load.refaults is not None] or one.loads
        return Stalled(
            ts_ns=one.loads[-1].ts_ns,
            domain=self._path(one.cgroup) if one.uid else domain,
            pod=one.uid or one.name,
            pod_name=one.name,
            since_ns=now.since_ns,
            share=round(now.most, 4),
            cause=cause.uid or None,
            cause_name=self._has.name(cause.uid) or None,
            why=cause.why,
            lacks=one.lacks,
            grew=cause.grew,
            available=None if whole is None else whole.available,
            swap=one.name == stall.SWAP or stall.swaps(known[0], known[-1]),
            full=one.oomd.full,
            oomd=one.oomd.kills,
        )

    def _over(self, one: _Subject, now_ns: int, why: str) -> None:
        """A stall is over, or its pod is gone."""
        ended, reported = one.stall, one.reported
        one.stall, one.again, one.cause, one.reported, one.found_ns = None, None, None, None, 0
        one.before = {}
        if ended is not None and reported is not None:
            self._log_budget("info", one.texts[2], pod=one.name, why=why)
            last = replace(reported, ts_ns=now_ns, share=round(ended.most, 4), over=why)
            self.report(replace(last, full=one.oomd.full, oomd=one.oomd.kills))
        one.oomd = UNSEEN

    def _lacks(self, one: _Subject) -> Lacks:
        first, last = one.loads[0], one.loads[-1]
        seen = first.refaults if first.refaults is not None else last.refaults
        refaulted = max(0, (last.refaults or 0) - (seen or 0)) * PAGE
        has = self._has.of(one.cgroup) or one.had
        lost, limit = max(0, sum(one.had) - sum(has)), self._has.limit(one.uid)
        return Lacks(one.uid, lost, min(refaulted, sum(has)), limit, _files_passed(one))


def _is_looked_for(one: _Subject, now: Stall, found: Cause, now_ns: int) -> bool:
    """Whether the cause of a stall may still be another: as it counts, and for a while where no pod explained it."""
    if now.counts and one.reported is None:
        return True
    is_open = found.why == stall.UNKNOWN or (found.why == stall.FILES and one.reported is None)
    return is_open and now_ns - now.since_ns <= stall.GROWTH_NS


def _files_passed(one: _Subject) -> int:
    """Bytes, since it stalls, or in the last second."""
    return PAGE * max(stall.files_passed(since, one.loads[-1]) for since in (one.origin or one.loads[0], one.loads[0]))


def _due(now_ns: int, pace_ns: int) -> int:
    """The same moments for all: a turn for each pod takes a third of a CPU with 500."""
    return now_ns - now_ns % pace_ns + pace_ns
