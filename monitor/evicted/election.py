"""Leader election by Lease, step for step as k8s.io/client-go/tools/leaderelection does it (Kubernetes 1.36).

Times in the Lease are compared with nothing but themselves: that a lease was renewed is that it changed, and from then
on its duration is counted on a clock of our own. So clocks may be wrong by any amount; they may not run faster than
each other by more than the ratio of lease duration to renew deadline.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from monitor.errors import ConfigError, MonitorError
from monitor.evicted.lease import LeaseLock, Record, micro_time
from monitor.kube.errors import Cancelled, NotFound

#: Up to so many times the retry period passes between two tries to get the lease.
_JITTER = 1.2


@dataclass(frozen=True)
class Timing:
    """Seconds; the defaults are those of all core components (--leader-elect-...)."""

    lease_duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0

    def check(self) -> None:
        """Raises ConfigError, as NewLeaderElector does."""
        if self.lease_duration_s != int(self.lease_duration_s) or self.lease_duration_s < 1:
            raise ConfigError("--leader-elect-lease-duration: must be whole seconds, at least 1s")
        if self.retry_period_s <= 0:
            raise ConfigError("--leader-elect-retry-period: must be more than 0")
        if self.lease_duration_s <= self.renew_deadline_s:
            raise ConfigError("--leader-elect-lease-duration: must be greater than --leader-elect-renew-deadline")
        if self.renew_deadline_s <= _JITTER * self.retry_period_s:
            raise ConfigError(
                f"--leader-elect-renew-deadline: must be greater than {_JITTER} times --leader-elect-retry-period"
            )


class LeaderElector:
    """``log_line`` gets a line whenever something about the lease changes, ``failed`` what went wrong.

    Its methods are for one thread, but for `is_leader`, `may_act`, `leader` and `overdue_s`.
    """

    def __init__(
        self,
        lock: LeaseLock,
        identity: str,
        timing: Timing,
        stop: threading.Event,
        *,
        log_line: Callable[[str], None] = lambda _: None,
        failed: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        wait: Callable[[float], object] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        timing.check()
        self._lock = lock
        self.identity = identity
        self._timing = timing
        self._stop = stop
        self._log_line = log_line
        self._failed = failed
        self._clock = clock
        self._now = now
        self._wait = wait or stop.wait
        self._chance = chance
        self._seen = Record()  # the record seen or written last
        self._seen_raw: Record | None = None  # the record read last
        self._seen_at = clock()  # when it was seen to change
        self._renewed_at = clock()  # the last write that was answered
        self._reported = ""
        self._problem = ""
        self.turned_at = clock()
        self.acquired = 0  # how often the lease was had

    @property
    def is_leader(self) -> bool:
        return self._seen.holder == self.identity

    @property
    def leader(self) -> str:
        return self._seen.holder

    def may_act(self) -> bool:
        """Whether it leads, and renewed in time: a renewal that hangs ends it, though nobody was asked yet."""
        return self.is_leader and self._clock() - self._renewed_at < self._timing.renew_deadline_s

    def overdue_s(self) -> float:
        """How long ago a leader should have lost its lease, or anybody should have looked: 0 while all is well."""
        now = self._clock()
        if self.is_leader:
            return max(0.0, now - self._seen_at - self._timing.lease_duration_s)
        return max(0.0, now - self.turned_at - self._timing.lease_duration_s)

    def acquire(self) -> bool:
        """Try until the lease is ours; False when ``stop`` came first."""
        self._log_line(f"waiting for the lease {self._lock}")
        while not self._stop.is_set():
            if self.try_acquire_or_renew():
                self.acquired += 1
                self._report()
                return True
            self._report()
            self._wait(self._timing.retry_period_s * (1 + _JITTER * self._chance()))
        return False

    def renew(self) -> None:
        """Renew until ``stop``, or until it could not be renewed for the renew deadline."""
        while not self._stop.is_set():
            deadline = self._clock() + self._timing.renew_deadline_s
            while not self.try_acquire_or_renew():
                self._report()
                if self._stop.is_set():
                    return
                if self._clock() + self._timing.retry_period_s > deadline:
                    self._failed(f"lost the lease {self._lock}: not renewed for {self._timing.renew_deadline_s:g} s")
                    return
                self._wait(self._timing.retry_period_s)
            self._report()
            self._wait(self._timing.retry_period_s)

    def release(self) -> bool:
        """Give the lease up, so that another one need not wait for its end. Only when nobody acts under it any more."""
        try:
            old = self._lock.get()
            if not self.is_leader or old.holder != self.identity:
                return True
            moment = micro_time(self._now())
            self._update(Record("", 1, moment, moment, old.transitions))
        except MonitorError as error:
            self._failed(f"the lease {self._lock} was not released, and ends by itself: {error}")
            return False
        self._log_line(f"released the lease {self._lock}")
        return True

    def forget(self) -> None:
        """It does not lead any more, whoever has the lease: what was seen is looked at anew."""
        if self.is_leader:
            self._seen, self._seen_raw = Record(), None

    def try_acquire_or_renew(self) -> bool:
        """One try: tryAcquireOrRenew."""
        self.turned_at = self._clock()
        try:
            done = self._try()
        except Cancelled:
            return False
        except MonitorError as error:
            if (problem := str(error)) != self._problem:
                self._failed(problem)
            self._problem = problem
            return False
        self._problem = ""
        return done

    def _try(self) -> bool:
        moment = micro_time(self._now())
        mine = Record(self.identity, int(self._timing.lease_duration_s), moment, moment)
        if self.is_leader and self._valid() and self._lock.known:
            seen = self._seen
            try:  # as if the record seen last were still there: one request
                self._update(replace(mine, acquired=seen.acquired, transitions=seen.transitions))
                return True
            except Cancelled:
                raise
            except MonitorError:
                pass  # another one changed it, or the server does not answer: look
        try:
            old = self._lock.get()
        except NotFound:
            began = self._clock()
            self._lock.create(mine)
            self._ours(mine, began)
            return True
        if old != self._seen_raw:
            self._seen_raw = old
            self._seen, self._seen_at = old, self._clock()
        if old.holder and self._valid() and not self.is_leader:
            return False
        if self.is_leader:
            mine = replace(mine, acquired=old.acquired, transitions=old.transitions)
        else:
            mine = replace(mine, transitions=old.transitions + 1)
        self._update(mine)
        return True

    def _update(self, record: Record) -> None:
        began = self._clock()
        self._lock.update(record)
        self._ours(record, began)

    def _ours(self, record: Record, began: float) -> None:
        """It was written. What it allows us to do is counted from ``began``, before the server was asked."""
        self._seen, self._seen_at, self._renewed_at = record, self._clock(), began

    def _valid(self) -> bool:
        return self._seen_at + self._seen.duration_s > self._clock()

    def _report(self) -> None:
        if self._seen.holder == self._reported:
            return
        self._reported = self._seen.holder
        if self._reported:
            who = "this one" if self.is_leader else self._reported
            self._log_line(f"the lease {self._lock} is held by {who}")
