"""What reacts to a crossing, how long that takes, and the growth that a threshold survives.

A threshold wins where what is taken from the crossing until growth ends stays below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from monitor.policy.hold import STOP_NS


@dataclass(frozen=True, slots=True)
class Reaction:
    """`best_ms`, `worst_ms`: from the crossing until nothing more is taken, by the phase of what reacts. `rule`: where
    from. `through`: bytes that a pod still takes until it is held; None: the victim is killed instead.
    """

    name: str
    best_ms: int
    worst_ms: int
    rule: str
    through: int | None = None


#: Real kubelet 1.36.2: its loop comes every 10 s, and a pod that ignores SIGTERM is dead 2.03 s after the decision.
KUBELET = Reaction(
    "kubelet", 2030, 12_030, "0 to 10 s until its loop comes, 2.03 s until a pod that ignores SIGTERM is dead"
)
#: 5 ms: 0.75 ms from the crossing to SIGKILL at most (360 races), a millisecond to die, rounded up.
_STOP_MS = STOP_NS // 1_000_000
ENFORCE = Reaction("enforce", _STOP_MS, _STOP_MS, "5 ms until the pod is dead")
#: At most 2 MiB were taken after a freezer or a limit was written, then nothing in 30 s (docs/hold.md).
HOLD = Reaction(
    "hold",
    _STOP_MS,
    _STOP_MS,
    "5 ms until the pod is held, 2 MiB that pass, a kill threshold that is in time",
    2 << 20,
)
REACTIONS = (KUBELET, HOLD, ENFORCE)


def survived(room: int, reaction: Reaction, ms: int) -> int | None:
    """The fastest steady growth, in whole bytes/s, that ``room`` bytes survive for ``ms``; None: there is none.

    When a brake is on, what a pod takes until it is held has to be left above the kill threshold
    (`monitor.policy.hold.kill_threshold`), which is a quarter of what is left, or as much as is taken until a kill has
    worked, but no more than three quarters.
    """
    taken, through = float(room), reaction.through
    if through is not None:
        taken = min((room - through) / 2, room * 3 / 7, room - through * 4 / 3)
    return ceil(taken * 1000 / ms) - 1 if taken > 0 else None
