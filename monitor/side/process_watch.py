"""The processes of the pods: those that appear, and what oom_score_adj each has."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.actions.oom_marks import MarkJournal
from monitor.actions.oomadj import OomScores
from monitor.actions.qos_notes import ScoreNotes
from monitor.errors import MonitorError
from monitor.link import messages
from monitor.pods.model import FoundPod
from monitor.policy.releases import era
from monitor.side.victim_marks import VictimMarks
from monitor.side.view import View, label

if TYPE_CHECKING:
    from monitor.actions.procfeed import ProcessFeed

# Pods that cause more records than the programs' budget allows (bpf/memcg.h: afford()). The programs only count what
# is beyond the budget, per watched cgroup. While a pod has such processes, the helper looks for them here, and one line
# in ten seconds names the pod and how many records of each kind were withheld.
#: How often the pods are looked at once records came, and how often one of them is logged.
LOOK_NS, LOG_INTERVAL_NS = 1_000_000_000, 10_000_000_000


def over(view: View, found: FoundPod) -> dict[str, int]:
    """What a pod's processes caused beyond the budgets so far, by kind (`monitor.kernel.domains.OVER`)."""
    total: dict[str, int] = {}
    if view.table is not None:
        for cgroup_id in found.cgroup_ids:
            for what, n in view.table.over(cgroup_id).items():
                total[what] = total.get(what, 0) + n
    return total


@dataclass
class OverBudget:
    """``look_for(uid)``: the pod has processes without a record. The view's log budget is flushed here, too."""

    view: View
    look_for: Callable[[str], None]
    clock: Callable[[], int] = time.monotonic_ns

    def __post_init__(self) -> None:
        self._due_ns: int | None = None
        self._seen: dict[str, dict[str, int]] = {}  # uid -> what was over the budget at the last look
        self._reported: dict[
            str, tuple[int, dict[str, int]]
        ] = {}  # uid -> when it was last logged, and what it had then

    def records_came(self) -> None:
        """Records of processes or kills came: more may have been withheld."""
        if self._due_ns is None:
            self._due_ns = self.clock() + LOOK_NS

    def due_ns(self) -> int | None:
        """When `turn` has something to do (CLOCK_MONOTONIC); None while there is nothing."""
        dues = self._due_ns, self.view.log_budget.due_ns(), self.view.holds.due_ns()
        return min((due for due in dues if due is not None), default=None)

    def turn(self) -> None:
        """Look, if it is time, at every pod (a millisecond for 110 of them); log how many lines were left out."""
        now, lines_ns = self.clock(), self.view.log_budget.due_ns()
        if lines_ns is not None and now >= lines_ns:
            self.view.log_budget.flush()
        holds_ns = self.view.holds.due_ns()
        if holds_ns is not None and now >= holds_ns:
            self.view.holds.flush()
        if self._due_ns is not None and now >= self._due_ns:
            self._check_pods(now)

    def flush(self) -> None:
        """Log what was left out until now: the daemon ends."""
        self.view.log_budget.flush(at_once=True)
        self.view.holds.flush(at_once=True)

    def _check_pods(self, now: int) -> None:
        self._due_ns, before, self._seen = None, self._seen, {}
        for uid, found in self.view.pods.items():
            counted = over(self.view, found)
            if not any(counted.values()):
                continue
            self._seen[uid] = counted
            old = before.get(uid, {})
            if counted.get("processes", 0) > old.get("processes", 0):
                self.look_for(uid)
            if counted != old:
                self._due_ns = now + LOOK_NS
            if not self._report(uid, found, counted, now):
                self._due_ns = now + LOOK_NS  # later
        for uid in self._reported.keys() - self._seen.keys():
            del self._reported[uid]

    def _report(self, uid: str, found: FoundPod, counted: dict[str, int], now_ns: int) -> bool:
        """Log new counts, at most once in `LOG_INTERVAL_NS`. Returns whether everything is logged."""
        since_ns, before = self._reported.get(uid, (None, {}))
        fresh = {what: n - before.get(what, 0) for what, n in counted.items() if n > before.get(what, 0)}
        if not fresh:
            self._reported[uid] = (since_ns or now_ns, counted)  # they begin anew where its cgroup was made anew
            return True
        if since_ns is not None and now_ns - since_ns < LOG_INTERVAL_NS:
            return False
        self._reported[uid] = (now_ns, counted)
        self.view.log(
            "warning", "a pod causes more events than are looked at one by one", pod=label(found.pod), uid=uid, **fresh
        )
        return True


#: Messages that say which pod the policy would evict next.
_OF_MARKS = messages.State | messages.Decision | messages.Evicted | messages.Braked


class ProcessWatch:
    """What the helper's loop does about processes. ``marks``: None where the OOM killer is not guided."""

    def __init__(self, view: View) -> None:
        config = view.config
        self._view = view
        self._notes = ScoreNotes(Path(config.state_dir)) if config.enforce else None
        about = view.hierarchy, view.capacity, self._notes, view.log_budget, era(config.policy)
        self.marks: VictimMarks | None = None
        if config.enforce:
            journal = MarkJournal(Path(config.state_dir))
            self.marks = VictimMarks(journal, view.hierarchy, lambda uid: view.pods.get(uid), view.log, view.wake_side)
            self.scores = OomScores(*about, self.marks.appeared)
            self.marks.start()
        else:
            self.scores = OomScores(*about)
        self.over = OverBudget(view, self.scores.look_around)
        self._feed: ProcessFeed | None = None

    def open(self) -> None:
        """Have every new process reported."""
        from monitor.actions import procfeed

        try:
            self._feed = procfeed.open_feed(self._view.pins, self.scores, self._view.log)
        except MonitorError as error:
            self._view.log.warning("new processes in pods are only seen when a pod changes", problem=str(error))

    def fileno(self) -> int | None:
        """Readable when processes appeared; None where the kernel does not report them."""
        return None if self._feed is None else self._feed.fileno()

    def consume(self) -> None:
        """Read what was reported. Raises MonitorError."""
        assert self._feed is not None
        self.over.records_came()
        self._feed.consume()

    def handle(self, message: messages.Message | messages.Bad | None) -> None:
        if isinstance(message, messages.Oom):
            self.over.records_came()
        elif self.marks is not None and isinstance(message, _OF_MARKS):
            self.scores.raised = self.marks.take(message)

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
