"""The memory of the node, of kubepods and of pods: thresholds, crossings and figures."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.policy.ranking import Candidate
from monitor.race.event_base import OUTRACE, OfThreshold, Timed
from monitor.race.figure_age import PodPoints


@dataclass(frozen=True, slots=True)
class Watched(OfThreshold):
    """A threshold that is in force from now on, with the capacity it is taken of. `limit`: where the kernel kills here;
    None for the machine, which has no such line. `compared`: only a kubelet would have it, and nobody acts on it.
    """

    quantity: int
    capacity: int
    limit: int | None = None
    grace_s: float = 0.0
    min_reclaim: int = 0
    compared: bool = False


@dataclass(frozen=True, slots=True)
class Ranked(Timed):
    """The policy's order of all pods at this moment, first victim first, critical ones included."""

    order: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Sample(Timed):
    """The flight recorder: one domain or cgroup at one moment. `pod`: the pod it is, or (with `container`) is a part
    of. `limit`: its own limit; None if it has none.
    """

    domain: str
    pod: str | None
    usage: int
    working_set: int
    inactive_file: int
    active_file: int
    limit: int | None = None
    container: str | None = None


@dataclass(frozen=True, slots=True)
class WorkingSets(Timed):
    """What pods had since `since_ns`, of all that moved: a kubelet ranks by figures of then."""

    since_ns: int
    pods: tuple[PodPoints, ...]


@dataclass(frozen=True, slots=True)
class Reclaim(Timed):
    """Direct reclaim began on behalf of ``memcg`` (a path, or "global"): the last stage before an OOM."""

    memcg: str
    pod: str | None = None


@dataclass(frozen=True, slots=True)
class Crossing(OfThreshold):
    """The kernel saw `available` fall below `quantity`."""

    quantity: int
    capacity: int
    usage: int
    working_set: int
    available: int


@dataclass(frozen=True, slots=True)
class Seen(Timed):
    """A process that could decide read the numbers."""

    domain: str
    signal: str
    available: int
    by: str = OUTRACE


@dataclass(frozen=True, slots=True)
class Clear(OfThreshold):
    """The threshold is not met any more. May be repeated."""

    available: int
