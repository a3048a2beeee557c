"""The messages between the hot process and the side: one class each, every field with its unit and meaning.

`monitor.link.channel` makes packets of them. Times are CLOCK_MONOTONIC nanoseconds, sizes bytes; a field with a default
may be missing in a packet. Those that are events of a race as they are stand in `monitor/race/reported.py`, and the
steps of an OOM kill, `oom`, in `monitor/kernel/wire.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from monitor.kernel.wire import OomEvent
from monitor.race.reported import Clear, Crossing, Gone, PodHeld, PodReleased, Rows, Signalled

# hot -> side


class LogLine(NamedTuple):
    """A line of the log."""

    level: str  # `info`, `warning` or `error`
    msg: str
    fields: Mapping[str, Any] = {}  # what else the line has


class State(NamedTuple):
    """How things are; four times a second at most."""

    conditions: Sequence[str]  # node conditions that are true
    met: Sequence[Mapping[str, str]]  # thresholds that are met: [{signal, kind: hard/soft}]
    armed: bool  # the fine-grained programs are attached
    victim: str | None  # uid of the first in the order of eviction
    observation: Mapping[str, Mapping[str, int]]  # {domain: {capacity, available, and for each signal of ours}}
    braked: Mapping[str, Any] | None  # the fields of `braked` while evictions are suspended
    ready: bool  # all pods are known, evictions may begin
    compared: Sequence[Mapping[str, str]] = ()  # the same of thresholds that only a kubelet would have


class Decision(NamedTuple):
    """A pod is evicted, or would be (``observed``). Sent after its signal."""

    id: int  # counts the decisions of this hot process from 1
    signal: str | None  # null for a pod over a limit of its own, or that makes another one stall
    kind: str  # `hard`, `soft` or `limit` (no signal)
    grace_s: int  # seconds, as the kubelet has it
    pod: str  # uid
    name: str  # namespace/name
    rank: int  # place in the order of eviction, from 1
    observed: bool  # observe mode: no pod is signalled
    trigger: str  # `user` or `kernel`: sent the first signal
    crossed_ns: int | None  # null where no crossing led to it
    decided_ns: int
    signalled_ns: int | None  # null where no pod was signalled
    given_s: int  # seconds, as it is given: 0 for a hard threshold for memory
    working_set: int  # bytes of the pod
    request: int  # bytes of memory that the pod requests
    containers: Mapping[str, int]  # {name: working set}
    order: Rows  # the first candidates: the fields of `monitor.policy.ranking.Candidate`
    realtime: float  # unix seconds
    domain: str = ""  # `node`, `kubepods`, a disk or `pid`; "" for a limit, as are the next three
    quantity: int = 0  # the threshold, in the signal's unit
    available: int = 0  # of the signal, in its unit
    capacity: int = 0  # the same
    usage: int = 0  # the same
    coming: int = 0  # bytes of pods that are gone and charged still; of memory only
    cleanup: Sequence[str] = ()  # for a disk: actions that go before
    braked: str = ""  # why evictions are suspended, where growth demands this one
    message: str = ""  # which limit of its own the pod is over
    resent: bool = False  # as in `Crossing`


class Reclaim(NamedTuple):
    """Run the command of the clean-up, then measure the disks again."""

    signal: str


class GiveBack(NamedTuple):
    """A pod that went gives nothing back by itself any more: ask the kernel for the rest."""

    id: int  # for the answer
    pod: str  # uid


class AskLives(NamedTuple):
    """Others killed a process of a pod: does anybody live on in it?"""

    id: int  # for the answer
    pod: str  # uid


class Suspended(NamedTuple):
    """Evictions for memory are suspended: they would not help; or are resumed."""

    ts_ns: int
    reason: str  # `not_covered`, `outgrown` or `no_gain`: why they are, or were
    since_ns: int
    signal: str
    domain: str  # `node` or `kubepods`
    kind: str  # `hard` or `soft`
    quantity: int  # bytes: the threshold
    available: int  # bytes
    capacity: int  # bytes
    pods_bytes: int  # what eviction could give back
    outside_bytes: int  # in use outside of all pods that may be evicted
    growth_outside: int | None  # bytes a second, there
    growth_inside: int | None  # bytes a second, in pods that may be evicted
    victim: str  # uid of the pod that a kubelet would evict
    name: str  # namespace/name of it
    order: Rows = ()  # as in `decision`
    resumed: str = ""  # why they are resumed; "": they are not


class Reap(NamedTuple):
    """`process_mrelease` these processes."""

    id: int  # of the decision, for the answer
    pids: Sequence[int]


class Flight(NamedTuple):
    """The last steps of every watched cgroup; after a crossing or a kill."""

    samples: Rows  # [[ts ns, cgroup id, usage, inactive file, active file]]


# side -> hot


class PodSeen(NamedTuple):
    """A pod; sent again when one of these changed."""

    uid: str
    namespace: str
    name: str
    priority: int | None  # null: its spec is not known
    spec_known: bool
    request: int  # whole bytes of memory
    qos: str  # QoS class
    critical: bool  # never evicted
    grace_s: int  # seconds: terminationGracePeriodSeconds
    cgroup: str  # absolute directory in the memory hierarchy
    containers: Mapping[str, str]  # {name: absolute directory}
    request_nanos: int = 0  # billionths of a byte above `request`


class PodGone(NamedTuple):
    """A pod is not there any more."""

    uid: str


class Answer(NamedTuple):
    """What the hot process asked for has been done, or could not be."""

    to: str  # `reap`, `giveback` or `left`
    id: int  # of that
    lives: bool = False  # to `left`


class DiskFigures(NamedTuple):
    """Disks and process ids; only while one of them is short, or a pod is over a limit of its own."""

    observations: Mapping[str, Sequence[int]]  # {signal: [available, capacity, stamp ns]}
    orders: Mapping[str, Sequence[str]]  # {signal: uids, first victim first}
    violations: Mapping[str, str]  # pods over limits of their own: {uid: the text of its decision}
    cleaned: bool  # a clean-up is over, and this was measured after it


class Synced(NamedTuple):
    """The first complete set of pods has been sent."""


class Stored(NamedTuple):
    """Nothing is to come any more of the first ``total`` messages about races: judged, dropped, or about nothing."""

    total: int  # of `cross`, `clear`, `decision`, `killed`, `evicted`, `oom`, `held`, `hold_ended`


class Turn(NamedTuple):
    """The loop turns: that is all that it is for."""


# of the hot process, only for a recording (`monitor.side.recording`), and read from one (`monitor.cli.replay`)


class Ranking(NamedTuple):
    """Only with `--record`: candidates that changed before a pass."""

    whole: bool  # there are no others
    put: Rows  # the fields of a candidate and its QoS class
    removed: Sequence[str]  # uids
    number: int = 0  # counts the messages for the recording


class Snapshot(NamedTuple):
    """Only with `--record`: the policy's state before a pass, from which a replay can go on."""

    state: Mapping[str, Any]
    told: Mapping[str, int]  # when an observed decision was told last, by its subject: ns
    last_id: int  # of the last decision
    missed: int  # messages for the recording that did not fit
    number: int = 0  # as in `ranking`


