"""A pod being evicted, from its first signal until no process is left, and pods that were killed but do not end."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import NamedTuple

from monitor.actions.evict import Eviction
from monitor.actions.victim import Victim
from monitor.hot.loop import Loop
from monitor.hot.pending_release import PendingRelease
from monitor.hot.suspension import Asked
from monitor.hot.trigger import Trigger
from monitor.kernel.domains import Reading
from monitor.kernel.troubles import TROUBLES
from monitor.link.messages import Answer, Gone, Reap, Signalled
from monitor.link.outbox import Outbox
from monitor.sources.gauge import Gauge
from monitor.sources.registry import PodEntry, Registry

#: The kubelet waits this long for a killed pod to end before its next eviction.
EVICTION_TIMEOUT_NS = 30_000_000_000

#: Pids named in a message: one packet has to hold it.
_SHOWN = 1000


class SentKill(NamedTuple):
    """A pod that got its SIGKILL at the crossing, before the pass that decides it. Times in ns (CLOCK_MONOTONIC)."""

    entry: PodEntry
    victim: Victim
    reading: Reading  # of the domain that was crossed
    decided_ns: int
    signalled_ns: int
    asked: Asked


@dataclass(eq=False)
class Evictor:
    """At most one pod is evicted at a time, as in the kubelet; the next one does not wait for a pod that is stuck."""

    gauge: Gauge
    registry: Registry
    trigger: Trigger
    outbox: Outbox
    loop: Loop
    note: EvictionNote

    def __post_init__(self) -> None:
        #: The memory of the pods that have ended.
        self.pending = PendingRelease(self.gauge, self.registry, self.outbox, self.trigger.stand_down)
        self.current: Eviction | None = None
        self.stuck: list[Eviction] = []  # killed, and give nothing back: the next pod does not wait for them
        self._leaving: set[int] = set()  # pidfds of the current one's processes that have not ended yet
        self._helper = 0  # pid of the helper that was asked to free the current one's memory, until it answers

    def begin(self, entry: PodEntry, grace_s: int, sent: SentKill | None = None) -> Eviction:
        """Send the first signals: SIGTERM with a grace, SIGKILL without. ``sent``: they went out already."""
        held = entry.usage or 0
        if sent is None:
            victim, now = self.trigger.take(entry), time.monotonic_ns()
            self.note.begin(entry.cgroup_id, held, now, now + grace_s * 1_000_000_000 if grace_s > 0 else 0)
            return self.resume(Eviction.begun(victim, grace_s, held), entry)
        return self.resume(Eviction(sent.victim, held, sent.decided_ns, killed_ns=sent.signalled_ns), entry)

    def resume(self, eviction: Eviction, entry: PodEntry) -> Eviction:
        """Follow an eviction whose first signals are out, from now on."""
        self.current = eviction
        self._helper = 0
        self._leaving = set(eviction.pidfds())
        for fd in list(self._leaving):
            self._listen(fd)
        return eviction

    def _listen(self, fd: int) -> None:
        """Hear of the end of a process. Where that cannot be, the next look sees it."""
        try:
            self.loop.register(fd, self.ended)
            self._leaving.add(fd)
        except OSError as error:  # ENOSPC: max_user_watches
            self._leaving.discard(fd)
            TROUBLES.note("poll", error, self.current.victim.uid if self.current is not None else "")

    def ended(self, fd: int) -> None:
        """A process of an evicted pod ended; the next check finds those that are left. After the last one it is due."""
        if fd in self._leaving:
            self._leaving.remove(fd)
            if not self._leaving and self.current is not None:
                self.current.next_look_ns = 0
        self.loop.unregister(fd)  # it would be reported for ever

    def answered(self, message: Answer) -> None:
        """The helper has freed what it could of the pod of a decision, or done what a pending release needs."""
        if message.to != "reap":
            self.pending.answered(message)
        elif self.current is not None and self.current.decision_id == message.id:
            self._helper = 0

    def is_stuck(self, uid: str) -> bool:
        return any(eviction.victim.uid == uid for eviction in self.stuck)

    def follow(self, now_ns: int, side: int) -> bool:
        """Go on with the pod being evicted, if that is due; True when it is over, one way or the other.

        ``side``: its pid; 0 while there is none.
        """
        eviction = self.current
        if eviction is None or now_ns < eviction.deadline_ns():
            return False
        began_ns = time.thread_time_ns()
        gone = self._step(eviction, now_ns)
        entry = self.registry.by_uid.get(eviction.victim.uid)
        usage = self._usage(entry)
        eviction.saw(usage)
        refused, helper = eviction.victim.refused, self._helper if self._helper == side else 0
        stuck = "" if gone or refused else eviction.stuck(usage, now_ns, helper)
        if not gone and not refused and not stuck:
            pids = eviction.to_reap(now_ns)
            if pids:
                self.outbox.send(Reap(eviction.decision_id, pids))
                self._helper = side
            eviction.looked(time.monotonic_ns(), time.thread_time_ns() - began_ns)
            return False
        self.current = None
        self._leaving.clear()
        if entry is not None:
            self.registry.move(entry, usage)
            self.registry.set_evicted(entry, True)
        self.note.mark(GONE if gone else 0)
        if gone:
            self._finish(eviction, now_ns, usage)
        else:
            self._give_up(eviction, usage, stuck)
        return True

    def _step(self, eviction: Eviction, now_ns: int) -> bool:
        """Signal what is left; whether the pod is gone."""
        known, asked = set(eviction.victim.pidfds.items()), eviction.killed_ns is None
        gone = eviction.step(now_ns)
        if asked and eviction.killed_ns is not None:
            self._send_killed(eviction, eviction.killed_ns)
        held = set(eviction.victim.pidfds.items())  # with the pid: a number that was given up may be another's now
        self._leaving -= {fd for _, fd in known - held}
        for _, fd in held - known:
            self._listen(fd)
        return gone

    def _give_up(self, eviction: Eviction, usage: int | None, stuck: str) -> None:
        """``stuck``: what keeps it; "": its signals were refused."""
        if not stuck:
            self._fail(eviction, "signals were refused: CAP_KILL is needed to evict processes of other users")
            return
        self.stuck.append(eviction)
        self.outbox.log(
            "warning",
            f"an evicted pod {stuck}: going on without it",
            pod=eviction.name,
            pids=sorted(eviction.pids)[:_SHOWN],
            bytes=usage,
        )

    def due_ns(self) -> int | None:
        return None if self.current is None else self.current.deadline_ns()

    def grace_ends_ns(self, uid: str) -> int:
        """When a pod that is being evicted gets its SIGKILL (CLOCK_MONOTONIC); 0: it has, or is not evicted."""
        eviction = self.current
        return 0 if eviction is None or eviction.victim.uid != uid else eviction.kill_at_ns or 0

    def hurry(self) -> None:
        """End the grace of the pod being evicted now."""
        eviction = self.current
        if eviction is not None and eviction.killed_ns is None:
            self.note.mark(KILLED, time.monotonic_ns())
            eviction.hurry()
            self._send_killed(eviction, eviction.killed_ns or 0)

    def _send_killed(self, eviction: Eviction, killed_ns: int) -> None:
        self.note.mark(KILLED, killed_ns)
        self.outbox.send(Signalled(killed_ns, eviction.victim.uid, eviction.name, signal.SIGKILL))

    def follow_stuck(self, now_ns: int) -> None:
        for eviction in list(self.stuck):
            if eviction.step(now_ns):
                self.stuck.remove(eviction)
                self._finish(eviction, now_ns, self._usage(self.registry.by_uid.get(eviction.victim.uid)))
            elif now_ns > eviction.started_ns + eviction.grace_ns + EVICTION_TIMEOUT_NS:
                self.stuck.remove(eviction)
                self._fail(eviction, "an evicted pod does not end")

    def _usage(self, entry: PodEntry | None) -> int | None:
        """Bytes a pod holds now; None of one that is not known any more."""
        if entry is None:
            return None
        self.gauge.reread()
        return self.gauge.table.working_set(entry.index)

    def _finish(self, eviction: Eviction, now_ns: int, usage: int | None) -> None:
        """No process is left of a pod. That is reported when its memory is freed."""
        eviction.victim.close()  # closing a pidfd takes it out of the epoll
        self.outbox.stats.add("evictions")
        self.outbox.stats.observe_us("gone_us", (now_ns - eviction.started_ns) // 1000)
        pids = sorted(eviction.pids)
        uid, number = eviction.victim.uid, eviction.decision_id
        gone = Gone(now_ns, uid, eviction.name, id=number, pids=pids[:_SHOWN], pids_total=len(pids))
        left = eviction.last_usage if usage is None else usage
        self.pending.ended(uid, eviction.held, left, now_ns, gone)

    def _fail(self, eviction: Eviction, why: str) -> None:
        pids = sorted(eviction.pids)[:_SHOWN]
        eviction.victim.close()
        self.outbox.stats.add("eviction_failures")
        self.outbox.log("error", why, pod=eviction.name, pids=pids)


#: States, in order: its processes got SIGTERM, they got SIGKILL, none is left.
ASKED, KILLED, GONE = 1, 2, 3
_STATE, _POD, _STARTED, _KILL_AT, _KILLED, _HELD, _REPORTED, _SENDER = range(8)


class Noted(NamedTuple):
    """An eviction that another daemon began. Times in ns (CLOCK_MONOTONIC; 0: not yet, none), ``held`` in bytes."""

    state: int
    cgroup_id: int
    started_ns: int
    kill_at_ns: int
    killed_ns: int
    held: int
    reported: int  # 1: its decision was sent to the helper


class EvictionNote:
    """The eviction under way, where a daemon that is killed leaves it for the next one. ``words``: those of struct
    eviction (bpf/wire.h) in the pinned map ``evictions``, written by plain stores before the first signal goes out, so
    that at no moment a pod dies without a reason on record. Without BPF they are this process's own,
    and end with it.
    """

    def __init__(self, words: memoryview) -> None:
        self._words = words
        words[_SENDER] = os.getpid()  # the programs do not wake this process up for its own signals

    def begin(self, cgroup_id: int, held: int, now_ns: int, kill_at_ns: int = 0) -> None:
        """A pod is to get its first signal now: SIGTERM where ``kill_at_ns`` is given, else SIGKILL."""
        words = self._words
        words[_STATE] = words[_REPORTED] = 0
        words[_POD], words[_STARTED], words[_KILL_AT], words[_HELD] = cgroup_id, now_ns, kill_at_ns, held
        words[_KILLED] = 0 if kill_at_ns else now_ns
        words[_STATE] = ASKED if kill_at_ns else KILLED

    def reported(self) -> None:
        self._words[_REPORTED] = 1

    def mark(self, state: int, killed_ns: int = 0) -> None:
        """What became of it: `KILLED`, with the time; `GONE`; 0: it is not waited for any more."""
        if killed_ns:
            self._words[_KILLED] = killed_ns
        self._words[_STATE] = state

    def read(self) -> Noted | None:
        words = self._words
        return Noted(*words[:7]) if words[_STATE] in (ASKED, KILLED, GONE) else None
