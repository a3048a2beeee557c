"""What finds crossings, steps and OOM kills: the programs' rings, looks at files, the kernel's log.

All of them hand the same records on (`monitor.kernel.wire`), to one consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from monitor.kernel.wire import Event, OomEvent
    from monitor.sources.watch import Watch


class Consumer(Protocol):
    """Takes the records of every source: crossings and steps, and the steps of an OOM kill."""

    def event(self, record: Event) -> None: ...

    def oom(self, event: OomEvent) -> None: ...


class Epoll(Protocol):
    """Of the hot loop."""

    def register(self, fd: int, handler: Callable[[int], object]) -> None: ...

    @property
    def modify(self) -> Callable[[int, int], None]: ...


class EventSource:
    """Finds crossings, steps or OOM kills, and hands them on as records. Methods that do nothing are for sources that
    have something to do then.
    """

    def open(self, epoll: Epoll, consumer: Consumer) -> None:
        """Have the descriptors in the epoll, and hand records on from now on."""
        self._epoll, self._consumer = epoll, consumer

    def read_events(self) -> None:
        """Read crossings and steps now."""

    def catch_up(self) -> None:
        """Read the steps before a crossing that is acted on now."""

    def watch(self, watches: Mapping[int, Watch]) -> None:
        """The domains with thresholds, by index."""

    def due_ns(self) -> int | None:
        """When `go_on` is due."""
        return None

    def go_on(self, now_ns: int) -> None:
        """Go on where the budget of a turn ended."""

    def look_after(self) -> None:
        """Once a second."""

    def pods_came(self) -> None:
        """A sweep has been over new pods."""

    def pod_went(self) -> None:
        """An eviction is over."""
