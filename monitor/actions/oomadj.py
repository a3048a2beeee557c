"""oom_score_adj by QoS class, kept true for every process of every pod: audited always, written under enforce.

The kubelet's value reaches a container only when it starts (runc issue 4669), and a process can change its own: it is
looked at when its pod is found, and when it forks, executes or is moved in, as long as it is in the pod's cgroups.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from monitor.actions.oom_values import SANDBOX, ScoreNotes, Seen, seen_now
from monitor.kernel import cgroup_procs, cgroupfs
from monitor.kernel.procfs import Process
from monitor.pods.model import MOST_CONTAINERS, FoundPod
from monitor.policy.releases import CURRENT, Era

#: A runtime moves a process into its cgroup first and sets its value a moment later: in observe mode look after that.
#: Of a pod with many processes later, by so much for each: a look takes 60 us, so that looks cost 5 % of a CPU.
_SETTLE_NS, _PACE_NS = 1_000_000_000, 1_200_000
#: ... also where processes go on to appear: a pod that forks all the time is looked at this often.
_MOST_SETTLE_NS = 5_000_000_000
#: Processes looked at in one turn: marks of the OOM killer, in the same thread, wait no longer for it.
_TURN = 128
#: Cgroups of a pod whose processes are listed, 27 us each: those in later ones have what they inherit. A pod counts as
#: so many processes at least, because empty cgroups cost as much.
_CGROUPS, _LEAST = 1024, 16
#: Mismatches remembered per pod, so that each is logged once.
_MAX_REPORTED = 1024

REMEDY = (
    "give outrace CAP_SYS_RESOURCE and CAP_DAC_OVERRIDE "
    "(systemd: CapabilityBoundingSet, Kubernetes: securityContext.capabilities.add)"
)


class Logger(Protocol):
    """What `monitor.side.export.log.Log` is called like."""

    def __call__(self, level: str, message: str, /, **fields: object) -> None: ...


@dataclass(slots=True)
class _PodScores:
    """A pod's directories and the value each container's processes should have."""

    found: FoundPod
    label: str
    scores: dict[str, int]  # container -> value; without those that cannot be known
    default: int | None  # for processes in no container's own cgroup
    reported: set[tuple[int, int]] = field(default_factory=set)  # (pid, value it had)
    size: int = 0  # processes that it had at the last look
    since: int = 0  # up to which pid it was looked at; 0: not in part
    first_ns: int = 0  # since when it waits to be looked at, if it does ...
    due_ns: float = inf  # ... and until when (CLOCK_MONOTONIC)


class OomScores:
    """Audits, and with ``notes`` corrects, oom_score_adj. ``capacity`` is the node's memory in bytes."""

    def __init__(
        self,
        hierarchy: cgroupfs.Hierarchy,
        capacity: int,
        notes: ScoreNotes | None,
        log: Logger,
        era: Era = CURRENT,
    ) -> None:
        self.hierarchy, self.capacity, self._notes, self.log, self.era = hierarchy, capacity, notes, log, era
        self.mismatches = self.written = self.denied = 0
        self._denial_reported = False
        self._pods: dict[str, _PodScores] = {}
        self._by_cgroup: dict[int, str] = {}
        #: Uids of pods whose processes are raised for the OOM killer (`monitor.side.process_watch`): their values are
        #: compared when they are their own again.
        self.raised: Collection[str] = ()

    def set_pod(self, found: FoundPod) -> None:
        """A pod is new or has changed: compute its values and look at all of its processes."""
        uid = found.pod.uid
        old = self._pods.get(uid)
        self.remove_pod(uid)
        scores = pod_scores(found, self.capacity, self.era)
        # A process in no container's cgroup belongs to a container that has none; of several the most protected one.
        homeless = [value for name, value in scores.items() if name not in found.containers]
        default = min(homeless or scores.values(), default=None)
        pod = _PodScores(found, f"{found.pod.namespace}/{found.pod.name}", scores, default)
        if old is not None and old.scores == scores:
            pod.reported = old.reported
        self._pods[uid] = pod
        try:
            self._by_cgroup[cgroupfs.cgroup_id(found.cgroup)] = uid
        except cgroupfs.CgroupGone:
            return  # the pod source will say so
        self._audit(pod)
        # Once more after a second: the kernel reports new processes of this pod only once the hot process watches it.
        self.look_soon(uid)

    def set_capacity(self, capacity: int) -> None:
        """The node has ``capacity`` bytes from now on, and every Burstable container another value by that."""
        if capacity == self.capacity:
            return
        self.capacity = capacity
        for pod in list(self._pods.values()):
            self.set_pod(pod.found)

    def remove_pod(self, uid: str) -> None:
        """Forget a pod."""
        if self._pods.pop(uid, None) is not None:
            self._by_cgroup = {cgroup: owner for cgroup, owner in self._by_cgroup.items() if owner != uid}

    def set_back(self, uid: str) -> None:
        """The processes of a pod have their own values again: look at all, and later at those that were being made."""
        pod = self._pods.get(uid)
        if pod is not None:
            self._audit(pod)
            self.look_soon(uid)

    def look_at_all_soon(self) -> None:
        """Records of processes were lost: look at every process of every pod, but not at once, as more will be lost."""
        for uid in self._pods:
            self.look_soon(uid)

    def look_soon(self, uid: str) -> None:
        """Processes appeared in a pod: look at all that it will have when they are settled."""
        pod = self._pods.get(uid)
        if pod is not None:
            now, wait_ns = time.monotonic_ns(), max(_SETTLE_NS, _PACE_NS * pod.size)
            pod.first_ns = now if pod.due_ns == inf else pod.first_ns
            pod.due_ns = min(now + wait_ns, pod.first_ns + max(wait_ns, _MOST_SETTLE_NS))

    def on_process(self, pid: int, cgroup_id: int) -> None:
        """A process appeared in the pod with this cgroup id (a fork, an exec, or moved in)."""
        self._appeared(pid, self._by_cgroup.get(cgroup_id))

    def on_foreign_process(self, pid: int) -> None:
        """A process appeared somewhere on the machine (the process connector does not say where)."""
        with Process(pid) as process:
            path = process.memory_cgroup(self.hierarchy)
        inside = (uid for uid, pod in self._pods.items() if path and path.is_relative_to(pod.found.cgroup))
        self._appeared(pid, next(inside, None))

    def _appeared(self, pid: int, uid: str | None) -> None:
        if uid is None:
            return
        if self._notes is not None:
            self._check(self._pods[uid], pid)
        else:
            self.look_soon(uid)

    def due_s(self) -> float:
        """Seconds until `settle` has something to do."""
        due_ns = min((0 if pod.since else pod.due_ns for pod in self._pods.values()), default=inf)
        return max(0.0, (due_ns - time.monotonic_ns()) / 1e9)

    def settle(self) -> None:
        """Look at the pods that are due, at `_TURN` processes; at the others in the next turn."""
        now, left = time.monotonic_ns(), _TURN
        for pod in self._pods.values():
            if left > 0 and (pod.since or pod.due_ns <= now):
                if not pod.since:
                    pod.due_ns = inf
                left -= max(self._audit(pod, pod.since), _LEAST)

    def _audit(self, pod: _PodScores, since: int = 0) -> int:
        """Look at the pod's processes with larger pids than ``since``, at most `_TURN`; at how many. The others are due
        at once: 14,000 in one turn took 0.6 s. At none of a pod without known values: a user makes 60,000 cgroups in a
        unit of its own; to list their processes took 1.6 s.
        """
        pod.since = 0
        if pod.found.pod.uid in self.raised or not pod.scores:
            return 0
        there = cgroup_procs.processes(pod.found.cgroup, most=_CGROUPS)
        pod.size = len(there)
        pids = [pid for pid in there if pid > since]
        if len(pids) > _TURN:
            pod.since = pids[_TURN - 1]
        self._check(pod, *pids[:_TURN])
        return min(_TURN, len(pids))

    def _check(self, pod: _PodScores, *pids: int) -> None:
        """Compare processes with what they should have; log a difference once; with notes, write."""
        if pod.found.pod.uid in self.raised:
            return
        wanted = {pid: seen for pid in pids if (seen := self._look(pod, pid)) is not None}
        if not wanted or self._notes is None or not self._note(self._notes, pod, wanted):
            return
        for pid, seen in wanted.items():
            with Process(pid) as process:
                if process.started() == seen.started:
                    self._write(pod, process, seen)

    def _note(self, notes: ScoreNotes, pod: _PodScores, wanted: dict[int, Seen]) -> bool:
        """Note what they have; False where nothing may be written."""
        try:
            notes.note(pod.found.cgroup, pod.found.pod.uid, wanted)
        except OSError as error:
            if error.errno not in cgroupfs.GONE:
                self.denied += len(wanted)
                first = next(iter(wanted.items()))
                self._report_denial(f"oom_score_adj cannot be noted: {error.strerror}", pod, *first)
            return False
        return True

    def _look(self, pod: _PodScores, pid: int) -> Seen | None:
        """What a process should have; None where that is what it has, or it is not the pod's."""
        with Process(pid) as process:
            path = process.memory_cgroup(self.hierarchy)
            if path is None or not path.is_relative_to(pod.found.cgroup):
                return None  # gone, or it left the pod since it was seen in it
            containers = pod.found.containers.items()
            container = next((name for name, own in containers if path.is_relative_to(own)), None)
            is_now, started = process.oom_score_adj(), process.started()
        if container is None and path.parent == pod.found.cgroup and is_now == SANDBOX:
            return None  # no process without CAP_SYS_RESOURCE gives itself that
        should = pod.default if container is None else pod.scores.get(container)
        if should is None or is_now is None or started is None or is_now == should:
            return None
        if (pid, is_now) not in pod.reported:
            if len(pod.reported) >= _MAX_REPORTED:
                pod.reported.clear()
            pod.reported.add((pid, is_now))
            self.mismatches += 1
            whose = {"pod": pod.label, "uid": pod.found.pod.uid, "container": container, "pid": pid}
            values = {"is_now": is_now, "should_be": should, "qos": self.era.qos_class(pod.found.pod)}
            self.log("info", "oom_score_adj differs from the pod's QoS", **whose, **values)
        return seen_now(started, is_now, should, pod.found.cgroup, str(path))

    def _write(self, pod: _PodScores, process: Process, seen: Seen) -> None:
        try:
            if not process.set_oom_score_adj(seen.written):
                return
        except PermissionError:
            self.denied += 1
            # Opening the file of another user takes CAP_DAC_OVERRIDE (it is that user's, mode 0644), lowering what is
            # in it CAP_SYS_RESOURCE.
            what = "lowered" if seen.written < seen.old else "written"
            self._report_denial(f"oom_score_adj cannot be {what} (EACCES)", pod, process.pid, seen)
            return
        path = process.memory_cgroup(self.hierarchy)
        if path is not None and not path.is_relative_to(pod.found.cgroup):
            with suppress(PermissionError):
                process.set_oom_score_adj(seen.old)  # it left between the look at its cgroup and the write
            return
        self.written += 1

    def _report_denial(self, problem: str, pod: _PodScores, pid: int, seen: Seen) -> None:
        """Once."""
        if not self._denial_reported:
            self._denial_reported = True
            fields = {"pod": pod.label, "pid": pid, "is_now": seen.old, "should_be": seen.written}
            self.log("warning", problem, **fields, remedy=REMEDY)


def pod_scores(found: FoundPod, capacity: int, era: Era = CURRENT) -> dict[str, int]:
    """Container name -> oom_score_adj, within the kernel's -1000..1000. None of a pod known by its cgroup alone, of
    one of which not all containers may be known, and of the services of a machine.
    """
    pod = found.pod
    if not pod.spec_known or pod.written or max(len(pod.containers), len(pod.init_containers)) >= MOST_CONTAINERS:
        return {}  # the score of a container is by its own request; that of a service is its operator's
    return {
        container.name: max(-1000, min(1000, era.oom_score_adj(pod, container.name, capacity)))
        for container in (*pod.containers, *pod.init_containers)
    }
