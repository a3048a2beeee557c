"""SIGKILL from anybody, the marks of the OOM killer, and how processes end."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.race.event_base import Timed

#: si_code of a signal the kernel itself sent: the OOM killer, or bpf_send_signal.
SI_KERNEL = 128
#: Who stops pods: the kubelet and container runtimes, by the kernel's name of the process (at most 15 characters).
RUNTIMES = frozenset(
    {"containerd", "containerd-shim", "conmon", "conmonrs", "crio", "crun", "dockerd", "kubelet", "runc"}
)
#: systemd kills what is left in a unit (a pod's scope) that is stopped; of that name, only process 1 is believed.
INIT = ("systemd", 1)

#: Confirmations of a kill: the kernel's log of it, and of its cgroup; any other is the counter of the victim's cgroup.
KMSG, KMSG_PLACE = "kmsg", "kmsg oom-kill"

#: What the cgroup is whose limit was hit. "global": the machine ran out. "node": the cgroup that is the node.
#: "pods": one that holds pods and is neither of these: of a QoS class, or between the node and kubepods. "outside": a
#: limited cgroup that is neither the node, nor kubepods, nor holds or is part of a pod.
SCOPES = ("global", "node", "kubepods", "pods", "pod", "container", "outside")
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
        """Sent to a pod by anybody else: it only looks like an OOM kill (exit code 137)."""
        return self.foreign and not self.by_runtime


@dataclass(frozen=True, slots=True)
class Mark(Timed):
    """The OOM killer marked a victim (oom:mark_victim); `rss` is all it held in memory, swap and page tables apart.

    `exiting`: it was dying already and nobody was killed. `scope`: one of SCOPES, what `oom_path` is; `oom_path` and
    the bytes of that cgroup are None for "global". `totalpages`: what an oom_score_adj is a thousandth of. `group`:
    the victim's cgroup is killed as a whole (None: not known). `invoker_pod` is namespace/name. `held`: at the
    cap that outrace holds its pod with; `capped`: at a limit that earlier releases gave an evicted pod (recordings).
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
    oom_cgroup_id: int = 0
    oom_path: str | None = None
    oom_usage: int | None = None
    oom_limit: int | None = None
    oom_inactive_file: int | None = None
    oom_active_file: int | None = None
    totalpages: int | None = None
    exiting: bool = False
    group: bool | None = None
    capped: bool = False
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
    """Another source (memory.events, memory.oom_control, kmsg) was asked about a kill, and agrees or not.

    "kmsg oom-kill" is about where it was: whose limit, and in which cgroup its victim.
    """

    source: str
    victim_pid: int | None
    agrees: bool
    detail: str
