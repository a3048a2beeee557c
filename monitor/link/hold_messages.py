"""The messages about pods that are held: braked at a crossing instead of killed (`--mode hold`, `--hard-grace`)."""

from __future__ import annotations

from typing import NamedTuple

from monitor.link.record_messages import Rows

#: Why a pod is held: the policy would evict it, or it is the one that grows.
HELD_FOR = ("victim", "grows")
#: Why a hold ended. `clear`: the threshold is not met any more, with some room; `evicted`: by a kubelet, the API or a
#: person; `gone`: nobody is left of it; `time_limit`; `second_line`: too little was left, and the pod is killed as in
#: mode enforce; `other_pod`, `unanswered`: what the kubelet did about it, and the policy decides instead;
#: `grace`: its grace is over (`--hard-grace`); `stopped`: outrace ends, or the pod is not known any more.
HOLD_ENDS = ("clear", "evicted", "gone", "time_limit", "second_line", "other_pod", "unanswered", "grace", "stopped")


class Held(NamedTuple):
    """A pod is held: braked instead of killed. Sent after the brake is in force, and again when it is changed."""

    id: int  # counts the holds of this hot process from 1
    decision: int  # id of the `decision` that it carries out (`--hard-grace`); 0: none was made
    pod: str  # uid
    name: str  # namespace/name
    ts_ns: int  # when the brake was in force
    crossed_ns: int | None  # null where no crossing led to it
    brake: str  # of `limit`, `high` and `freeze`, with + between; `limit+high` where it may run to answer SIGTERM
    cap: int  # bytes that it may have at most; 0: no limit is set
    usage: int  # bytes charged to it as it was held
    signal: str
    domain: str  # `node` or `kubepods`
    quantity: int  # bytes: the threshold
    available: int  # bytes of the signal then
    second_line: int  # bytes available at which the pod is killed after all; 0: it is not (`--evict-by api`)
    reason: str  # `victim` (the policy's) or `grows`
    until_ns: int  # its time limit
    step: str = ""  # beside a kubelet: `above`, its line is not reached, or `across`
    resent: bool = False  # as in `decision`
    order: Rows = ()  # as in `decision`
    since_ns: int = 0  # since when it is held, also by an earlier hot process; 0: since `ts_ns`


class HoldEnded(NamedTuple):
    """A pod is not held any more."""

    id: int  # of its `held`
    pod: str  # uid
    name: str  # namespace/name
    ts_ns: int
    held_ns: int  # for how long
    why: str  # one of `monitor.link.hold_messages.HOLD_ENDS`
    grew: int  # bytes charged to it at the most, less those as it was held
    usage: int  # bytes charged to it now
    available: int  # bytes of the signal that it was held for
    other: str = ""  # uid of the pod that the kubelet evicted instead
    resent: bool = False  # as in `decision`


class Soften(NamedTuple):
    """A pod that is held and frozen is to answer SIGTERM: brake it so that it may run (cgroup v2)."""

    id: int  # of its `held`
    pod: str  # uid
    cap: int  # bytes that it may have at most; 0: no limit is set
    grace_ns: int  # for how long it is to run; no soft brake where what is left does not last so long


class Softened(NamedTuple):
    """The answer to a `soften`."""

    id: int  # of the `soften`
    pod: str  # uid
    high: int  # bytes: its memory.high; 0: it cannot be braked softly, and stays frozen
    problem: str = ""  # why not


class KubeletEviction(NamedTuple):
    """The kubelet, the API server or a person evicts a pod."""

    pod: str  # uid
    for_memory: bool  # by the kubelet, because the node is short of memory


#: What is sent of holds, and to them.
FromHolds = Held | HoldEnded | Soften
ToHolds = KubeletEviction | Softened
FROM_HOLDS: dict[str, type[FromHolds]] = {
    "held": Held,
    "hold_ended": HoldEnded,
    "soften": Soften,
}
TO_HOLDS: dict[str, type[ToHolds]] = {
    "kubelet_eviction": KubeletEviction,
    "softened": Softened,
}