class Pass(NamedTuple):
    """Only with `--record`: what went into a pass of the policy and what came out ([replay.md](replay.md))."""

    now_ns: int
    observations: Mapping[str, Sequence[int]]  # {signal: [available, capacity, stamp ns]}
    slow: Mapping[str, Rows]  # {signal: first candidates for it}; of disks and process ids
    may_act: bool
    busy: bool  # a pod is being evicted
    held: bool  # another pod was signalled already: by the kernel's trigger, or before the pass
    crossed_ns: int  # 0: no crossing led to it
    decided_ns: int | None  # null: nothing was done
    fired: Sequence[str] | None  # uid and name of the pod that the kernel's trigger had taken
    decision: Mapping[str, Any] | None  # what a replay has to make again of the `decision`
    hurried: bool  # the grace under way was ended
    outcome: Mapping[str, Any]
    # Earlier releases, which waited for nothing and held no pod, recorded none of these.
    coming: Mapping[str, Sequence[Any]] = {}  # {signal: fields of `monitor.policy.pending_release.Coming`}
    forced: bool = False  # a signal had gone out
    waits: bool = False  # for what is coming back
    brake: Mapping[str, Sequence[Any]] = {}  # {signal: fields of `monitor.policy.suspension.Figures`}
    kept: bool = False  # the victim was not evicted, because pods were held for it
    holding: bool = False  # pods are held, and the policy does not decide yet
    number: int = 0  # as in `ranking`


