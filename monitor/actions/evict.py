"""An eviction, fast: from the first signal to a pod until its cgroups are empty (`victim.py` prepares it)."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from typing import Self

from monitor.actions.victim import REST, Victim
from monitor.kernel.procfs import wants_cpu

#: A killed pod that gives nothing back for this long no longer keeps the next one waiting: it is frozen, or in a system
#: call that does not end. (7 GiB/s are freed when a process ends, measured; one that frees at all is waited for.)
STUCK_NS = 200_000_000
#: But one that waits for a CPU is waited for until this: it will give its memory back as soon as it has one. (As long
#: as the kernel leaves a victim to itself before its OOM reaper comes: OOM_REAPER_DELAY. On 2 emulated CPUs 0.6 s.)
STARVED_NS = 2_000_000_000
#: A pod with less than this and a 32nd of what it had has given it back, whether it ends or not: page tables and what
#: each CPU keeps of its charges go last.
_NOTHING, _PART = 1 << 20, 32
#: How often a killed pod and one in its grace are looked at; at most a fifth of the time, because this process runs
#: ahead of everybody, and the victim may be waiting for this very CPU.
LOOK_NS, PATIENT_NS = 2_000_000, 50_000_000
_REAPED = 1000  # pids in one message
#: After this long a killed process that still holds memory is helped by process_mrelease (it may be throttled or
#: frozen).
REAP_AFTER_NS = 20_000_000


class Eviction:
    """One pod being evicted, from the first signal until its cgroups have no process left."""

    def __init__(
        self, victim: Victim, usage: int, started_ns: int, kill_at_ns: int | None = None, killed_ns: int | None = None
    ) -> None:
        """One whose first signals are out since ``started_ns``: SIGTERM, with the SIGKILL at ``kill_at_ns``, or the
        SIGKILL (``killed_ns``). ``usage``: bytes that it had before.
        """
        self.victim = victim
        self.decision_id, self.name = 0, ""  # what is reported of it, filled in after the signals went out
        self.started_ns, self.kill_at_ns, self.killed_ns = started_ns, kill_at_ns, killed_ns
        self.grace_ns = 0 if kill_at_ns is None else kill_at_ns - started_ns
        self.held = self.last_usage = usage  # the first: the most that it had
        self._least: int | None = None  # since it was killed: in its grace it may have grown
        self._freed_ns = self._asked_ns = 0
        self._forked = False  # whether the last look found processes that were not known
        self.pids: set[int] = set(victim.pidfds)
        self.reap_sent = False
        self.signalled_ns = killed_ns or started_ns
        self.looked(self.signalled_ns, 0)

    @classmethod
    def begun(cls, victim: Victim, grace_s: int, usage: int) -> Self:
        """Send the first signals."""
        if grace_s <= 0:
            made = cls(victim, usage, time.monotonic_ns())
            made._kill()
        else:
            # There is time, and processes that came since the pod was prepared get the SIGTERM too. Later ones do
            # not: they may be what cleans up.
            victim.refresh()
            now_ns = time.monotonic_ns()
            made = cls(victim, usage, now_ns, now_ns + grace_s * 1_000_000_000)
            victim.send(signal.SIGTERM)
        made.signalled_ns = time.monotonic_ns()
        made.looked(made.signalled_ns, 0)
        return made

    def _kill(self) -> None:
        self.victim.kill()
        self.killed_ns = time.monotonic_ns()
        self.kill_at_ns = None
        self.looked(self.killed_ns, 0)

    def hurry(self) -> None:
        """End the grace now."""
        if self.kill_at_ns is not None:
            self._kill()

    def step(self, now_ns: int) -> bool:
        """Go on with it; True when the pod's cgroups are empty and all processes it had have ended."""
        if self.kill_at_ns is not None and now_ns >= self.kill_at_ns:
            self._kill()
        self._forked = False
        runs = self.victim.populated()
        if runs is False and not self.victim.alive():
            return True
        self.victim.refresh(forget=False)
        if runs is None and self.victim.is_empty and not self.victim.alive():
            return True  # cgroup v1 does not say; pidfds do (`cgroup_procs.empty`)
        self._forked = self.victim.found > 0
        self.pids.update(self.victim.pidfds)
        if self.killed_ns is not None:
            self.victim.kill()  # processes forked since
        return False

    def saw(self, usage: int | None) -> None:
        """It holds so many bytes now; None if that is not known any more."""
        if usage is not None:
            self.held, self.last_usage = max(self.held, usage), usage

    def stuck(self, usage: int | None, now_ns: int, helper: int = 0) -> str:
        """Why the next pod should not wait for this one any more; "" while it should. ``usage``: bytes it has now, None
        if not known. ``helper``: pid of the process that frees its memory and has not answered yet, or 0.
        """
        if self.killed_ns is None:
            return ""
        if usage is not None:
            self.saw(usage)
            if self._least is None or usage < self._least:
                self._freed_ns = self.killed_ns if self._least is None else now_ns
                self._least = usage
        still_ns = now_ns - max(self.killed_ns, self._freed_ns)
        if min(still_ns, now_ns - self._asked_ns) <= STUCK_NS:
            return ""
        self._asked_ns = now_ns
        if usage is not None and usage < _NOTHING + self.held // _PART:
            return "gave its memory back, but does not end"
        alive = self.victim.alive()
        # A dying process that is not listed (Linux 7.0, see `cgroup_procs.empty`) may be waiting for a CPU.
        if alive and not wants_cpu(([helper] if helper else []) + alive):
            return "gives nothing back (frozen, or in an endless system call)"
        return "gives nothing back (it gets no CPU)" if still_ns > STARVED_NS else ""

    def looked(self, now_ns: int, took_ns: int) -> None:
        """It was looked after until ``now_ns``, which cost ``took_ns`` of a CPU."""
        if self.killed_ns is not None and (self.victim.unfinished or self._forked):
            self.next_look_ns = now_ns  # a rest would let forks outrun the kills
            return
        pace = LOOK_NS if self.killed_ns is not None else PATIENT_NS
        self.next_look_ns = now_ns + max(pace, REST * took_ns)

    def deadline_ns(self) -> int:
        """When to look after it again; set `next_look_ns` to 0 where all processes that were known have ended."""
        return self.next_look_ns if self.kill_at_ns is None else min(self.next_look_ns, self.kill_at_ns)

    def to_reap(self, now_ns: int) -> list[int]:
        """Pids to hand to process_mrelease: once, when a killed pod is still there after a while."""
        if self.killed_ns is None or self.reap_sent or now_ns - self.killed_ns < REAP_AFTER_NS:
            return []
        self.reap_sent = bool(self.pids)
        return sorted(self.pids)[:_REAPED]

    def pidfds(self) -> Iterable[int]:
        return self.victim.pidfds.values()
