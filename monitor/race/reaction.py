"""What reacts to a crossing, how long that takes, and the growth that a threshold survives.

A threshold wins where what is taken from the crossing until growth ends stays below it.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from monitor.policy.hold import STOP_NS
from monitor.race.codec import Record

#: No memory grows by more bytes a second.
_FASTEST = 1 << 50


@dataclass(frozen=True, slots=True)
class Reaction:
    """`phases_ms`: from the crossing until nothing more is taken, one entry for each phase, all equally likely. `rule`:
    where from. `through`: bytes that a pod still takes until it is held; None: the victim is killed instead.
    """

    name: str
    phases_ms: tuple[int, ...]
    rule: str
    through: int | None = None

    def need(self, taken: float) -> float:
        """Bytes that must be available at the crossing, if ``taken`` bytes are taken within one of its phases."""
        return taken if self.through is None else taken + left_for_hold(taken, self.through)

    def need_at(self, rate: int, ms: int) -> float:
        """The same for steady growth of ``rate`` bytes/s and a phase of ``ms``."""
        return self.need(rate * ms / 1000)


def left_for_hold(taken: float, through: int) -> float:
    """Bytes that have to be left when the brake is on: what a pod takes until it is held, above the kill threshold
    (`monitor.policy.hold.second_line`), which is a quarter of what is left, or as much as is taken until a kill has
    worked, but no more than three quarters.
    """
    return max(taken + through, 4 * max(taken, through) / 3)


#: Real kubelet 1.36.2: its loop comes every 10 s, and a pod that ignores SIGTERM is dead 2.03 s after the decision.
_POLL = tuple(250 * i + 2030 for i in range(41))
_POLL_RULE = "0 to 10 s until its loop comes, 2.03 s until a pod that ignores SIGTERM is dead"
KUBELET = Reaction("kubelet", _POLL, _POLL_RULE)
#: 0.02-0.22 s from the notification to the decision.
NOTIFIED = Reaction(
    "kubelet-notified",
    tuple(10 * i + 2050 for i in range(21)),
    "0.02 to 0.22 s until the kernel's notification is answered (cgroup v1), 2.03 s until the pod is dead",
)
OBSERVE = Reaction("observe", _POLL, f"outrace reports and the kubelet evicts: {_POLL_RULE}")
#: 5 ms: 0.75 ms from the crossing to SIGKILL at most (360 races), a millisecond to die, rounded up.
ENFORCE = Reaction("enforce", (STOP_NS // 1_000_000,), "5 ms until the pod is dead")
#: At most 2 MiB were taken after a freezer or a limit was written, then nothing in 30 s (docs/hold.md).
HOLD = Reaction(
    "hold",
    (STOP_NS // 1_000_000,),
    "5 ms until the brake is on, 2 MiB that pass it, a second line that is in time for a kill",
    2 << 20,
)
REACTIONS = (KUBELET, NOTIFIED, OBSERVE, HOLD, ENFORCE)


@dataclass(frozen=True, slots=True)
class Survives(Record):
    """Growth that a threshold of `quantity` bytes survives, in bytes/s, in every phase and in the best; None: none."""

    reaction: str
    quantity: int
    always: int | None
    at_best: int | None
    rule: str


def survives(quantity: int, reaction: Reaction, beyond: int = 0) -> Survives:
    """The fastest steady growth that a threshold of ``quantity`` bytes survives; ``beyond``: what the capacity counts
    and no limit allows.
    """
    always, at_best = (
        _fastest(quantity - beyond, reaction, ms) for ms in (max(reaction.phases_ms), min(reaction.phases_ms))
    )
    return Survives(reaction.name, quantity, always, at_best, reaction.rule)


def _fastest(room: int, reaction: Reaction, ms: int) -> int | None:
    """The largest whole rate whose need is below ``room`` bytes; None if none is."""
    too_fast = bisect_left(range(_FASTEST), float(room), key=lambda rate: reaction.need_at(rate, ms))
    return too_fast - 1 if too_fast else None
