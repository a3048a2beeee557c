"""From the hot process's messages and the kernel's log to the events of a race, and from those to episodes.

A thread of its own judges the episodes (`monitor.side.judge`).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.domains import Reading
from monitor.kernel.kmsg import LoggedKill
from monitor.link import messages
from monitor.policy.signals import DOMAIN_OF, MEMORY_SIGNALS
from monitor.policy.thresholds import kubelets
from monitor.race import episode
from monitor.race import events as ev
from monitor.race.episode import PRESSURE, STALL, Episode, State
from monitor.race.events import NODE, Watched
from monitor.side.cgroup_names import CgroupNames, NamedCgroup
from monitor.side.export.log import Log
from monitor.side.holds import FOR_MEMORY, Holds
from monitor.side.judge import wall_offset_ns
from monitor.side.node_state import Figures, NodeState, OtherEviction, label
from monitor.side.oom_events import OomEvents, made, ranked

if TYPE_CHECKING:
    from monitor.side.recording import Recorder

#: Period of the flight recorder while a threshold may be near.
SAMPLE_NEAR_NS = 1_000_000_000
#: The same otherwise, and that of a pod whose figures do not change.
SAMPLE_FAR_NS = 10_000_000_000
#: The wall clock and CLOCK_MONOTONIC are adjusted to the same rate, so their difference changes only when the first is
#: set (or the machine was suspended, which the second does not count). What is less is how well it can be read.
STEP_NS = 5_000_000
#: What counts as lost -> the counters of it (`lost_` of the programs).
_LOST = {"cross": "cross", "oom": "oom", "kill": "kill", "exit": "exit", "reclaim": "reclaim", "step": "sample"}
#: A message dropped between the hot process and here -> what counts as lost. A dropped `clear` or `state` is no loss:
#: the next `state` has the same.
_DROPPED = {
    "cross": "cross",
    "decision": "decision",
    "killed": "decision",
    "evicted": "decision",
    "oom_mark": "oom",
    "oom_kill": "kill",
    "oom_exit": "exit",
    "oom_reclaim": "reclaim",
    "flight": "sample",
}


def lost(figures: Figures) -> Counter[str]:
    """What was dropped so far: by the programs, or between the hot process and here."""
    found: Counter[str] = Counter()
    for message, name in _DROPPED.items():
        found[name] += figures.stats.get(f"dropped_{message}")
    counted = figures.counted()
    for which, name in _LOST.items():
        found[name] += counted.get(f"lost_{which}", 0)
    return found


def watched(node: NodeState, message: messages.State, now_ns: int) -> Iterator[Watched]:
    """The memory thresholds in force: of the configuration, and those that only a kubelet would have."""
    there = {threshold.signal for threshold in node.thresholds}
    compared = [threshold for threshold in kubelets(node.thresholds) if threshold.signal not in there]
    for threshold in (*node.thresholds, *compared):
        domain = DOMAIN_OF.get(threshold.signal)
        seen = message.observation.get(domain) if domain is not None else None
        if domain is None or seen is None:
            continue
        reclaim = threshold.min_reclaim
        on_machine = domain == NODE and node.config.node_cgroup is None
        yield Watched(
            ts_ns=now_ns,
            domain=domain,
            signal=threshold.signal,
            hard=threshold.hard,
            quantity=threshold.quantity(seen["capacity"]),
            capacity=seen["capacity"],
            limit=None if on_machine else seen["capacity"],
            grace_s=threshold.grace_ns / 1e9,
            min_reclaim=0 if reclaim is None else reclaim.amount(seen["capacity"]),
            compared=threshold in compared,
        )


#: While an episode is open the reducer gets the time this often.
TICK_NS = 250_000_000
#: The helper waits this long after a kill for its other records (the other rings, the kernel's log), then judges it.
URGENT_NS = 150_000_000
#: A record that is this old when it arrives was read late, after a stall. Then no ticks are fed until all have arrived:
#: an episode would seem quiet while its second half is still in the rings.
LATE_NS, CATCH_UP_NS = 500_000_000, 250_000_000
#: An alert waits no longer than this for late records: where kills do not stop and CPUs are busy, more always arrive.
PATIENCE_NS = 350_000_000

#: Pods that outrace evicted are remembered, so that reports of the API server about them do not count as a kubelet's.
_MOST_EVICTED = 1024
#: Names of pods that the kubelet evicted: a later message is about pods that are gone from the node.
_MOST_REPORTED = 64


@dataclass(eq=False)
class EventBuilder:
    """Turns messages into events, feeds them to the reducer, and hands episodes to ``on_episode(episode, final)``:
    when a process was killed (the episode may last, but an alert cannot wait), and when they are over.

    ``recorder`` records what goes in, and the reducer's state where it wants that.
    """

    node: NodeState
    figures: Figures
    holds: Holds
    log: Log
    on_episode: Callable[[Episode, bool], None]
    recorder: Recorder | None = None
    now: Callable[[], int] = time.monotonic_ns

    def __post_init__(self) -> None:
        node = self.node
        self._state = State()
        self._offset_ns: int | None = None  # of the wall clock, and when it was read
        self._offset_read_ns = 0
        self._names = CgroupNames(node.hierarchy, node.node_path)
        self._watched: dict[tuple[str, str, bool], ev.Watched] = {}
        self._crossed: set[tuple[str, str, bool]] = set()  # crossed, and not reported to be clear again
        calls = self.feed, self._is_pressed
        self._oom_events = OomEvents(node, self._names, *calls, self.log, self.figures.counts)
        self._sampled_ns = 0
        self._still: dict[int, tuple[Reading, int]] = {}  # cgroup id -> its last sample, when that was
        self._lost, self._lost_ns = lost(self.figures), self.now()
        self._evicted: deque[str] = deque(maxlen=_MOST_EVICTED)  # pods that outrace evicted
        self._reported: deque[tuple[str, str]] = deque(maxlen=_MOST_REPORTED)  # uid and name of those the kubelet did
        self._ticked_ns = 0
        self._caught_up_ns = 0  # until then late records may arrive
        self._judged_ns: int | None = None  # events up to this were judged
        self._urgent_ns: int | None = None  # when to judge the open episodes, because a process was killed
        self._on_signalled = self._on_refused = self._on_stalled = self.feed
        self._on_oomevent = self._oom_events.handle

    @property
    def open(self) -> bool:
        """Whether hot has to keep what it reported: a stall may last for hours, and hot did not report it. (Of what the
        helper feeds by itself the last one always waits.)
        """
        waiting = any(not isinstance(event, ev.Tick | ev.Sample | ev.Clock) for event in self._state.waiting)
        return waiting or any(not o.key.startswith(STALL) for o in self._state.open)

    def handle(self, message: messages.Message | OtherEviction) -> None:
        """`_on_CLASS` makes events of a message or a report, where there is one."""
        handler = getattr(self, f"_on_{type(message).__name__.lower()}", None)
        if handler is not None:
            now = self.now()
            self._look_at_clock(now)
            told_ns: int = getattr(message, "ts_ns", now)
            if isinstance(message, messages.Gone):  # sent when its memory is back
                told_ns = message.settled_ns or told_ns
            if told_ns < now - LATE_NS:
                self._caught_up_ns = now + CATCH_UP_NS
            self.update_pods()
            handler(message)

    def _on_kubeletevicted(self, about: ev.KubeletEvicted) -> None:
        """The API server reports a pod as Evicted: by a kubelet, unless outrace did it."""
        if about.pod in self._evicted:
            return
        self._reported.append((about.pod, about.pod_name))
        self.holds.evicted(about.pod, about.message)
        self.log.info("the kubelet evicted a pod", pod=about.pod_name, uid=about.pod, message=about.message)
        if about.message.startswith(FOR_MEMORY):
            self.feed(about)

    def logged(self, kill: LoggedKill) -> None:
        """The kernel's log has a kill. It decides nothing, but says which kill SysRq f asked for."""
        at, pid = kill.event.ts_ns, kill.event.victim_pid
        self.feed(ev.Checked(at, ev.KMSG, pid, True, kill.text[:200]))
        if kill.by_hand:
            self.feed(ev.Checked(at, ev.KMSG_BY_HAND, pid, True, "SysRq f asked for this kill (order=-1)"))

    def update_pods(self) -> None:
        self._names.update(self.node.pods, self.node.kubepods)

    def due_s(self) -> float:
        ticks_ns = self._ticked_ns + TICK_NS if self.open else None
        dues = self._sample_due_ns(), ticks_ns, self._urgent_ns, self._oom_events.due_ns()
        due = max(min(due for due in dues if due is not None), self._caught_up_ns)
        if self._urgent_ns is not None:
            due = min(due, self._urgent_ns + PATIENCE_NS)
        return max(0.0, (due - self.now()) / 1e9)

    def _is_pressed(self) -> bool:
        """Also just after: a pod that obeys a kubelet's SIGTERM frees its memory before its sandbox is killed."""
        return bool(self._crossed) or any(o.key == PRESSURE for o in self._state.open)

    def _look_at_clock(self, now_ns: int) -> None:
        """To be called before an event of this moment is fed. What happened since the last call is dated by a new
        setting: an event is heard of milliseconds after it happened, a setting up to 10 s after it was made.
        """
        offset, before = wall_offset_ns(), self._offset_ns
        if before is None or abs(offset - before) >= STEP_NS:
            self.feed(ev.Clock(now_ns if before is None else self._offset_read_ns + 1, offset))
            self._offset_ns = offset
        self._offset_read_ns = now_ns

    def _sample_due_ns(self) -> int:
        return self._sampled_ns + (SAMPLE_NEAR_NS if self.figures.stats.get("armed") else SAMPLE_FAR_NS)

    def sample(self, now_ns: int) -> None:
        """The flight recorder: the memory of the node, of kubepods and of each pod."""
        self._sampled_ns = now_ns
        before, self._still = self._still, {}
        for at in self._names.ids():
            named = self._names.of_cgroup(at)
            reading = self._reading(at, named)
            if reading is None:
                continue
            # 110 pods that do not change would cost 5 ms of CPU in every second.
            last, since_ns = before.get(at, (None, 0))
            if named.kind == "pod" and last == reading and now_ns - since_ns < SAMPLE_FAR_NS:
                self._still[at] = (reading, since_ns)
                continue
            self._still[at] = (reading, now_ns)
            self._take_sample(now_ns, named, reading.usage, reading.inactive_file, reading.active_file)

    def _reading(self, at: int, named: NamedCgroup) -> Reading | None:
        """A cgroup's memory: from its files where there is no BPF table; None if it is gone."""
        if self.figures.table is not None:
            return self.figures.table.read(at)
        try:
            return cgroupfs.read_cgroup(self.node.hierarchy, self.node.hierarchy.root / named.path.lstrip("/"))
        except MonitorError:
            return None

    def _take_sample(self, ts_ns: int, named: NamedCgroup, usage: int, inactive: int, active: int) -> None:
        """One sample of one cgroup, in bytes; its pod's covers a container."""
        if named.kind != "container":
            domain = named.kind if named.kind in ("node", "kubepods") else named.path
            self.feed(ev.Sample(ts_ns, domain, named.pod, usage, max(0, usage - inactive), inactive, active))

    def end(self) -> None:
        self.feed(ev.End(self.now()))

    def turn(self) -> None:
        """Do what is due: sample the counters, feed the time."""
        now = self.now()
        self._look_at_clock(now)
        if now < self._caught_up_ns:
            if self._urgent_ns is not None and now >= self._urgent_ns + PATIENCE_NS:
                self._judge_ongoing()
            return
        if now >= self._sample_due_ns():
            self.update_pods()
            self.sample(now)
        lost_now = lost(self.figures)
        for what, number in (lost_now - self._lost).items():
            self.feed(ev.Lost(now, self._lost_ns, what, number))
        self._lost, self._lost_ns = lost_now, now
        self._oom_events.turn(now)
        if self.open and now >= self._ticked_ns + TICK_NS:
            self._ticked_ns = now
            self.feed(ev.Tick(now))
        if self._urgent_ns is not None and now >= self._urgent_ns:
            self._judge_ongoing()

    def _judge_ongoing(self) -> None:
        self._urgent_ns = None
        since, self._judged_ns = self._judged_ns, self._state.latest_ns
        for one in episode.ongoing(self._state, since):  # those in which anything happened since
            self.on_episode(one, False)

    def feed(self, event: ev.Event) -> None:
        if self.recorder is not None:  # before the reducer gets it: the recording has an event that it fails on
            self.recorder.event(event)
        if isinstance(event, ev.Mark | ev.Gone | ev.Stalled) and self._urgent_ns is None:
            self._urgent_ns = self.now() + URGENT_NS
        self._state, done = episode.feed(self._state, event)
        for one in done:
            self.on_episode(one, True)
        if self.recorder is not None and self.recorder.state_wanted:
            self.recorder.state(self._state)

    # messages of the hot process

    def _on_suspended(self, message: messages.Suspended) -> None:
        if message.resumed:
            self.feed(ev.Suspended(message.ts_ns, message.domain, message.signal, message.kind == "hard", ""))
            return
        self.feed(ranked(message.ts_ns, message.order))
        about = {"hard": message.kind == "hard", "pod": message.victim, "pod_name": message.name}
        about |= {"pods": message.pods_bytes, "outside": message.outside_bytes}
        self.feed(made(ev.Suspended, message._asdict(), **about))

    def _on_podreleased(self, message: ev.PodReleased) -> None:
        if message.left_out is not None:
            self.feed(message._replace(instead=self._name_of(message.instead) if message.instead else None))

    def _name_of(self, uid: str) -> str:
        found = self.node.pods.get(uid)
        return label(found.pod) if found is not None else dict(self._reported).get(uid, uid)

    def _on_state(self, message: messages.State) -> None:
        now = self.now()
        for one in watched(self.node, message, now):
            key = (one.domain, one.signal, one.hard)
            old = self._watched.get(key)
            if old is None or (old.quantity, old.capacity, old.limit) != (one.quantity, one.capacity, one.limit):
                self._watched[key] = one
                self.feed(one)

        self._clear_what_is_not_met(message, now)

    def _clear_what_is_not_met(self, message: messages.State, now_ns: int) -> None:
        """A crossing that was over when the hot process read it is followed by no `clear`, but by a `state`."""
        met = {(entry["signal"], entry["kind"] == "hard") for entry in (*message.met, *message.compared)}
        for domain, signal, is_hard in [key for key in self._crossed if key[1:] not in met]:
            seen = message.observation.get(domain)
            formula = signal.partition(".")[2]
            available = seen.get(formula, seen["available"]) if seen is not None else 0
            self._crossed.discard((domain, signal, is_hard))
            self.feed(ev.Clear(now_ns, domain, signal, is_hard, available))

    def _on_crossing(self, message: ev.Crossing) -> None:
        self._crossed.add(message.threshold)
        self.feed(message)
        self.feed(ev.Seen(message.seen_ns, message.domain, message.signal, message.available))

    def _on_podheld(self, message: ev.PodHeld) -> None:
        if message.left_out is None:
            return
        if message.order:  # what a kubelet would evict: outrace decides nothing, so no decision has it
            self.feed(ranked(message.ts_ns, message.order))
        self.feed(message._replace(order=()))

    def _on_decision(self, message: messages.Decision) -> None:
        if not message.observed:
            self._evicted.append(message.pod)
        if message.signal not in MEMORY_SIGNALS:
            return  # disks and process ids are no race with the OOM killer
        self.feed(ranked(message.decided_ns, message.order))
        hard = message.kind == "hard"
        reclaim = self._watched.get((message.domain, message.signal, hard))
        least = reclaim.min_reclaim if reclaim is not None else 0
        grace_s = message.given_s  # a hard threshold's victim gets none, whatever its spec has
        about = {"ts_ns": message.decided_ns, "pod_name": message.name, "grace_s": grace_s}
        self.feed(made(ev.Decided, message._asdict(), **about, hard=hard, min_reclaim=least))
        if message.signalled_ns is not None:
            number = ev.SIGTERM if grace_s else ev.SIGKILL
            self.feed(ev.Signalled(message.signalled_ns, message.pod, message.name, number))

    def _on_gone(self, message: ev.Gone) -> None:
        self.feed(message._replace(pids=()))

    def _on_clear(self, message: ev.Clear) -> None:
        self._crossed.discard(message.threshold)
        self.feed(message)

    def _on_flight(self, message: messages.Flight) -> None:
        for ts, cgroup, usage, inactive, active in message.samples:
            self._take_sample(ts, self._names.of_cgroup(cgroup), usage, inactive, active)
