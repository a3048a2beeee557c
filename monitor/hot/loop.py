"""The turn of the hot process: sleep until a descriptor or a timer, call the handlers of the descriptors, run what is
due. A handler in which a system call fails ends; the turn does not (`Guard`). Times are nanoseconds of
CLOCK_MONOTONIC.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from monitor.kernel import timer
from monitor.kernel.troubles import TROUBLES, Trouble
from monitor.link.counters import SharedStats

#: Called with the descriptor that is ready, or with the time of the turn.
Handler = Callable[[int], object]
#: A name for the reader; when it is due, None while it is not; and what runs then.
Timer = tuple[str, Callable[[], int | None], Handler]
#: One failure is reported again no sooner than this, with how often there was one.
REPEAT_NS = 10_000_000_000
#: Failures remembered as reported.
_MOST = 256
#: After a turn in which a step failed the next one begins no sooner than this, doubled with each such turn in a row up
#: to `_MOST_REST_NS`: a descriptor that stays ready because reading it fails must not take a whole CPU at real-time
#: priority. (A failure for one pod is noted where it happens and delays no other.)
_REST_NS, _MOST_REST_NS = 100_000, 5_000_000

P = ParamSpec("P")
T = TypeVar("T")


class Guard:
    """Keeps the loop going when a system call fails: the step that made it ends, the loop does not.

    Call it with a step of the loop; it gives what the step gave, None where a system call in it failed.
    """

    def __init__(self, stats: SharedStats) -> None:
        self._stats = stats
        self._failed = False
        self._rest_ns = 0
        self._reported: dict[tuple[str, int, str], tuple[int, int]] = {}  # -> reported when, and how often since

    def __call__(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return step(*args, **kwargs)
        except OSError as error:
            TROUBLES.note("loop", error)
            self._failed = True
            return None

    def turn(self) -> None:
        """A turn of the loop begins: after one that failed, a moment later."""
        if not self._failed:
            self._rest_ns = 0
            return
        self._failed = False
        self._rest_ns = min(_MOST_REST_NS, max(_REST_NS, 2 * self._rest_ns))
        time.sleep(self._rest_ns / 1e9)

    def to_report(self, now_ns: int) -> list[Trouble]:
        """Count what failed; what of it is to be reported now."""
        out = []
        for trouble in TROUBLES.take():
            self._stats.add(f"errors_{trouble.call}", trouble.times)
            key = (trouble.call, trouble.number, trouble.whose)
            reported_ns, times = self._reported.pop(key, (-REPEAT_NS, 0))
            times += trouble.times
            if now_ns - reported_ns >= REPEAT_NS:
                out.append(trouble._replace(times=times))
                reported_ns, times = now_ns, 0
            self._reported[key] = (reported_ns, times)
        while len(self._reported) > _MOST:
            del self._reported[next(iter(self._reported))]
        return out


class Loop:
    """One raw epoll, a table descriptor -> handler, and a table of timers.

    Closing a descriptor takes it out of the epoll; its row stays until the number is registered again, and is never
    used before that. The loop asks the owner of a timer for its due time; the table keeps none, so none can be stale.
    """

    def __init__(self, guard: Guard, stats: SharedStats) -> None:
        self._guard = guard
        self._stats = stats
        self._epoll = select.epoll()
        self.modify = self._epoll.modify
        self._timer = timer.Timer()
        self._epoll.register(self._timer.fileno(), self._timer.events)
        self._handlers: dict[int, Handler] = {}
        self._timers: tuple[tuple[Callable[[], int | None], Handler], ...] = ()
        self.is_stopping = False  # True from some moment on: set by the handler of a signal, which may run at any time

    def register(self, fd: int, handler: Handler, eventmask: int = select.EPOLLIN) -> None:
        """Raises OSError: ENOSPC where max_user_watches is reached."""
        self._epoll.register(fd, eventmask)
        self._handlers[fd] = handler

    def unregister(self, fd: int) -> None:
        self._handlers.pop(fd, None)
        self._epoll.unregister(fd)

    def set_timers(self, timers: Iterable[Timer]) -> None:
        """In the order in which they run where several are due."""
        self._timers = tuple((due, handler) for _, due, handler in timers)

    def turn(self) -> None:
        """Wait for a descriptor or the next timer, and do what that asks for."""
        guard = self._guard
        guard.turn()
        guard(self._dispatch)
        now = time.monotonic_ns()
        self._stats.add("loops")
        self.run_due(now)

    def next_ns(self) -> int | None:
        """The earliest due time; None: nothing is due before something happens."""
        earliest = None
        for due, _ in self._timers:
            at = due()
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        return earliest

    def run_due(self, now_ns: int) -> None:
        """Call the handler of each timer that is due by ``now_ns``, also where an earlier handler made it so."""
        for due, handler in self._timers:
            at = due()
            if at is not None and at <= now_ns:
                self._guard(handler, now_ns)

    def wait(self, due_ns: int | None) -> Iterator[int]:
        """The descriptors that are ready, as soon as there are any, or none at ``due_ns`` (CLOCK_MONOTONIC); to the
        microsecond where that is short.
        """
        timeout_s = -1.0
        if due_ns is not None:
            left = due_ns - time.monotonic_ns()
            if 0 < left < timer.SHORT_NS:
                self._timer.set(left)
            timeout_s = max(0.0, left / 1e9)
        for fd, _ in self._epoll.poll(timeout_s):
            if fd == self._timer.fileno():
                self._timer.acknowledge()
            else:
                yield fd

    def _dispatch(self) -> None:
        handlers, guard = self._handlers, self._guard
        for fd in self.wait(self.next_ns()):
            handler = handlers.get(fd)
            if handler is not None:
                guard(handler, fd)
