"""The processes of the pods: those that appear, and what oom_score_adj each has.

`VictimMarks` guides the kernel's OOM killer: near a threshold every process of the pod that the policy would evict next
has oom_score_adj 1000, so that a race that is lost costs the pod that the policy would have evicted.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.actions.oom_values import Mark, MarkJournal, ScoreNotes
from monitor.actions.oomadj import REMEDY, OomScores
from monitor.errors import MonitorError
from monitor.kernel.cgroupfs import GONE
from monitor.kernel.procfs import Process
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
#: A turn takes so many times its own length until the next one: 5 % of a CPU, however many processes a pod has and
#: however often another pod is first.
_REST = 20
#: Pods being evicted that keep their mark; one is evicted in a pass.
_MOST_LEAVING = 32
#: Two pods may take the first place from each other four times a second: of each it is logged this often.
_LOG_S = 10.0


class VictimMarks(WatchedThread):
    """`take` and `restored` are the loop's, and never wait.

    Under --mode hold and --mode enforce. A pod that is being evicted keeps its mark until it is gone. While evictions
    are suspended, because they would not help, no pod is marked. The values are set back as soon as another pod is
    first or no threshold is near (`monitor.actions.oom_values`).
    A thread of its own does it: of a pod with thousands of processes it takes a part of a second.
    """

    def __init__(
        self,
        node: NodeState,
        log: Log,
        wake_loop: Callable[[], None],
        on_failure: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("victim marks", self.turn, threading.Event(), on_failure, clock)
        self.failures = 0
        self._node, self._log, self._wake_loop = node, log, wake_loop
        self._journal = MarkJournal(Path(node.config.state_dir))
        self._wanted: dict[str, FoundPod] = {}  # replaced as a whole by the loop, read by the thread
        self._leaving: deque[str] = deque(maxlen=_MOST_LEAVING)
        self._asked: set[str] = set()  # wanted, or not restored yet
        self._marks: dict[str, Mark] = {}  # the thread's, as are the next three
        self._logged: dict[str, float] = {}
        self._looked = 0.0
        self._problem = ""
        self._restored: deque[str] = deque()
        self._hurry = threading.Event()  # ends a rest

    @property
    def marked(self) -> Mapping[str, int]:
        """Uid of each marked pod -> how many of its processes are raised."""
        return {uid: mark.raised for uid, mark in list(self._marks.items())}

    # the loop's

    def take(self, message: State | Decision | Gone | Suspended) -> frozenset[str]:
        """A message of the hot process; gives the uids whose values are not their own until they are in `restored`."""
        if isinstance(message, Decision):
            if not message.observed and message.pod in self._wanted:
                self._leaving.append(message.pod)
        elif isinstance(message, Gone):
            if message.pod in self._leaving:
                self._leaving.remove(message.pod)
        else:
            first = [] if isinstance(message, Suspended) else _first(message)
            found = {uid: self._node.pods.get(uid) for uid in (*self._leaving, *first)}
            wanted = {uid: pod for uid, pod in found.items() if pod is not None and _may(pod)}
            if wanted.keys() != self._wanted.keys():
                self._asked |= wanted.keys()
                self._wanted = wanted
                self.wake()
            if isinstance(message, Suspended):
                # End the pause after a turn: on a busy machine a mark that stayed for 0.3 s cost a pod, and
                # nothing was gained.
                self._hurry.set()
        return frozenset(self._asked)

    def restored(self) -> list[str]:
        """The pods whose processes have their own values again since the last call."""
        found = []
        while self._restored:
            uid = self._restored.popleft()
            if uid not in self._wanted:
                self._asked.discard(uid)
                found.append(uid)
        return found

    def close(self, timeout_s: float = 2.0) -> None:
        """Set every value back. What cannot be in that time is in the journal, for the next start."""
        self.closing.set()
        self.wake()
        self._hurry.set()
        if self.is_alive():
            self.join(timeout_s)

    # the thread's

    def rest(self, rest_s: float | None, took_s: float) -> None:
        self._hurry.wait(_REST * took_s)
        super().rest(rest_s, took_s)
        self._hurry.clear()

    def at_end(self) -> None:
        for uid in list(self._marks):
            self._restore(uid)

    def turn(self) -> float | None:
        """Do what is wanted; returns after how many seconds to run again without being woken (None: not)."""
        wanted = self._wanted
        failures = self.failures
        for uid, found in wanted.items():  # first: one pod is marked all the time
            if uid not in self._marks:
                self._try(uid, self._mark, uid, found)
        for uid in list(self._asked - wanted.keys()):
            self._restore(uid)
        if not self._marks:
            return LOOK_S if self.failures > failures else None
        if self._clock() >= self._looked + LOOK_S:
            for uid, mark in list(self._marks.items()):
                self._try(uid, self._journal.look_again, mark)
            self._looked = self._clock()
        return max(0.0, self._looked + LOOK_S - self._clock())

    def _mark(self, uid: str, found: FoundPod) -> None:
        if self._is_ours(found.cgroup):
            return
        mark = self._marks[uid] = self._journal.mark(found.cgroup, uid)
        self._problem = ""
        self._looked = self._clock()
        if self._clock() >= self._logged.get(uid, 0.0) + _LOG_S:
            self._logged = {key: at for key, at in self._logged.items() if key in self._marks} | {uid: self._clock()}
            self._log.info(
                "a threshold is near: if the kernel must kill, it takes the pod that would be evicted next",
                pod=label(found.pod),
                uid=uid,
                processes=mark.raised,
                denied=mark.denied,
            )

    def _restore(self, uid: str) -> None:
        mark = self._marks.get(uid)
        if mark is not None:
            try:
                what = self._journal.restore(mark)
            except (OSError, MonitorError) as error:
                self._failed(uid, str(error))
                return
            if not what.complete:
                self._failed(uid, f"{what.denied} processes denied, {what.left} found in the last look")
                return
            del self._marks[uid]
            if what.restored:
                self._log.info("oom_score_adj is that of the pod again", uid=uid, **what._asdict())
        self._restored.append(uid)
        self._wake_loop()

    def _try(self, uid: str, step: Callable[..., object], *given: object) -> None:
        try:
            step(*given)
        except (OSError, MonitorError) as error:
            if isinstance(error, OSError) and error.errno in GONE:
                return  # the pod is gone: the loop will remove it
            self._failed(uid, str(error))

    def _failed(self, uid: str, problem: str) -> None:
        """Try again in a second, and log it once."""
        self.failures += 1
        if problem != self._problem:
            self._log.error("oom_score_adj of a pod's processes cannot be set", uid=uid, problem=problem, remedy=REMEDY)
        self._problem = problem

    def _is_ours(self, cgroup: Path) -> bool:
        """The pods' source leaves out the pod of outrace; checked again, because a mark would have it killed."""
        with Process(os.getpid()) as process:
            own = process.memory_cgroup(self._node.hierarchy)
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


