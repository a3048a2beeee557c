"""What is applied to a held pod: stopped, on its way across a kubelet's line, or running through its grace. On
cgroup v2 the side has a part in the last: a brake below which it may run takes too long to set for this process.
"""

from __future__ import annotations

import time

from monitor.actions.brake_limit import ROOM
from monitor.actions.thaw_reasons import KILL, START
from monitor.hot.evictor import Evictor
from monitor.hot.hold_brakes import HoldBrakes
from monitor.hot.hold_figures import UNTIL_NEXT_LOOK, Headroom
from monitor.hot.hold_report import Hold
from monitor.hot.outbox import Outbox
from monitor.link.hold_messages import Soften
from monitor.policy.hold import Pod


class HoldApplier:
    """``version``: of cgroups."""

    def __init__(self, brakes: HoldBrakes, outbox: Outbox, version: int, evictor: Evictor) -> None:
        self._brakes, self._version, self._evictor = brakes, version, evictor
        self._send = outbox.send

    def apply(self, held: Hold, pod: Pod, *, runs: bool, parts: int) -> bool:
        """Stop the pod at its cap, or let it run below it; False where nothing is in force. ``parts``: of so many."""
        brake, cap = self._brakes.of(held.entry), pod.cap
        if pod is not held.pod:
            held.allowed = 0
        if held.soft and runs and self._version == 1:
            cap = self._part(held, held.allowed or cap, parts)
        in_force = brake.loosen(cap) if runs else brake.apply(cap)
        held.pod, held.braked_ns = pod, time.monotonic_ns()
        if in_force is None:
            self._brakes.release(pod.uid)  # it has released itself; what it could not take back is tried again
            return False
        held.brake, held.cap = in_force.brake, in_force.cap
        return True

    def let_die(self, held: Hold, headroom: Headroom, *, ends: bool = False) -> bool:
        """Let it run for a moment, so that a SIGKILL ends who it was sent to; whether it is to be stopped instead. Its
        cap, which is of a frozen one, is that of its share meanwhile, in which v1 may reclaim its page cache for other
        memory. It is stopped with that again: who is in a system call then goes on in it. ``ends``: somebody evicts it.
        """
        uid, thaws = held.pod.uid, self._brakes.thaws
        if thaws.started not in ("", uid):
            return False  # it waits for the end of that one's run
        usage = self._brakes.of(held.entry).usage() or 0
        cache = max(0, usage - headroom.has)
        share = (headroom.available - cache) // (headroom.pods + 1)
        if share < ROOM or not held.cap:
            # No cap is nearer than `ROOM`. A kubelet's own SIGKILL is not known as such before it has worked: so one
            # that kills children of its own runs until the next look, and then it is another pod's turn.
            is_bounded = held.cap and min(ROOM, max(0, held.cap - usage)) + cache < headroom.available
            may_run = (is_bounded or headroom.soon >= UNTIL_NEXT_LOOK) and uid not in thaws.running
            if not ((ends and held.cap) or may_run):
                return thaws.end(uid)
        held.allowed = held.allowed or held.pod.cap
        held.pod = held.pod._replace(cap=min(held.allowed, usage + (share if share >= ROOM else 0)))
        self._brakes.let_run(uid, KILL, held.pod.cap)
        return False

    def cap_to_start(self, held: Hold) -> int:
        """Below which it may run for a process that starts: that cannot, if the pod has come to its cap. 0: none."""
        return max(held.cap, (held.allowed or held.pod.cap) + ROOM) if held.cap else 0

    def let_start(self, held: Hold) -> None:
        """Let it run for a moment, for a process that starts in it."""
        self._brakes.let_run(held.pod.uid, START, self.cap_to_start(held))

    def soften(self, held: Hold, grace_ns: int, parts: int) -> bool:
        """The pod is asked to end: frozen it cannot, so the side is asked for a brake below which it can. On v1 there
        is none: it runs below a part of its cap, if it has one, and may find a system call fail there. Whether it does.
        """
        if "freeze" not in held.brake:
            return False
        held.asked = True
        if self._version == 2:
            self._ask(held, grace_ns)
            return False
        if not held.cap:
            return False
        in_force = self._brakes.of(held.entry).loosen(self._part(held, held.allowed or held.cap, parts))
        held.cap = in_force.cap if in_force is not None else held.cap
        return True

    def soften_again(self, held: Hold) -> None:
        """Another side is asked, which has taken back what the last one set."""
        if self._version == 2:
            held.unslowed = held.soft
            self._ask(held, self.grace_left_ns(held))

    def grace_left_ns(self, held: Hold) -> int:
        """For how long it may run. When somebody else's eviction ends is not known: all of it."""
        ends_ns = self._evictor.grace_ends_ns(held.entry.uid)
        return max(0, ends_ns - time.monotonic_ns()) if ends_ns else held.grace_ns

    def _ask(self, held: Hold, grace_ns: int) -> None:
        self._brakes.of(held.entry).high_is_left = True
        self._send(Soften(held.id, held.entry.uid, held.cap, grace_ns))

    def _part(self, held: Hold, cap: int, parts: int) -> int:
        """The cap of one of so many that run; frozen each might have all that they may take together."""
        usage = self._brakes.of(held.entry).usage() or 0
        return usage + max(0, cap - usage) // max(1, parts)
