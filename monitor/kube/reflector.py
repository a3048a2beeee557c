"""List, then watch, for ever: a `Reflector` keeps what the API server has, as client-go's does.

reflector = Reflector(ListWatch(client, PODS, field_selector=...), decode, handler, stop)
Thread(target=reflector.run).start()
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from monitor.errors import MonitorError
from monitor.kube.backoff import BackOff
from monitor.kube.client import SILENCE_S, WATCH_S, ApiClient, Listed
from monitor.kube.decode import Object
from monitor.kube.errors import ApiError, Cancelled, ResourceExpired, ServerError, TooManyRequests, TransportError
from monitor.kube.resources import Resource
from monitor.kube.watch import BOOKMARK, DELETED, WatchEvent

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

#: A watch that ends sooner, without an event, is followed by a pause, as in client-go.
_SHORT_S = 1.0


@dataclass(frozen=True)
class ListWatch:
    """Which objects. A watch is asked for ``watch_s`` to twice as long, by ``chance`` as client-go does: those of 5,000
    nodes would stay in step for ever after the API server was restarted.
    """

    client: ApiClient
    resource: Resource
    field_selector: str = ""
    watch_s: float = WATCH_S
    silence_s: float = SILENCE_S
    chance: Callable[[], float] = random.random

    def list(self, decode: Callable[[Object], T | None], resource_version: str) -> Listed[T]:
        return self.client.list(
            self.resource,
            decode,
            field_selector=self.field_selector,
            resource_version=resource_version,
        )

    def watch(self, resource_version: str) -> AbstractContextManager[Iterator[WatchEvent]]:
        return self.client.watch(
            self.resource,
            resource_version,
            field_selector=self.field_selector,
            watch_s=self.watch_s * (1 + self.chance()),
            silence_s=self.silence_s,
        )


class Handler(Protocol[T_contra]):
    """Hears of changes, in the reflector's thread. Objects are known by uid: a pod that was made anew under its old
    name is another one.
    """

    def replaced(self, objects: Mapping[str, T_contra]) -> None:
        """All there are, by uid: after every list. What is missing was deleted, and nobody saw when."""

    def changed(self, uid: str, known: T_contra) -> None:
        """Added or modified."""

    def deleted(self, uid: str, last: T_contra) -> None:
        """As it was last."""

    def failed(self, error: MonitorError, pause_s: float) -> None:
        """The next try is in ``pause_s`` seconds; what is known stays."""

    def connected(self) -> None:
        """A list or watch has been answered: what is known is up to date."""


class Reflector(Generic[T]):
    """Lists and watches until ``stop``. What ``decode`` makes of an object is kept; nothing where that is None.

    The first list takes what the API server has in its cache (resourceVersion "0"), a later one nothing older than what
    was seen already. ``decode`` gets whatever a server sent: it must not raise.
    """

    def __init__(
        self,
        list_watch: ListWatch,
        decode: Callable[[Object], T | None],
        handler: Handler[T],
        stop: threading.Event,
        back_off: BackOff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._list_watch = list_watch
        self._decode = decode
        self._handler = handler
        self._stop = stop
        self._back_off = back_off or BackOff()
        self._clock = clock
        self._version = ""  # of the last event or list; "" until the first list
        self._any_version = False  # a list of that version or newer cannot be had: take what there is
        self._watchable = False
        self.objects: dict[str, T] = {}
        self.lists = self.watches = 0  # how many were answered

    @property
    def synced(self) -> bool:
        """Whether there was a complete list."""
        return self.lists > 0

    def run(self) -> None:
        """Until ``stop`` is set. Whatever a server says is tried again; programming errors get out."""
        while not self._stop.is_set():
            try:
                if self._watchable:
                    self._watch()
                else:
                    self._list()
            except Cancelled:
                return
            except MonitorError as error:
                self._failed(error)

    def _list(self) -> None:
        version = "" if self._any_version else self._version or "0"
        listed = self._list_watch.list(self._keyed, version)
        self.objects = dict(listed.items)
        self._version, self._any_version, self._watchable = listed.resource_version, False, True
        self.lists += 1
        self._handler.replaced(self.objects)
        self._handler.connected()

    def _watch(self) -> None:
        began, count = self._clock(), 0
        with self._list_watch.watch(self._version) as events:
            self.watches += 1
            self._handler.connected()
            for event in events:
                count += 1
                self._take(event)
                self._version = event.resource_version  # after it was taken: what failed comes again
                self._back_off.reset()
        if not count and self._clock() - began < _SHORT_S:
            self._stop.wait(self._back_off.next_s())

    def _take(self, event: WatchEvent) -> None:
        if event.kind == BOOKMARK:
            return
        keyed = self._keyed(event.object)
        if event.kind == DELETED or keyed is None:
            uid = _uid(event.object)
            known = self.objects.pop(uid, None)
            if known is not None:
                self._handler.deleted(uid, known if keyed is None else keyed[1])
            return
        uid, known = keyed
        self.objects[uid] = known
        self._handler.changed(uid, known)

    def _keyed(self, found: Object) -> tuple[str, T] | None:
        uid = _uid(found)
        known = self._decode(found) if uid else None
        return None if known is None else (uid, known)

    def _failed(self, error: MonitorError) -> None:
        at_list = not self._watchable
        # A watch goes on from its version after what passes by itself. After all else, and where the server does not
        # have that version any more, what happened since is lost to a watch.
        if not isinstance(error, TransportError | TooManyRequests | ServerError):
            self._watchable = False
        if isinstance(error, ApiError):
            self._any_version |= at_list and isinstance(error, ResourceExpired)
            # Of a server that is behind, or whose etcd was restored.
            self._any_version |= error.has_cause("ResourceVersionTooLarge")
        pause_s = self._back_off.next_s(error.retry_after_s if isinstance(error, ApiError) else None)
        self._handler.failed(error, pause_s)
        self._stop.wait(pause_s)


def _uid(found: Object) -> str:
    metadata = found.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    return uid if isinstance(uid, str) else ""