# Pods that cause more records than the programs' budget allows (bpf/memcg.h: afford()). The programs only count what
# is beyond the budget, per watched cgroup. While a pod has such processes, the helper looks for them here, and a line
# of the log names the pod and how many records of each kind were withheld.
#: How often the pods are looked at once records came.
LOOK_NS = 1_000_000_000


@dataclass
class OverBudget:
    """``look_for(uid)``: the pod has processes without a record. The log budget is flushed here, too."""

    node: NodeState
    figures: Figures
    log: Log
    look_for: Callable[[str], None]
    clock: Callable[[], int] = time.monotonic_ns

    def __post_init__(self) -> None:
        self._due_ns: int | None = None
        self._seen: dict[str, dict[str, int]] = {}  # uid -> what was over the budget at the last look

    def records_came(self) -> None:
        """Records of processes or kills came: more may have been withheld."""
        if self._due_ns is None:
            self._due_ns = self.clock() + LOOK_NS

    def due_ns(self) -> int | None:
        """When `turn` has something to do (CLOCK_MONOTONIC); None while there is nothing."""
        dues = self._due_ns, self.log.budget.due_ns()
        return min((due for due in dues if due is not None), default=None)

    def turn(self) -> None:
        now = self.clock()
        self.log.budget.flush()
        if self._due_ns is not None and now >= self._due_ns:
            self._check_pods(now)

    def _check_pods(self, now: int) -> None:
        self._due_ns, before, self._seen = None, self._seen, {}
        for uid, found in self.node.pods.items():
            counted, old = self.figures.over(found), before.get(uid, {})
            if any(counted.values()):
                self._seen[uid] = counted
            fresh = {what: n - old.get(what, 0) for what, n in counted.items() if n > old.get(what, 0)}
            if "processes" in fresh:
                self.look_for(uid)
            if fresh:
                self._due_ns = now + LOOK_NS
                text = "a pod causes more events than are looked at one by one"
                self.log.budget("warning", text, pod=label(found.pod), uid=uid, **fresh)


