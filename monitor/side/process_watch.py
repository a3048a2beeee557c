"""The processes of the pods: those that appear, and what oom_score_adj each has. A thread of its own does it: of a pod
with thousands of processes it takes a part of a second.

`VictimMarks` guides the kernel's OOM killer: near a threshold every process of the pod that the policy would evict next
has oom_score_adj 1000, so that a race that is lost costs the pod that the policy would have evicted.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.actions.oom_values import Mark, MarkJournal, ScoreNotes
from monitor.actions.oomadj import REMEDY, OomScores
from monitor.errors import MonitorError
from monitor.kernel import meminfo
from monitor.kernel.cgroupfs import GONE
from monitor.kernel.procfs import Process
from monitor.kernel.sched import hurry
from monitor.kernel.wire import OomEvent
from monitor.link.messages import Decision, Gone, Message, State, Suspended
from monitor.pods.model import FoundPod
from monitor.policy.qos import is_critical
from monitor.policy.releases import era
from monitor.side.export.log import Log
from monitor.side.node_state import Figures, NodeState, label
from monitor.side.worker import WatchedThread

if TYPE_CHECKING:
    from monitor.actions.procfeed import ProcessFeed

#: A marked pod is read again this often, for processes that appeared with a value of their own, and what failed is
#: tried again. Not at each record of a process: a fork bomb would have it look all the time.
LOOK_S = 1.0
#: A turn of the marks takes so many times its own length until the next one: 5 % of a CPU, however many processes a pod
#: has and however often another pod is first.
_REST = 20
#: Pods being evicted that keep their mark; one is evicted in a pass.
_MOST_LEAVING = 32
# Pods that cause more records than the programs' budget allows (bpf/memcg.h: afford()). The programs only count what
# is beyond the budget, per watched cgroup. While a pod has such processes, the helper looks for them here, and a line
# of the log names the pod and how many records of each kind were withheld.
#: How often the pods are looked at once records came.
BUDGET_S = 1.0
#: Near a threshold the processes of the first pod are looked at this often; of one that became first, a second after
#: the one before: a package manager may have begun in it.
DOUBT_S, NEXT_DOUBT_S = 5.0, 1.0


@dataclass(eq=False)
class VictimMarks:
    """Under --mode hold and --mode enforce. A pod that is being evicted keeps its mark until it is gone. While
    evictions are suspended, because they would not help, no pod is marked. The values are set back as soon as another
    pod is first or no threshold is near (`monitor.actions.oom_values`); ``set_back(uid)`` hears of it.
    """

    node: NodeState
    log: Log
    set_back: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.marks: dict[str, Mark] = {}  # by uid
        self._journal = MarkJournal(Path(self.node.config.state_dir))
        self._wanted: dict[str, FoundPod] = {}  # replaced as a whole by the loop, read by the thread
        self._leaving: deque[str] = deque(maxlen=_MOST_LEAVING)
        self._looked = self._rests_until = 0.0
        self._hurry = False  # ends a rest
        self._problem = ""

    def take(self, message: Message) -> bool:
        """A message of the hot process, in the loop; whether other pods are to be marked now. Never waits."""
        if isinstance(message, Decision):
            if not message.observed and message.pod in self._wanted:
                self._leaving.append(message.pod)
        elif isinstance(message, Gone):
            if message.pod in self._leaving:
                self._leaving.remove(message.pod)
        elif isinstance(message, State) or (isinstance(message, Suspended) and not message.resumed):
            first = _first(message) if isinstance(message, State) else []
            found = {uid: self.node.pods.get(uid) for uid in (*self._leaving, *first)}
            before, self._wanted = self._wanted, {uid: pod for uid, pod in found.items() if pod and _may(pod)}
            # On a busy machine a mark that stayed for 0.3 s cost a pod, and nothing was gained.
            self._hurry = self._hurry or isinstance(message, Suspended)
            return self._wanted.keys() != before.keys() or isinstance(message, Suspended)
        return False

    def turn(self) -> float:
        """Do what is wanted; returns after how many seconds to do so again without being woken."""
        began = self.clock()
        if began < self._rests_until and not self._hurry:
            return self._rests_until - began
        self._hurry = False
        wanted = self._wanted
        for uid, found in wanted.items():  # first: one pod is marked all the time
            if uid not in self.marks:
                self._try(uid, self._mark, uid, found)
        for uid in self.marks.keys() - wanted.keys():
            self._try(uid, self._restore, uid)
        if self.clock() >= self._looked + LOOK_S:
            for uid, mark in self.marks.items():
                self._try(uid, self._journal.look_again, mark)
            self._looked = self.clock()
        now = self.clock()
        self._rests_until = now + _REST * (now - began)
        return max(self._looked + LOOK_S, self._rests_until) - now if wanted or self.marks else inf

    def close(self) -> None:
        """Set every value back."""
        for uid in list(self.marks):
            self._try(uid, self._restore, uid)

    def _mark(self, uid: str, found: FoundPod) -> None:
        if self._is_ours(found.cgroup):
            return
        mark = self.marks[uid] = self._journal.mark(found.cgroup, uid)
        self._problem = ""
        self._looked = self.clock()
        text = "a threshold is near: if the kernel must kill, it takes the pod that would be evicted next"
        about = {"pod": label(found.pod), "uid": uid, "processes": mark.raised, "denied": mark.denied}
        self.log.budget("info", text, **about)

    def _restore(self, uid: str) -> None:
        what = self._journal.restore(self.marks[uid])
        if not what.complete:
            raise MonitorError(f"{what.denied} processes denied, {what.left} found in the last look")
        del self.marks[uid]
        if what.restored:
            self.log.budget("info", "oom_score_adj is that of the pod again", uid=uid, **what._asdict())
        self.set_back(uid)

    def _try(self, uid: str, step: Callable[..., object], *given: object) -> None:
        """What fails is tried again in a second, and logged once."""
        try:
            step(*given)
        except (OSError, MonitorError) as error:
            problem = str(error)
            if isinstance(error, OSError) and error.errno in GONE:
                return  # the pod is gone: the loop will remove it
            if problem != self._problem:
                text = "oom_score_adj of a pod's processes cannot be set"
                self.log.error(text, uid=uid, problem=problem, remedy=REMEDY)
            self._problem = problem

    def _is_ours(self, cgroup: Path) -> bool:
        """The pods' source leaves out the pod of outrace; checked again, because a mark would have it killed."""
        with Process(os.getpid()) as process:
            own = process.memory_cgroup(self.node.hierarchy)
        return own is None or own.is_relative_to(cgroup)


