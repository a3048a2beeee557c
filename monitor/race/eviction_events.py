"""What outrace and a kubelet decide about pods, and do to them."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.race.event_base import OUTRACE, OfThreshold, Timed

SIGTERM, SIGKILL = 15, 9


@dataclass(frozen=True, slots=True)
class Held(OfThreshold):
    """Evictions for a threshold that is met are held, because they would not help; `reason` "": not any more. `pods`:
    what all have together that may be evicted; `outside`: what is in use besides. `pod`: whom the kubelet would evict.
    """

    reason: str
    available: int | None = None
    quantity: int | None = None
    pods: int | None = None
    outside: int | None = None
    pod: str | None = None
    pod_name: str | None = None


@dataclass(frozen=True, slots=True)
class Decided(OfThreshold):
    """A pod is to be evicted. `observed`: outrace only observes, and does not act.

    `rank` is its place among the pods that may be evicted, `working_set` and `request` are the pod's; `usage` and
    `available` are the domain's. `trigger`: "user" or "kernel" (signalled inside its own charge). `coming`: what pods
    that were gone already had not given back then.
    """

    quantity: int
    capacity: int
    available: int
    usage: int | None
    pod: str
    pod_name: str
    rank: int
    grace_s: int
    observed: bool
    by: str = OUTRACE
    trigger: str = "user"
    crossed_ns: int | None = None
    working_set: int | None = None
    request: int | None = None
    min_reclaim: int = 0
    coming: int = 0


@dataclass(frozen=True, slots=True)
class Refused(OfThreshold):
    """The API server was asked to evict `pods` (namespace/name, the policy's first one first) and does not, or did not
    some seconds ago: `budget`, a PodDisruptionBudget forbids one of them at least, else it gave errors; `problem` is
    its last answer. `instead`: the pod that it evicted then, None for nobody.
    """

    pods: tuple[str, ...]
    budget: bool
    problem: str
    instead: str | None = None


@dataclass(frozen=True, slots=True)
class Signalled(Timed):
    """The processes of a pod being evicted were sent `signal` (15 at first, if there is a grace; then 9)."""

    pod: str
    pod_name: str
    signal: int
    by: str = OUTRACE


@dataclass(frozen=True, slots=True)
class Gone(Timed):
    """No process is left of an evicted pod; it gave back `freed` bytes (None: not known), in the end: until
    `settled_ns`. `by` "kubelet": of a pod that a runtime was stopping, for whatever reason. `exits`: pid and wait
    status of those of its processes whose end after a hard grace the kernel knows (Linux 6.15).
    """

    pod: str
    pod_name: str
    freed: int | None = None
    by: str = OUTRACE
    settled_ns: int | None = None
    exits: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class KubeletEvicted(Timed):
    """The API server reports that the kubelet evicted the pod for memory: Failed, Evicted. It is
    there when the containers have ended, up to some seconds after; `message` is the kubelet's.
    """

    pod: str
    pod_name: str
    message: str


@dataclass(frozen=True, slots=True)
class Hold(OfThreshold):
    """A pod is held: braked instead of killed; again when the brake changed. `hold` numbers it. `brake`: of `limit`,
    `high` and `freeze`, with + between. `cap`: what it may have at most (0: no limit). `usage` is the pod's,
    `available` the domain's. `second_line`: what is available when it is killed after all (0: it is not). `reason`:
    `victim` (the policy's) or `grows`. `until_ns`: its time limit. `step`: `above` a kubelet's line, or `across`.
    `left_out`: so many beginnings, changes and ends of holds of it, before this one, are no events.
    """

    pod: str
    pod_name: str
    hold: int
    brake: str
    cap: int
    usage: int
    quantity: int
    available: int
    second_line: int
    reason: str
    until_ns: int
    step: str = ""
    crossed_ns: int | None = None
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class HoldEnd(Timed):
    """A pod is not held any more, after `held_ns`; `why` is one of `monitor.link.hold_messages.HOLD_ENDS`. `grew`: by
    how much the pod did. `instead`: namespace/name of the pod that the kubelet evicted instead.
    `left_out` as for `Hold`.
    """

    RETIRED = frozenset(("connections", "unread", "unready", "restarts", "failed_probes"))  # in older recordings

    pod: str
    pod_name: str
    hold: int
    held_ns: int
    why: str
    grew: int
    usage: int
    available: int
    instead: str | None = None
    left_out: int = 0
