"""`outrace evicted run`: whoever has the lease sweeps, again and again; the others wait for it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from monitor.errors import MonitorError
from monitor.evicted.election import LeaderElector
from monitor.evicted.selection import Criteria, choose
from monitor.evicted.sweep import OUTCOMES, Progress, Sweep
from monitor.kube.errors import Cancelled

#: A sweep that failed is done again after so many seconds, or after the interval where that is shorter.
_AGAIN_S = 60.0
#: A leader whose sweep makes no progress for so long is stuck: a request has 60 s, and is tried again for 60 s more.
STUCK_S = 600.0
#: As long as client-go's HealthzAdaptor tolerates a lease that should have ended, seconds.
_TOLERATED_S = 20.0


@dataclass
class Counters:
    """Since the process began."""

    outcomes: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(OUTCOMES, 0)))
    sweeps: Counter[str] = field(default_factory=lambda: Counter({"ok": 0, "failed": 0, "ended": 0}))
    found: int = 0  # evicted pods, by the last sweep
    chosen: int = 0  # of those, to be deleted
    others: int = 0  # pods that are Failed for other reasons
    swept_at: float = 0.0  # unix seconds of the last sweep that got through


class Controller:
    """``make_sweep(over, may_go_on)`` makes one sweep of a term; ``over`` ends its requests."""

    def __init__(
        self,
        elector: LeaderElector,
        make_sweep: Callable[[threading.Event, Callable[[], bool]], Sweep],
        criteria: Criteria,
        interval_s: float,
        stop: threading.Event,
        *,
        log_line: Callable[[str], None] = lambda _: None,
        failed: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        self.elector = elector
        self._make_sweep = make_sweep
        self._criteria = criteria
        self.interval_s = interval_s
        self._stop = stop
        self._log_line = log_line
        self._failed = failed
        self._clock = clock
        self._now = now
        self._wait = wait
        self.counters = Counters()
        self._moved_at: float | None = None  # when the sweep under way last did something
        self._defect: BaseException | None = None

    def run(self) -> None:
        """Until ``stop``. The lease is released when nothing is done under it any more. Raises what a term raised."""
        while not self._stop.is_set() and self.elector.acquire():
            over = threading.Event()
            term = threading.Thread(target=self._term, args=(over,), name="sweep")
            term.start()
            try:
                self.elector.renew()
            finally:
                over.set()
                term.join()
            if self._stop.is_set():
                self.elector.release()
            self.elector.forget()
        if self._defect is not None:
            raise self._defect

    def problem(self) -> str:
        """Why the process ought to be started anew; "" if it does what it should."""
        if self.elector.overdue_s() > _TOLERATED_S:
            return "the leader election does not turn"
        moved_at = self._moved_at
        if moved_at is not None and self._clock() - moved_at > STUCK_S:
            return f"the sweep did nothing for {STUCK_S:g} s"
        return ""

    def _term(self, over: threading.Event) -> None:
        try:
            while not over.is_set():
                done = self._sweep(over)
                self._moved_at = None
                self._wait(over, self.interval_s if done else min(_AGAIN_S, self.interval_s))
        except BaseException as error:  # noqa: BLE001 - a defect must not leave a leader that does nothing
            self._defect = error
            self._stop.set()
        finally:
            self._moved_at = None

    def _sweep(self, over: threading.Event) -> bool:
        """One sweep; whether it got through."""
        counters = self.counters
        self._moved_at = self._clock()
        before: Counter[str] = Counter()

        def on_progress(progress: Progress) -> None:
            nonlocal before
            counters.outcomes.update(progress.outcomes - before)
            before = progress.outcomes.copy()
            self._moved_at = self._clock()

        sweep = self._make_sweep(over, lambda: not over.is_set() and self.elector.may_act())
        try:
            found = sweep.find()
            self._moved_at = self._clock()
            choices = choose(found.pods, self._criteria, self._now())
            going = [choice.pod for choice in choices if choice.goes]
            counters.found, counters.chosen, counters.others = len(found.pods), len(going), found.others.total()
            progress = sweep.delete(going, on_progress)
        except Cancelled:
            counters.sweeps["ended"] += 1
            if before:
                self._log_line(
                    f"ended after {before.total()} pods: the lease is not held any more, or the process ends"
                )
            return False
        except MonitorError as error:
            counters.sweeps["failed"] += 1
            self._failed(f"the sweep failed after {before.total()} pods: {error}")
            return False
        finally:
            sweep.close()
        for problem in progress.problems:
            self._failed(problem)
        if progress.total:
            self._log_line(f"{progress} ({len(found.pods)} evicted pods found)")
        counters.sweeps["failed" if progress.outcomes["failed"] else "ok"] += 1
        counters.swept_at = self._now()
        return not progress.outcomes["failed"]
