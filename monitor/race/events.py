"""What can happen in a race: the closed set of input events, each with the kernel's time and the bytes known then.

`ts_ns` is CLOCK_MONOTONIC in nanoseconds, sizes are bytes. `domain` is "node", "kubepods" or the path of a memory
cgroup. `pod` is a uid and `pod_name` is namespace/name; both are None for a process outside every pod. `by` is
"outrace" or "kubelet".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from monitor.policy.ranking import Candidate
from monitor.race.codec import Record, tagged
from monitor.race.reported import Clear, Crossing, Gone, PodHeld, PodReleased, Signalled

NODE, KUBEPODS, PODS = "node", "kubepods", "pods"
OUTRACE, KUBELET = "outrace", "kubelet"
SIGTERM, SIGKILL = 15, 9


@dataclass(frozen=True, slots=True)
class Timed(Record):
    ts_ns: int


@dataclass(frozen=True, slots=True)
class OfThreshold(Timed):
    domain: str
    signal: str
    hard: bool

    @property
    def threshold(self) -> tuple[str, str, bool]:
        return self.domain, self.signal, self.hard


# ---- the memory of the node, of kubepods and of pods: thresholds, crossings and figures


@dataclass(frozen=True, slots=True)
class Watched(OfThreshold):
    """A threshold that is in force from now on, with the capacity it is taken of. `limit`: where the kernel kills here;
    None for the machine, which has no such line. `compared`: only a kubelet would have it; outrace does not act on it.
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
    """The flight recorder: one domain or cgroup at one moment. `pod`: the pod it is."""

    domain: str
    pod: str | None
    usage: int
    working_set: int
    inactive_file: int
    active_file: int


@dataclass(frozen=True, slots=True)
class WorkingSets(Timed):
    """What pods had, in recordings of earlier releases: it has no effect."""


@dataclass(frozen=True, slots=True)
class Reclaim(Timed):
    """Direct reclaim began on behalf of ``memcg`` (a path, or "global"): the last stage before an OOM."""

    memcg: str
    pod: str | None = None


@dataclass(frozen=True, slots=True)
class Seen(Timed):
    """A process that could decide read the numbers."""

    domain: str
    signal: str
    available: int
    by: str = OUTRACE


# ---- what outrace and a kubelet decide about pods, and do to them


@dataclass(frozen=True, slots=True)
class Suspended(OfThreshold):
    """Evictions for a threshold that is met are suspended: they would not help. `reason` "": they are resumed. `pods`:
    bytes of all pods that may be evicted; `outside`: bytes in use besides. `pod`: the kubelet would evict it.
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
    its last answer. `instead`: the pod that it evicted then; None: none.
    """

    pods: tuple[str, ...]
    budget: bool
    problem: str
    instead: str | None = None


@dataclass(frozen=True, slots=True)
class KubeletEvicted(Timed):
    """The API server reports that the kubelet evicted the pod for memory: Failed, Evicted. It is
    there when the containers have ended, up to some seconds after; `message` is the kubelet's.
    """

    pod: str
    pod_name: str
    message: str


@dataclass(frozen=True, slots=True)
class Stalled(Timed):
    """A pod waits because of memory that was taken from it, since `since_ns`; again when its cause is another one, when
    outrace raises its memory.high from `high_before` to `high` bytes, and at the end. `domain`: its cgroup's path.
    `share`: the most of a second. `cause`: uid of the pod that caused it, None for none; `why`: of
    `monitor.policy.stall`. `lacks`: bytes that it had; `grew`: bytes that the cause grew by. `swap`: it reads swap, or
    swap is full. `over`: why it is over, of `monitor.policy.stall`. `full`: the most of memory pressure `full` over
    10 s, 0 to 1, or of swap; `oomd`: systemd-oomd would have killed.
    """

    domain: str
    pod: str
    pod_name: str
    since_ns: int
    share: float
    cause: str | None
    cause_name: str | None
    why: str
    lacks: int
    grew: int
    available: int | None = None
    swap: bool = False
    over: str = ""
    high_before: int | None = None
    high: int | None = None
    full: float | None = None
    oomd: bool = False


# ---- SIGKILL, the marks of the OOM killer, and how processes end

#: si_code of a signal the kernel itself sent: the OOM killer, or bpf_send_signal.
SI_KERNEL = 128
#: What stops pods: the kubelet and container runtimes, by the kernel's name of the process (at most 15 characters).
RUNTIMES = frozenset(
    {"containerd", "containerd-shim", "conmon", "conmonrs", "crio", "crun", "dockerd", "kubelet", "runc"}
)
#: systemd kills what is left in a unit (a pod's scope) that is stopped; of that name, only process 1 is believed.
INIT = ("systemd", 1)