def _first(message: State) -> list[str]:
    """The pod that the policy would evict now; none while evictions are suspended because they would not help: the
    kernel would kill a small pod first, which cannot free enough.
    """
    is_near = message.armed and message.ready and message.braked is None
    return [message.victim] if message.victim is not None and is_near else []


def _may(found: FoundPod) -> bool:
    """Not a pod known by its cgroup alone: its requests are inferred from oom_score_adj itself."""
    return found.pod.spec_known and not is_critical(found.pod)


class ProcessWatch(WatchedThread):
    """`handle` and `wake` are the loop's, and never wait. ``marks``: None where the OOM killer is not guided.
    ``doubt(uid)``: processes of this pod may say that it is not to be evicted.
    """

    def __init__(
        self,
        node: NodeState,
        figures: Figures,
        log: Log,
        doubt: Callable[[str], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        super().__init__("processes", self.turn, threading.Event(), on_failure)
        self._node, self._figures, self._log, self._doubt = node, figures, log, doubt
        config, self._capacity = node.config, node.capacity
        self._notes = ScoreNotes(Path(config.state_dir)) if config.enforce else None
        self.scores = OomScores(node.hierarchy, self._capacity, self._notes, log.budget, era(config.policy))
        self.marks = VictimMarks(node, log, self.scores.set_back) if config.enforce else None
        if self.marks is not None:
            self.scores.raised = self.marks.marks.keys()
        self._pods: Mapping[str, FoundPod] = {}  # as they were looked at last
        self._over: dict[str, dict[str, int]] = {}  # uid -> what was over the budget at the last look
        self._budget_due: float | None = None  # when to look for that; None while no record came
        self._doubted = ("", -DOUBT_S)  # a pod's uid, and when
        self._feed: ProcessFeed | None = None
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.wake = partial(os.eventfd_write, self._wake_fd, 1)
        self._poll = select.poll()
        self._poll.register(self._wake_fd, select.POLLIN)

    def open(self) -> None:
        """Have new processes reported, before the first pod is looked at."""
        from monitor.actions import procfeed

        try:
            self._feed = procfeed.open_feed(self._figures.pins, self.scores)
        except MonitorError as error:
            self._log.warning("new processes in pods are only seen when a pod changes", problem=str(error))
        else:
            self._poll.register(self._feed.fileno(), select.POLLIN)

    # the loop's

    def handle(self, message: Message) -> None:
        is_due = self.marks is not None and self.marks.take(message)
        if isinstance(message, OomEvent):
            is_due = self._budget_due is None
            self._records_came()
        elif isinstance(message, State):
            is_due = is_due or self._node.capacity != self._capacity
            before, at = self._doubted
            for uid in _first(message):
                if time.monotonic() >= at + (DOUBT_S if uid == before else NEXT_DOUBT_S):
                    self._doubted = uid, time.monotonic()
                    self._doubt(uid)
        if is_due:
            self.wake()

    def close(self, timeout_s: float) -> None:
        """Set every value back. What cannot be in that time is noted, for the next start."""
        self.closing.set()
        self.wake()
        if self.is_alive():
            self.join(timeout_s)

    # the thread's

    def run(self) -> None:
        hurry()  # a new process may be chosen by the OOM killer before it has its value
        super().run()

    def turn(self) -> float:
        """Do what is due; seconds until more is. The marks first: one that stayed 0.3 s too long cost a pod."""
        if self.marks is not None:
            self.marks.turn()
        self._follow_pods()
        self._guarded(self.scores.settle)
        if self._budget_due is not None and time.monotonic() >= self._budget_due:
            self._check_budgets()
        marks_s = self.marks.turn() if self.marks is not None else inf
        due = self._budget_due
        return max(0.0, min(marks_s, self.scores.due_s(), inf if due is None else due - time.monotonic()))

    def rest(self, rest_s: float | None, took_s: float) -> None:
        """Until something is due, a process appeared, or `wake`."""
        ready = {fd for fd, _ in self._poll.poll(None if rest_s in (None, inf) else 1000 * rest_s)}
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        if self._feed is not None and self._feed.fileno() in ready:
            self._records_came()
            self._guarded(self._feed.consume)

    def at_end(self) -> None:
        if self.marks is not None:
            self.marks.close()
        if self._notes is not None:
            self._notes.close()

    def _follow_pods(self) -> None:
        """Look at the processes of the pods that changed, and of all where the node has another capacity."""
        node, before = self._node, self._pods
        self._pods = pods = node.pods
        for uid in before.keys() - pods.keys():
            self.scores.remove_pod(uid)
        for uid, found in pods.items():
            if before.get(uid) is not found:
                self._guarded(partial(self.scores.set_pod, found))
        if node.capacity != self._capacity:
            self._capacity = node.capacity
            # A kubelet makes oom_score_adj of the machine's whole memory, also where huge pages are apart.
            apart = node.config.huge_pages_apart
            self._guarded(partial(self.scores.set_capacity, meminfo.mem_total() if apart else self._capacity))

    def _records_came(self) -> None:
        """Of processes or kills: more may have been withheld."""
        if self._budget_due is None:
            self._budget_due = time.monotonic() + BUDGET_S

    def _check_budgets(self) -> None:
        self._budget_due, before, self._over = None, self._over, {}
        for uid, found in self._node.pods.items():
            counted, old = self._figures.over(found), before.get(uid, {})
            if any(counted.values()):
                self._over[uid] = counted
            fresh = {what: n - old.get(what, 0) for what, n in counted.items() if n > old.get(what, 0)}
            if "processes" in fresh:
                self.scores.look_soon(uid)
            if fresh:
                self._records_came()
                text = "a pod causes more events than are looked at one by one"
                self._log.budget("warning", text, pod=label(found.pod), uid=uid, **fresh)

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except MonitorError as error:
            self._log.error(str(error))
