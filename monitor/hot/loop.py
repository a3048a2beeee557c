"""The turn of the hot process: sleep until a descriptor or a timer, call the handlers of the descriptors, run what is
due. A handler in which a system call fails ends; the turn does not (`monitor.hot.guard`).
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from monitor.hot.guard import Guard
from monitor.hot.sleep import Sleep
from monitor.hot.timers import Timers
from monitor.link.counters import SharedStats

#: Called with the descriptor that is ready.
Handler = Callable[[int], object]


class Listener:
    """The loop's epoll as one owner of descriptors sees it: what it registers is handed to its handler."""

    def __init__(self, epoll: select.epoll, handlers: dict[int, Handler], handler: Handler) -> None:
        self._handlers = handlers
        self._handler = handler
        self._epoll = epoll
        self.modify = epoll.modify

    def register(self, fd: int, eventmask: int = select.EPOLLIN) -> None:
        """Raises OSError: ENOSPC where max_user_watches is reached."""
        self._epoll.register(fd, eventmask)
        self._handlers[fd] = self._handler

    def unregister(self, fd: int) -> None:
        self._handlers.pop(fd, None)
        self._epoll.unregister(fd)


class Loop:
    """One raw epoll and a table descriptor -> handler.

    Closing a descriptor takes it out of the epoll; its row stays until the number is registered again, and is never
    used before that.
    """

    def __init__(self, guard: Guard, stats: SharedStats) -> None:
        self._guard = guard
        self._stats = stats
        self._epoll = select.epoll()
        self._sleep = Sleep(self._epoll)
        self._handlers: dict[int, Handler] = {}

    def listener(self, handler: Handler) -> Listener:
        """For an owner of descriptors that come and go."""
        return Listener(self._epoll, self._handlers, handler)

    def turn(self, timers: Timers) -> None:
        """Wait for a descriptor or the next timer, and do what that asks for."""
        guard = self._guard
        guard.turn()
        guard(self._dispatch, timers)
        now = time.monotonic_ns()
        self._stats.add("loops")
        timers.run_due(now, guard)

    def _dispatch(self, timers: Timers) -> None:
        handlers, guard = self._handlers, self._guard
        for fd in self._sleep.until(timers.next_ns()):
            handler = handlers.get(fd)
            if handler is not None:
                guard(handler, fd)
