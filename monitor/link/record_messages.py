"""The messages of the hot process that are only for a recording (`monitor.side.recorder`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Rows = Sequence[Sequence[Any]]


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
    held: bool  # the kernel's trigger had been pulled, and whom it took was not known
    coming: Mapping[str, Sequence[Any]]  # {signal: fields of `monitor.policy.patience.Coming`}
    forced: bool  # a signal had gone out
    waits: bool  # for what is coming back
    brake: Mapping[str, Sequence[Any]]  # {signal: fields of `monitor.policy.eviction_brake.Figures`}
    crossed_ns: int  # 0: no crossing led to it
    decided_ns: int | None  # null: nothing was done
    fired: Sequence[str] | None  # uid and name of the pod that the kernel's trigger had taken
    decision: Mapping[str, Any] | None  # what a replay has to make again of the `decision`
    hurried: bool  # the grace under way was ended
    outcome: Mapping[str, Any]
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
    decided_ns: int | None  # as in `pass`, and so are the next two
    fired: Sequence[str] | None
    decision: Mapping[str, Any] | None
    number: int = 0  # as in `ranking`


# side -> hot


class Record(NamedTuple):
    """A recording begins, or a part of it is missing: send a snapshot."""
