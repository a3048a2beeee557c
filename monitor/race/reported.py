"""Events of a race as the hot process reports them: messages (`monitor.link.messages`), records and input of the
reducer alike. Times are CLOCK_MONOTONIC nanoseconds, sizes bytes. (Named tuples: hot has no time for dataclasses.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

#: The fields of `monitor.policy.ranking.Candidate`, of each.
Rows = Sequence[Sequence[Any]]


class Crossing(NamedTuple):
    """The kernel saw `available` fall below `quantity`. Sent after what was decided about it."""

    ts_ns: int  # of the charge that crossed it
    domain: str  # `node` or `kubepods`
    signal: str
    hard: bool
    quantity: int  # the threshold
    capacity: int
    usage: int
    working_set: int
    available: int  # by the signal
    seen_ns: int = 0  # when its record was read
    resent: bool = False  # sent to a helper before, which died before it stored what came of it

    @property
    def threshold(self) -> tuple[str, str, bool]:
        return self.domain, self.signal, self.hard


class Clear(NamedTuple):
    """The threshold is not met any more. May be repeated."""

    ts_ns: int
    domain: str
    signal: str
    hard: bool
    available: int
    resent: bool = False  # as in `Crossing`

    @property
    def threshold(self) -> tuple[str, str, bool]:
        return self.domain, self.signal, self.hard


class Gone(NamedTuple):
    """No process is left of an evicted pod, and its memory is released, or is not waited for any more. `by` "kubelet":
    of a pod that a runtime was stopping, for whatever reason.
    """

    ts_ns: int  # when the last process ended
    pod: str  # uid
    pod_name: str  # namespace/name
    freed: int | None = None  # bytes that came back; None: not known
    by: str = "outrace"
    settled_ns: int | None = None  # when they were back
    id: int = 0  # of the decision; 0: one of the daemon before
    pids: Sequence[int] = ()  # at most 1000, of a message
    pids_total: int = 0
    resent: bool = False  # as in `Crossing`


class Signalled(NamedTuple):
    """The processes of a pod being evicted were sent `signal` (15 at first, if there is a grace; then 9)."""

    ts_ns: int
    pod: str  # uid
    pod_name: str  # namespace/name
    signal: int
    by: str = "outrace"
    resent: bool = False  # as in `Crossing`


#: Why a pod is held: the policy would evict it, or it is the one that grows.
HELD_FOR = ("victim", "grows")
#: Why a hold ended. `clear`: the threshold is not met any more, with some room; `evicted`: by a kubelet, the API or a
#: person; `gone`: no process of it is left; `time_limit`; `second_line`: too little was left, and the pod is killed as
#: in mode enforce; `other_pod`, `unanswered`: what the kubelet did about it, and the policy decides instead;
#: `grace`: its grace is over (`--hard-grace`); `stopped`: outrace ends, or the pod is not known any more.
HOLD_ENDS = ("clear", "evicted", "gone", "time_limit", "second_line", "other_pod", "unanswered", "grace", "stopped")


class PodHeld(NamedTuple):
    """A pod is held: braked instead of killed. Sent when the brake is in force, and again when it changed."""

    ts_ns: int
    domain: str  # `node` or `kubepods`
    signal: str
    hard: bool
    pod: str  # uid
    pod_name: str  # namespace/name
    hold: int  # counts the holds of this hot process from 1
    brake: str  # of `limit`, `high` and `freeze`, with + between; `limit+high` where it may run to answer SIGTERM
    cap: int  # what it may have at most; 0: no limit is set
    usage: int  # charged to it as it was held
    quantity: int  # the threshold
    available: int  # of the signal then
    second_line: int  # what is available when the pod is killed after all; 0: it is not (`--evict-by api`)
    reason: str  # one of `HELD_FOR`
    until_ns: int  # its time limit
    step: str = ""  # beside a kubelet: `above`, its line is not reached, or `across`
    crossed_ns: int | None = None  # None where no crossing led to it
    left_out: int | None = 0  # holds of it, and changes, before this one that are no events; None: nor is this one
    decision: int = 0  # id of the `decision` that it carries out (`--hard-grace`); 0: none was made
    order: Rows = ()  # the first candidates
    since_ns: int = 0  # since when it is held, also by an earlier hot process; 0: since `ts_ns`
    resent: bool = False  # as in `Crossing`

    @property
    def threshold(self) -> tuple[str, str, bool]:
        return self.domain, self.signal, self.hard


class PodReleased(NamedTuple):
    """A pod is not held any more."""

    ts_ns: int
    pod: str  # uid
    pod_name: str  # namespace/name
    hold: int  # as in `PodHeld`
    held_ns: int  # for how long
    why: str  # one of `HOLD_ENDS`
    grew: int  # the most that was charged to it, less that as it was held
    usage: int  # charged to it now
    available: int  # of the signal that it was held for
    instead: str | None = None  # the pod that the kubelet evicted instead: its uid, of a message; then its name
    left_out: int | None = 0  # as in `PodHeld`
    resent: bool = False  # as in `Crossing`