#: Confirmations of a kill: the kernel's log of it, and that SysRq f asked for it. Any other is of earlier releases.
KMSG, KMSG_BY_HAND = "kmsg", "kmsg sysrq"

#: What the cgroup is whose limit was hit. "global": the machine ran out. "node": the cgroup that is the node.
#: "pods": one that holds pods and is neither of these: of a QoS class, or between the node and kubepods. "outside": a
#: limited cgroup that is neither the node, nor kubepods, nor holds or is part of a pod.
SCOPES = ("global", "node", "kubepods", "pods", "pod", "container", "outside")
#: What the scope of a kill becomes once the kernel's log says that SysRq f asked for it.
BY_HAND = "by_hand"
#: Those in which an eviction races with the OOM killer; in the others a pod or service hit its own limit.
RACE_SCOPES = frozenset({"global", "node", "kubepods", "pods"})
#: Those that belong to kubepods' part of the node.
KUBEPODS_SCOPES = frozenset({"kubepods", "pods"})


@dataclass(frozen=True, slots=True)
class Kill(Timed):
    """A SIGKILL was generated. `ours`: by outrace itself. `sender_in_pod`: by a process of a pod, which calls itself as
    it likes. The OOM killer's comes microseconds before its mark.
    """

    victim_pid: int
    victim_comm: str
    pod: str | None
    pod_name: str | None
    memcg: str
    si_code: int
    sender_pid: int
    sender_comm: str
    ours: bool = False
    sender_in_pod: bool = False

    @property
    def foreign(self) -> bool:
        """Sent to a pod by neither the kernel nor outrace."""
        return self.si_code != SI_KERNEL and not self.ours and self.pod is not None

    @property
    def by_runtime(self) -> bool:
        """Sent to a pod by what stops pods: an ordinary end, or under pressure perhaps an eviction by a kubelet."""
        called_so = self.sender_comm in RUNTIMES or (self.sender_comm, self.sender_pid) == INIT
        return self.foreign and not self.sender_in_pod and called_so

    @property
    def by_user(self) -> bool:
        """Sent to a pod by another process: it only looks like an OOM kill (exit code 137)."""
        return self.foreign and not self.by_runtime


@dataclass(frozen=True, slots=True)
class Mark(Timed):
    """The OOM killer marked a victim (oom:mark_victim); `rss` is all it held in memory, swap and page tables apart.

    `exiting`: it was dying already, and the mark killed no process. `scope`: one of SCOPES, what `oom_path` is;
    `oom_path` and the bytes of that cgroup are None for "global". `group`: the victim's cgroup is killed as a whole
    (None: not known). `invoker_pod` is namespace/name. `held`: at the cap that outrace holds its pod with.
    """

    victim_pid: int
    victim_comm: str
    pod: str | None
    pod_name: str | None
    memcg: str
    rss: int
    oom_score_adj: int
    invoker_pid: int
    invoker_tid: int
    invoker_comm: str
    invoker_pod: str | None
    scope: str
    oom_path: str | None = None
    oom_usage: int | None = None
    oom_limit: int | None = None
    oom_inactive_file: int | None = None
    exiting: bool = False
    group: bool | None = None
    held: bool = False


@dataclass(frozen=True, slots=True)
class Exit(Timed):
    """The last thread of a process left."""

    pid: int
    comm: str
    pod: str | None = None
    pod_name: str | None = None


@dataclass(frozen=True, slots=True)
class Checked(Timed):
    """The kernel's log confirms a kill. (In earlier releases also another source, which agreed or not.)"""

    source: str
    victim_pid: int | None
    agrees: bool
    detail: str


# ---- the record itself


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
    Clock | Lost | Watched | Ranked | Sample | WorkingSets | Reclaim | Crossing | Seen | Suspended | Decided
    | Refused | PodHeld | PodReleased | Stalled | Signalled | Kill | Mark | Exit | Gone | KubeletEvicted | Checked
    | Clear | Tick | End
)  # fmt: skip

#: The order in which events of one nanosecond are taken: causes before effects.
PLACE: dict[type, int] = {cls: place for place, cls in enumerate(get_args(Event))}


def event_from_json(data: Mapping[str, Any]) -> Event:
    """The event that `to_json` wrote. Raises RecordError naming the key."""
    made: Event = tagged(get_args(Event), data, "event")
    return made
