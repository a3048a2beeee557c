"""The pods of a node, listed and then watched at the API server for ever, as client-go's reflector does."""

from __future__ import annotations

import random
import threading
from contextlib import closing

from monitor.errors import MonitorError
from monitor.kube.client import PODS, SILENCE_S, WATCH_S, ApiClient
from monitor.kube.decode import BOOKMARK, DELETED
from monitor.kube.errors import ApiError, Cancelled, ResourceExpired, ServerError, TooManyRequests, TransportError
from monitor.kube.retry import BackOff
from monitor.pods.feed import PodCache, PodFeed, known
from monitor.pods.model import Ends

#: A watch that ends sooner, without an event, is followed by a pause, as in client-go.
_SHORT_S = 1.0


class ApiServerFeed(PodFeed):
    """A change is here some milliseconds after the API server has it. Whatever a server says is tried again.

    The first list takes what the API server has in its cache (resourceVersion "0"), a later one nothing older than what
    was seen already. A watch has a timeout from `WATCH_S` to twice as long by chance, as in client-go: the watches of
    5,000 nodes would stay in step for ever after the API server was restarted.
    """

    def __init__(
        self,
        client: ApiClient,
        field_selector: str,
        where: str,
        cache: PodCache | None = None,
        stop: threading.Event | None = None,
        ends: Ends | None = None,
    ) -> None:
        super().__init__(where, cache, stop, ends)
        self._client = client
        self._field_selector = field_selector
        self._back_off = BackOff()
        self._silence_s = SILENCE_S
        self._version = ""  # of the last event or list; "" until the first list
        self._any_version = False  # a list of that version or newer cannot be had: take what there is
        self._watchable = False

    def _run(self) -> None:
        threading.Thread(target=self._store, name="pod cache", daemon=True).start()
        with closing(self._client):
            while not self.stop.is_set():
                try:
                    if self._watchable:
                        self._watch()
                    else:
                        self._list()
                except Cancelled:
                    return
                except MonitorError as error:
                    self._failed(error)

    def _store(self) -> None:
        while not self.stop.wait(1.0):
            self.store()

    def _list(self) -> None:
        version = "" if self._any_version else self._version or "0"
        listed = self._client.list(
            PODS, lambda found: known(self.where, found), field_selector=self._field_selector, resource_version=version
        )
        self._version, self._any_version, self._watchable = listed.resource_version, False, True
        self.replace_all({one.uid: one for one in listed.items})

    def _watch(self) -> None:
        began, count = self._clock(), 0
        with self._client.watch(
            PODS,
            self._version,
            field_selector=self._field_selector,
            watch_s=WATCH_S * (1 + random.random()),
            silence_s=self._silence_s,
        ) as events:
            self.answered()
            for event in events:
                count += 1
                one = None if event.kind == BOOKMARK else known(self.where, event.object)
                if one is not None and event.kind == DELETED:
                    self.drop(one.uid)
                elif one is not None:
                    self.put(one)
                self._version = event.resource_version  # after it was taken: what failed comes again
                self._back_off.reset()
        if not count and self._clock() - began < _SHORT_S:
            self.stop.wait(self._back_off.next_s())

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
        if not isinstance(error, ResourceExpired):  # every watch meets that some day: a list follows
            self.fail(error)
        self.stop.wait(self._back_off.next_s(error))
