"""The messages of recordings, of pods that are held, and of another configuration: most daemons send none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Rows = Sequence[Sequence[Any]]

# of the hot process, only for a recording (`monitor.side.recorder`), and read from one (`monitor.replay`)


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
    before: Mapping[str, Any]  # as `monitor.hot.pass_record` writes them
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

# side -> hot


class Record(NamedTuple):
    """A recording begins, or a part of it is missing: send a snapshot."""


# of pods that are held: braked at a crossing instead of killed (`--mode hold`, `--hard-grace`)

#: Why a pod is held: the policy would evict it, or it is the one that grows.
HELD_FOR = ("victim", "grows")
#: Why a hold ended. `clear`: the threshold is not met any more, with some room; `evicted`: by a kubelet, the API or a
#: person; `gone`: no process of it is left; `time_limit`; `second_line`: too little was left, and the pod is killed as
#: in mode enforce; `other_pod`, `unanswered`: what the kubelet did about it, and the policy decides instead;
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
    why: str  # one of `monitor.link.rare_messages.HOLD_ENDS`
    grew: int  # the most bytes charged to it, less those as it was held
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


# side -> hot, of stalls


class StallCause(NamedTuple):
    """Evict the pod that makes another one wait for memory (a rule of ``stall`` with ``evict``)."""

    pod: str  # uid
    message: str  # of its decision


#: What is sent of holds, and to them.
FromHolds = Held | HoldEnded | Soften
ToHolds = KubeletEviction | Softened


# of another configuration while running (`monitor.hot.housekeeping`, `monitor.side.reload`)


class Reread(NamedTuple):
    """SIGHUP has come: read the configuration again, and send it (`reconfigure`) if it is good."""


# side -> hot


class Reconfigure(NamedTuple):
    """Another configuration, read and checked: take it between two passes (the side waits for `config_number`)."""

    number: int  # higher than that of each before, taken or refused
    config: str  # JSON of `monitor.settings.config.RunConfig`
