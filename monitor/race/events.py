"""What can happen in a race: the closed set of input events, each with the kernel's time and the bytes known then.

`ts_ns` is CLOCK_MONOTONIC in nanoseconds, sizes are bytes. `domain` is "node", "kubepods" or the path of a memory
cgroup. `pod` is a uid and `pod_name` is namespace/name; both are None for a process outside every pod. `by` is
"outrace" or "kubelet".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from monitor.race.codec import tagged
from monitor.race.event_base import KUBELET, KUBEPODS, NODE, OUTRACE, PODS, Timed
from monitor.race.eviction_events import (
    SIGKILL,
    SIGTERM,
    Decided,
    Gone,
    Held,
    Hold,
    HoldEnd,
    KubeletEvicted,
    Refused,
    Signalled,
)
from monitor.race.kill_events import (
    INIT,
    KMSG,
    KMSG_PLACE,
    KUBEPODS_SCOPES,
    RACE_SCOPES,
    RUNTIMES,
    SCOPES,
    SI_KERNEL,
    Checked,
    Exit,
    Kill,
    Mark,
)
from monitor.race.pressure_events import Clear, Crossing, Ranked, Reclaim, Sample, Seen, Watched, WorkingSets

__all__ = [
    "INIT",
    "KINDS",
    "KMSG",
    "KMSG_PLACE",
    "KUBELET",
    "KUBEPODS",
    "KUBEPODS_SCOPES",
    "NODE",
    "OUTRACE",
    "PODS",
    "RACE_SCOPES",
    "RUNTIMES",
    "SCOPES",
    "SIGKILL",
    "SIGTERM",
    "SI_KERNEL",
    "Checked",
    "Clear",
    "Clock",
    "Crossing",
    "Decided",
    "End",
    "Event",
    "Exit",
    "Gone",
    "Held",
    "Hold",
    "HoldEnd",
    "Kill",
    "KubeletEvicted",
    "Lost",
    "Mark",
    "Ranked",
    "Reclaim",
    "Refused",
    "Sample",
    "Seen",
    "Signalled",
    "Tick",
    "Watched",
    "WorkingSets",
    "event_from_json",
]


@dataclass(frozen=True, slots=True)
class Clock(Timed):
    """From `ts_ns` on, `realtime_ns` is what makes a time of CLOCK_MONOTONIC the Unix time, both in nanoseconds.

    Another one comes when the wall clock was set, or stood beside a monotonic clock that does not count a suspend.
    """

    realtime_ns: int


@dataclass(frozen=True, slots=True)
class Lost(Timed):
    """`count` events of a kind were dropped between `since_ns` and `ts_ns`.

    `what`: "cross", "oom" (marks), "kill", "exit", "decision" (what outrace or a kubelet did), "sample", "reclaim".
    """

    since_ns: int
    what: str
    count: int


@dataclass(frozen=True, slots=True)
class Tick(Timed):
    """Time passed."""


@dataclass(frozen=True, slots=True)
class End(Timed):
    """The record stops here."""


Event = (
    Clock | Lost | Watched | Ranked | Sample | WorkingSets | Reclaim | Crossing | Seen | Held | Decided
    | Refused | Hold | HoldEnd | Signalled | Kill | Mark | Exit | Gone | KubeletEvicted | Checked | Clear | Tick | End
)  # fmt: skip

#: Every kind by name, in the order in which events of one nanosecond are taken: causes before effects.
KINDS: dict[str, type[Event]] = {cls.__name__.lower(): cls for cls in get_args(Event)}


def event_from_json(data: Mapping[str, Any]) -> Event:
    """The event that `to_json` wrote. Raises RecordError naming the key."""
    made: Event = tagged(get_args(Event), data, "event")
    return made
