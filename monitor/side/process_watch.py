"""The processes of the pods: those that appear, and what oom_score_adj each has."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.actions.oom_marks import MarkJournal
from monitor.actions.oomadj import OomScores
from monitor.actions.qos_notes import ScoreNotes
from monitor.errors import MonitorError
from monitor.link import messages
from monitor.policy.releases import era
from monitor.side.over_budget import OverBudget
from monitor.side.victim_marks import VictimMarks
from monitor.side.view import View

if TYPE_CHECKING:
    from monitor.actions.procfeed import ProcessFeed


#: What says whom the policy would take.
_OF_MARKS = messages.State | messages.Decision | messages.Evicted | messages.Braked


class ProcessWatch:
    """What the side's loop does about processes. ``marks``: None where the OOM killer is not guided."""

    def __init__(self, view: View) -> None:
        config = view.config
        self._view = view
        self._notes = ScoreNotes(Path(config.state_dir)) if config.enforce else None
        self.scores = OomScores(view.hierarchy, view.capacity, self._notes, view.log_budget, era(config.policy))
        self.over = OverBudget(view, self.scores.look_around)
        self.marks: VictimMarks | None = None
        if config.enforce:
            journal = MarkJournal(Path(config.state_dir))
            self.marks = VictimMarks(journal, view.hierarchy, lambda uid: view.pods.get(uid), view.log, view.wake_side)
            self.scores.on_raised = self.marks.appeared
            self.marks.start()
        self._feed: ProcessFeed | None = None

    def open(self) -> None:
        """Have every new process reported."""
        from monitor.actions import procfeed

        try:
            self._feed = procfeed.open_feed(self._view.pins, self.scores, self._view.log)
        except MonitorError as error:
            self._view.log.warning("new processes in pods are only seen when a pod changes", problem=str(error))

    def fileno(self) -> int | None:
        """Readable when processes appeared; None where nobody reports them."""
        return None if self._feed is None else self._feed.fileno()

    def consume(self) -> None:
        """Take in what was reported. Raises MonitorError."""
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
