"""Where pods of a cluster come from: watched at the API server, or polled at the kubelet."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from monitor.errors import MonitorError
from monitor.kube.backoff import BackOff
from monitor.kube.errors import ApiError, Cancelled, ResourceExpired
from monitor.kube.kubelet import KubeletClient
from monitor.kube.reflector import ListWatch, Reflector
from monitor.pods.cache import PodCache
from monitor.pods.feed import Known, PodFeed, known

#: Between two looks at the kubelet's pods, where nothing asks for one sooner.
POLL_S = 10.0
#: ... and where a cgroup has appeared that no pod is known of: at most so often, and after `_REST` times what an answer
#: took, `POLL_S` at most. (500 pods are 3 MB of JSON, which the kubelet has to write.)
SOON_S = 0.25
#: A container has ended: asked for so long, `SOON_S` apart. A kubelet writes within 0.1 s of that that it evicted the
#: pod, and an incident is final 2 s after the pressure.
ENDED_S = 2.0
_REST = 10
#: ... and while the containers of a pod are not all known: their ids come with its status.
STARTING_S = 1.0
#: ... but not for longer than this: a container whose image cannot be pulled never has one.
_STARTING_MOST_S = 60.0


class ApiServerFeed(PodFeed):
    """Watched: a change is here some milliseconds after the API server has it."""

    def __init__(
        self,
        list_watch: ListWatch,
        where: str,
        cache: PodCache | None = None,
        stop: threading.Event | None = None,
        back_off: BackOff | None = None,
    ) -> None:
        super().__init__(where, cache, stop)
        self._client = list_watch.client
        decode = lambda obj: known(where, obj)  # noqa: E731
        self._reflector = Reflector(list_watch, decode, self, self.stop, back_off)

    def _run(self) -> None:
        threading.Thread(target=self._store, name="pod cache", daemon=True).start()
        self._reflector.run()

    def _store(self) -> None:
        while not self.stop.wait(1.0):
            self.store()

    def _disconnect(self) -> None:
        self._client.close()

    # what the reflector says

    def replaced(self, objects: Mapping[str, Known]) -> None:
        self.replace_all(objects)

    def changed(self, uid: str, known: Known) -> None:
        self.put(known)

    def deleted(self, uid: str, last: Known) -> None:
        self.drop(uid)

    def failed(self, error: MonitorError, pause_s: float) -> None:
        if not isinstance(error, ResourceExpired):  # every watch meets that some day: a list follows
            self.fail(error)

    def connected(self) -> None:
        self.answered()


class KubeletFeed(PodFeed):
    """Polled: the kubelet has no watch. A cgroup without a pod has it asked at once, so a new pod is known by its name
    some 0.3 s after its cgroup is there.
    """

    def __init__(
        self,
        client: KubeletClient,
        where: str,
        cache: PodCache | None = None,
        stop: threading.Event | None = None,
        back_off: BackOff | None = None,
    ) -> None:
        super().__init__(where, cache, stop)
        self._client = client
        self._back_off = back_off or BackOff(cap_s=POLL_S)  # it is on this node: nobody else is in the way
        self._soon = threading.Event()
        self._starting: dict[str, float] = {}  # uid -> since when not all of its containers are known
        self._followed_until = 0.0

    def follow(self) -> None:
        self._followed_until = self._clock() + ENDED_S
        self._soon.set()

    def soon(self) -> None:
        self._soon.set()

    def close(self) -> None:
        super().close()
        self._soon.set()

    def _run(self) -> None:
        back_off = self._back_off
        while not self.stop.is_set():
            began = self._clock()
            failed = False
            try:
                found = self._client.pods(lambda obj: known(self.where, obj))
                self.replace_all({one.uid: one for one in found})
                back_off.reset()
                pause_s = self._pause_s(found)
            except Cancelled:
                return
            except MonitorError as error:
                self.fail(error)
                failed = True
                pause_s = back_off.next_s(error.retry_after_s if isinstance(error, ApiError) else None)
            rest_s = min(_REST * (self._clock() - began), POLL_S)
            self.store()
            if self.stop.wait(pause_s if failed else max(SOON_S, rest_s)):
                return
            if not failed:
                self._soon.wait(max(0.0, pause_s - rest_s))
                self._soon.clear()

    def _disconnect(self) -> None:
        self._client.close()

    def _pause_s(self, found: Sequence[Known]) -> float:
        """Until the next look that nobody asks for: sooner where a pod starts or ends, whose status has more to say."""
        now = self._clock()
        self._starting = {
            one.uid: self._starting.get(one.uid, now)
            for one in found
            if one.manifest is not None and one.manifest.is_starting
        }
        if now < self._followed_until:
            return SOON_S
        new = any(now - since < _STARTING_MOST_S for since in self._starting.values())
        return STARTING_S if new else POLL_S
