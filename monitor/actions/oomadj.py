"""oom_score_adj by QoS class, kept true for every process of every pod: audited always, written under enforce.

The kubelet's value reaches a container only when it starts (runc issue 4669), and a process can change its own: it is
looked at when its pod is found, and when it forks, executes or is moved in, as long as it is in the pod's cgroups.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from monitor.actions.oom_values import ScoreNotes, Wanted
from monitor.kernel import cgroup_procs, cgroupfs
from monitor.kernel.procfs import Process
from monitor.pods.model import FoundPod
from monitor.pods.tree import is_sandbox
from monitor.policy.releases import CURRENT, Era

#: A runtime moves a process into its cgroup first and sets its value a moment later: in observe mode look after that.
_SETTLE_NS = 1_000_000_000
#: Processes waiting for that look; beyond it the oldest are not looked at (and counted), as the next fork brings more.
_MAX_WAITING = 4096
_EVERY_PROCESS = 0
_EVERY_POD = ""
#: Processes looked at in one turn of the main loop (some 60 us each), and of a pod that makes more than are reported.
_TURN, _SAMPLE = 128, 256
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
    looked_at: int = 0  # the last pid of a pod that makes more than are reported


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
        self.mismatches = self.written = self.denied = self.skipped = 0
        self._denial_reported = self._all_waits = False
        self._pods: dict[str, _PodScores] = {}
        self._by_cgroup: dict[int, str] = {}
        self._waiting: deque[tuple[int, int, str]] = deque()  # (due ns, pid, or minus the one after which all are, uid)
        #: Uids of pods whose processes are raised for the OOM killer (`monitor.side.process_watch`): their values are
        #: compared when they are their own again.
        self.raised: frozenset[str] = frozenset()

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
        self._wait(_EVERY_PROCESS, uid)

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

    def audit_all(self) -> None:
        """Look at every process of every pod, at some of them in later turns."""
        left = _TURN
        for uid, pod in self._pods.items():
            if left > 0:
                left -= max(self._audit(pod), _LEAST)
            else:
                self._waiting.appendleft((0, _EVERY_PROCESS, uid))

    def set_back(self, uid: str) -> None:
        """The processes of a pod have their own values again: look at all, and later at those that were being made."""
        self.raised -= {uid}
        pod = self._pods.get(uid)
        if pod is not None:
            self._audit(pod)
            self._wait(_EVERY_PROCESS, uid)

    def audit_soon(self) -> None:
        """Records of processes were lost: look at every process of every pod in a second, as more will be lost."""
        if not self._all_waits:
            self._all_waits = True
            self._wait(_EVERY_PROCESS, _EVERY_POD)

    def look_around(self, uid: str) -> None:
        """A pod has processes without a record: look at some of them now, at others the next time."""
        if (pod := self._pods.get(uid)) is not None:
            _, pod.looked_at = self._look_at(pod, pod.looked_at, _SAMPLE)

    def on_process(self, pid: int, cgroup_id: int) -> None:
        """A process appeared in the pod with this cgroup id (a fork, an exec, or moved in)."""
        uid = self._by_cgroup.get(cgroup_id)
        if uid is not None:
            self._appeared(pid, uid)

    def on_foreign_process(self, pid: int) -> None:
        """A process appeared somewhere on the machine (the process connector does not say where)."""
        with Process(pid) as process:
            path = process.memory_cgroup(self.hierarchy)
        uid = next((uid for uid, pod in self._pods.items() if path and path.is_relative_to(pod.found.cgroup)), None)
        if uid is not None:
            self._appeared(pid, uid)

    def _appeared(self, pid: int, uid: str) -> None:
        if self._notes is not None:
            self._check(self._pods[uid], pid)
        else:
            self._wait(pid, uid)

    def _wait(self, pid: int, uid: str) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self._waiting.popleft()
            self.skipped += 1
        self._waiting.append((time.monotonic_ns() + _SETTLE_NS, pid, uid))

    def due_ns(self) -> int | None:
        """Nanoseconds until `settle` has something to do; None if nothing waits."""
        return max(0, self._waiting[0][0] - time.monotonic_ns()) if self._waiting else None

    def settle(self) -> None:
        """Look at the processes that are due: at `_TURN` of them, and at the rest in the next turn."""
        now = time.monotonic_ns()
        for _ in range(_TURN):
            if not self._waiting or self._waiting[0][0] > now:
                break
            _, pid, uid = self._waiting.popleft()
            if uid == _EVERY_POD:
                self._all_waits = False
                self.audit_all()
                return
            pod = self._pods.get(uid)
            if pod is not None and pid > 0:
                self._check(pod, pid)
            elif pod is not None:
                self._audit(pod, -pid)
                return

    def _audit(self, pod: _PodScores, since: int = 0) -> int:
        """Look at the pod's processes with larger pids than ``since``, at most `_TURN`; at how many. The others are due
        at once: 14,000 in one turn of the side's loop took 0.6 s, and it was killed as one that hangs.
        """
        looked_at, last = self._look_at(pod, since, _TURN)
        if last:
            uid = pod.found.pod.uid  # one rest for each pod, however often it changes
            self._waiting = deque(one for one in self._waiting if one[1] >= 0 or one[2] != uid)
            self._waiting.appendleft((0, -last, uid))
        return looked_at

    def _look_at(self, pod: _PodScores, since: int, most: int) -> tuple[int, int]:
        """Look at ``most`` of the pod's processes, in the order of their pids; at how many, and the last pid if there
        are more. None of a pod without known values: a user makes 60,000 cgroups in a unit of its own; to list their
        processes took 1.6 s.
        """
        if pod.found.pod.uid in self.raised or not pod.scores:
            return 0, 0
        pids = sorted(pid for pid in cgroup_procs.processes(pod.found.cgroup, most=_CGROUPS) if pid > since)
        self._check(pod, *pids[:most])
        return min(most, len(pids)), pids[most - 1] if len(pids) > most else 0

    def _check(self, pod: _PodScores, *pids: int) -> None:
        """Compare processes with what they should have; log a difference once; with notes, write."""
        if pod.found.pod.uid in self.raised:
            return
        wanted = [one for pid in pids if (one := self._look(pod, pid)) is not None]
        if self._notes is None or not self._note(pod, wanted):
            return
        for one in wanted:
            with Process(one.pid) as process:
                if process.started() == one.started:
                    self._write(pod, process, one)

    def _note(self, pod: _PodScores, wanted: list[Wanted]) -> bool:
        """Note what they have; False where nothing may be written."""
        assert self._notes is not None
        if not wanted:
            return False
        try:
            self._notes.note(pod.found, wanted)
        except OSError as error:
            if error.errno not in cgroupfs.GONE:
                self.denied += len(wanted)
                self._report_denial(f"oom_score_adj cannot be noted: {error.strerror}", pod, wanted[0])
            return False
        return True

    def _look(self, pod: _PodScores, pid: int) -> Wanted | None:
        """What a process should have; None where that is what it has, or it is not the pod's."""
        with Process(pid) as process:
            path = process.memory_cgroup(self.hierarchy)
            if path is None or not path.is_relative_to(pod.found.cgroup):
                return None  # gone, or it left the pod since it was seen in it
            containers = pod.found.containers.items()
            container = next((name for name, own in containers if path.is_relative_to(own)), None)
            if container is None and path.parent == pod.found.cgroup and is_sandbox(self.hierarchy, path):
                return None  # the runtime's value (-998) stays; as any process can call itself pause
            return self._compare(pod, process, container, str(path))

    def _compare(self, pod: _PodScores, process: Process, container: str | None, path: str) -> Wanted | None:
        should = pod.default if container is None else pod.scores.get(container)
        pid, is_now, started = process.pid, process.oom_score_adj(), process.started()
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
        return Wanted(pid, started, is_now, should, path)

    def _write(self, pod: _PodScores, process: Process, wanted: Wanted) -> None:
        try:
            if not process.set_oom_score_adj(wanted.should):
                return
        except PermissionError:
            self.denied += 1
            # Opening the file of another user takes CAP_DAC_OVERRIDE (it is that user's, mode 0644), lowering what is
            # in it CAP_SYS_RESOURCE.
            what = "lowered" if wanted.should < wanted.is_now else "written"
            self._report_denial(f"oom_score_adj cannot be {what} (EACCES)", pod, wanted)
            return
        path = process.memory_cgroup(self.hierarchy)
        if path is not None and not path.is_relative_to(pod.found.cgroup):
            with suppress(PermissionError):
                process.set_oom_score_adj(wanted.is_now)  # it left between the look at its cgroup and the write
            return
        self.written += 1

    def _report_denial(self, problem: str, pod: _PodScores, wanted: Wanted) -> None:
        """Once."""
        if not self._denial_reported:
            self._denial_reported = True
            fields = {"pod": pod.label, "pid": wanted.pid, "is_now": wanted.is_now, "should_be": wanted.should}
            self.log("warning", problem, **fields, remedy=REMEDY)


def pod_scores(found: FoundPod, capacity: int, era: Era = CURRENT) -> dict[str, int]:
    """Container name -> oom_score_adj, within the kernel's -1000..1000. None of a pod known by its cgroup alone, of
    sums, and of the services of a machine.
    """
    pod = found.pod
    if not pod.spec_known or pod.containers_summed or pod.written:
        return {}  # the score of a container is by its own request; that of a service is its operator's
    return {
        container.name: max(-1000, min(1000, era.oom_score_adj(pod, container.name, capacity)))
        for container in (*pod.containers, *pod.init_containers)
    }
