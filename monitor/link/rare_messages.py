"""The messages of recordings, of pods that are held, and of another configuration: most daemons send none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from monitor.race.reported import PodHeld, PodReleased, Rows

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
FromHolds = PodHeld | PodReleased | Soften
ToHolds = KubeletEviction | Softened


# of another configuration while running (`monitor.hot.housekeeping`, `monitor.side.reload`)


class Reread(NamedTuple):
    """SIGHUP has come: read the configuration again, and send it (`reconfigure`) if it is good."""


# side -> hot


class Reconfigure(NamedTuple):
    """Another configuration, read and checked: take it between two passes (the side waits for `config_number`)."""

    number: int  # higher than that of each before, taken or refused
    config: str  # JSON of `monitor.settings.config.RunConfig`