#: Near a threshold the processes of the first pod are looked at this often; of one that became first, a second after
#: the one before: a package manager may have begun in it.
DOUBT_S, NEXT_DOUBT_S = 5.0, 1.0
#: Messages that say which pod the policy would evict next.
_OfMarks = State | Decision | Gone | Suspended


@dataclass(eq=False)
class ProcessWatch:
    """What the helper's loop does about processes. ``marks``: None where the OOM killer is not guided."""

    node: NodeState
    figures: Figures
    log: Log
    wake: Callable[[], None]
    doubt: Callable[[str], None]
    failed: Callable[[Exception], None]

    def __post_init__(self) -> None:
        node, log, config = self.node, self.log, self.node.config
        self._notes = ScoreNotes(Path(config.state_dir)) if config.enforce else None
        about = node.hierarchy, node.capacity, self._notes, log.budget, era(config.policy)
        self.scores = OomScores(*about)
        self.marks = VictimMarks(node, log, self.wake, self.failed) if config.enforce else None
        if self.marks is not None:
            self.marks.start()
        self.over = OverBudget(node, self.figures, log, self.scores.look_soon)
        self._feed: ProcessFeed | None = None
        self._doubted = ("", -DOUBT_S)  # a pod's uid, and when

    def open(self) -> None:
        from monitor.actions import procfeed

        try:
            self._feed = procfeed.open_feed(self.figures.pins, self.scores)
        except MonitorError as error:
            self.log.warning("new processes in pods are only seen when a pod changes", problem=str(error))

    def fileno(self) -> int | None:
        """Readable when processes appeared; None where the kernel does not report them."""
        return None if self._feed is None else self._feed.fileno()

    def consume(self) -> None:
        """Read what was reported. Raises MonitorError."""
        assert self._feed is not None
        self.over.records_came()
        self._feed.consume()

    def handle(self, message: Message) -> None:
        if isinstance(message, State):
            self._doubt(message)
        if isinstance(message, OomEvent):
            self.over.records_came()
        elif self.marks is not None and isinstance(message, _OfMarks) and not getattr(message, "resumed", ""):
            self.scores.raised = self.marks.take(message)

    def _doubt(self, message: State) -> None:
        before, at = self._doubted
        for uid in _first(message):
            if time.monotonic() >= at + (DOUBT_S if uid == before else NEXT_DOUBT_S):
                self._doubted = uid, time.monotonic()
                self.doubt(uid)

    def settle(self) -> None:
        """Look at the processes that are due. Raises MonitorError."""
        for uid in self.marks.restored() if self.marks is not None else ():
            self.scores.set_back(uid)
        self.scores.settle()

    def due_ns(self) -> int | None:
        """Nanoseconds until `settle` or `over` has something to do; None if nothing waits."""
        over_ns = self.over.due_ns()
        waits = [self.scores.due_ns(), None if over_ns is None else max(0, over_ns - time.monotonic_ns())]
        return min((wait for wait in waits if wait is not None), default=None)

    def close(self, timeout_s: float) -> None:
        if self.marks is not None:
            self.marks.close(timeout_s)
        if self._notes is not None:
            self._notes.close(timeout_s)