class HoldLook(NamedTuple):
    """Only with `--record`: a look from which something followed for pods that are held, or begin to be."""

    rules: Sequence[Any]  # fields of `monitor.policy.hold.Rules`
    before: Mapping[str, Any]  # fields of `monitor.policy.hold.State`; of `Look` and `Steps` below
    look: Mapping[str, Any]
    after: Mapping[str, Any]
    steps: Mapping[str, Any]
    number: int = 0  # as in `ranking`


class Limit(NamedTuple):
    """Only with `--record`: a pod over a limit of its own was evicted, or would have been."""

    pod: str  # uid
    name: str  # namespace/name
    message: str  # which limit
    decided_ns: int  # as in `pass`, and so are the next two
    fired: Sequence[str] | None
    decision: Mapping[str, Any] | None
    number: int = 0  # as in `ranking`


#: What a recording has beside the events of races, each under its type in a packet.
OfPasses = Ranking | Snapshot | Pass | Limit | HoldLook


class Record(NamedTuple):
    """A recording begins, or a part of it is missing: send a snapshot."""


# of pods that are held: braked at a crossing instead of killed (`--mode hold`, `--hard-grace`)


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


class StallCause(NamedTuple):
    """Evict the pod that makes another one wait for memory (a rule of ``stall`` with ``evict``)."""

    pod: str  # uid
    message: str  # of its decision


#: What is sent of holds, and to them.
FromHolds = PodHeld | PodReleased | Soften
ToHolds = KubeletEviction | Softened


HotMessage = (
    LogLine | State | Decision | Reclaim | Gone | GiveBack | AskLives | Suspended | Reap | Crossing | Clear
    | Signalled | Flight | OomEvent | OfPasses | FromHolds
)  # fmt: skip
SideMessage = (
    PodSeen | PodGone | Answer | DiskFigures | Synced | Stored | Record | Turn
    | ToHolds | StallCause
)  # fmt: skip
Message = HotMessage | SideMessage
#: What an episode is made of.
RaceMessage = Crossing | Clear | Decision | Signalled | Gone | OomEvent | PodHeld | PodReleased

Send = Callable[[HotMessage], None]

#: Types in packets that are not their class's name in small letters. (Recordings and counters have them.)
_NAMED: dict[type, str] = {
    LogLine: "log", GiveBack: "giveback", AskLives: "left", Suspended: "braked",
    Crossing: "cross", Signalled: "killed", PodHeld: "held", PodReleased: "hold_ended", PodSeen: "pod+",
    PodGone: "pod-", DiskFigures: "disks", OomEvent: "oom", Gone: "evicted",
}  # fmt: skip
#: Class -> type in a packet, and back.
NAMES: dict[type, str] = {
    cls: _NAMED.get(cls) or re.sub(r"\B([A-Z])", r"_\1", cls.__name__).lower() for cls in get_args(Message)
}
TYPES: dict[str, type[Message]] = {name: cls for cls, name in NAMES.items()}
