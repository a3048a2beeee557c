"""Pods as a cluster tells of them, kept up to date by a thread: watched at the API server, or polled at the kubelet.

What is known outlives its source: it is stored (`monitor.pods.cache`) and used until the first answer after a restart,
and while nobody answers. A pod that is deleted stays for `LINGER_S`: its processes, and its name in an incident, do.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from monitor.errors import MonitorError
from monitor.kube.backoff import BackOff
from monitor.kube.errors import ApiError, Cancelled
from monitor.kube.kubelet import KubeletClient
from monitor.kube.reflector import ListWatch, Reflector
from monitor.pods import pod_objects
from monitor.pods.cache import PodCache
from monitor.pods.manifest_files import Manifest
from monitor.pods.pod_objects import Object

#: How long a pod that was deleted is still known. The kubelet removes its cgroup some seconds after.
LINGER_S = 60.0
#: Between two looks at the kubelet's pods, where nothing asks for one sooner.
POLL_S = 10.0
#: ... and where a cgroup has appeared that no pod is known of: at most so often.
SOON_S = 0.25
#: Between two writes of the cache.
STORE_S = 5.0


@dataclass(frozen=True)
class Known:
    """A pod: what is stored of it, and what the policy needs. ``problem`` stands where it is no pod."""

    object: Object
    manifest: Manifest | None
    problem: str = ""

    @property
    def uid(self) -> str:
        found = self.object["metadata"].get("uid")
        return found if isinstance(found, str) else ""


def known(where: str, obj: object) -> Known | None:
    """What is kept of an object that a server sent; None without a uid, which no pod of a server lacks."""
    kept = pod_objects.kept(obj)
    uid = kept["metadata"].get("uid")
    if not isinstance(uid, str) or not uid:
        return None
    found = pod_objects.manifest(where, kept)
    return Known(kept, None, found) if isinstance(found, str) else Known(kept, found)


class PodFeed(ABC):
    """`fileno` is readable when `pods` has changed. ``where`` names the source in messages."""

    def __init__(
        self,
        where: str,
        cache: PodCache | None = None,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.where = where
        self.stop = stop or threading.Event()
        self._cache = cache
        self._clock = clock
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._pods: dict[str, Known] = {}
        self._gone: dict[str, tuple[float, Known]] = {}  # uid -> since when, as it was last
        self._failure = ""
        self._stored_at = 0.0
        self._dirty = False
        self.synced = False  # whether the source has answered since the start
        if cache is not None:
            self._pods = {one.uid: one for obj in cache.load() if (one := known(f"{cache.path}", obj)) is not None}

    @property
    def is_known(self) -> bool:
        """Whether the source has answered, or what it said before the last restart is stored."""
        return self.synced or bool(self._pods)

    def start(self) -> None:
        """Begin to ask. The thread ends with `close`."""
        threading.Thread(target=self._run, name="pod feed", daemon=True).start()

    def fileno(self) -> int:
        return self._event

    def drain(self) -> bool:
        """Whether something changed since the last call."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self.stop.set()

    def soon(self) -> None:  # noqa: B027 - what is watched comes by itself
        """Somebody has seen a pod that is not known here yet."""

    def manifests(self) -> list[Manifest]:
        """Every pod, those that were deleted a moment ago too."""
        with self._lock:
            now = self._clock()
            self._gone = {uid: it for uid, it in self._gone.items() if now - it[0] < LINGER_S}
            there = [one.manifest for one in self._pods.values() if one.manifest is not None]
            gone = [one.manifest for _, one in self._gone.values() if one.manifest is not None]
        return there + [replace(one, pod=replace(one.pod, phase="Succeeded")) for one in gone]

    def problems(self) -> list[str]:
        """One line each: pods that cannot be read, and a source that does not answer."""
        with self._lock:
            found = [one.problem for one in self._pods.values() if one.problem]
            return [*found, self._failure] if self._failure else found

    def replace_all(self, pods: Mapping[str, Known]) -> None:
        """These are all pods there are."""
        with self._lock:
            now = self._clock()
            self._gone |= {
                uid: (now, one) for uid, one in self._pods.items() if uid not in pods and uid not in self._gone
            }
            for uid in pods:
                self._gone.pop(uid, None)
            changed = self._pods != dict(pods) or not self.synced or self._failure != ""
            self._dirty = self._dirty or self._pods != dict(pods)
            self._pods, self.synced, self._failure = dict(pods), True, ""
        if changed:
            os.eventfd_write(self._event, 1)

    def put(self, one: Known) -> None:
        with self._lock:
            if self._pods.get(one.uid) == one:
                return
            self._pods[one.uid] = one
            self._gone.pop(one.uid, None)
            self._dirty = True
        os.eventfd_write(self._event, 1)

    def drop(self, uid: str) -> None:
        with self._lock:
            one = self._pods.pop(uid, None)
            if one is None:
                return
            self._gone[uid] = (self._clock(), one)
            self._dirty = True
        os.eventfd_write(self._event, 1)

    def fail(self, error: MonitorError) -> None:
        """It does not answer: what is known stays in use."""
        with self._lock:
            before, self._failure = self._failure, f"{self.where}: {error}; its last pods stay in use"
        if before != self._failure:
            os.eventfd_write(self._event, 1)

    def answered(self) -> None:
        """It answers again."""
        with self._lock:
            before, self._failure = self._failure, ""
        if before:
            os.eventfd_write(self._event, 1)

    def store(self) -> None:
        """Write the cache, if that is due: every `STORE_S` at most."""
        if self._cache is None or not self._dirty or self._clock() - self._stored_at < STORE_S:
            return
        with self._lock:
            objects = [one.object for one in self._pods.values()]
            self._dirty = False
        self._stored_at = self._clock()
        self._cache.store(objects)

    @abstractmethod
    def _run(self) -> None:
        """Ask until ``stop``."""


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
        decode = lambda obj: known(where, obj)  # noqa: E731
        self._reflector = Reflector(list_watch, decode, self, self.stop, back_off)

    def _run(self) -> None:
        threading.Thread(target=self._store, name="pod cache", daemon=True).start()
        self._reflector.run()

    def _store(self) -> None:
        while not self.stop.wait(1.0):
            self.store()

    # what the reflector says

    def replaced(self, objects: Mapping[str, Known]) -> None:
        self.replace_all(objects)

    def changed(self, uid: str, known: Known) -> None:
        self.put(known)

    def deleted(self, uid: str, last: Known) -> None:
        self.drop(uid)

    def failed(self, error: MonitorError, pause_s: float) -> None:
        self.fail(error)

    def connected(self) -> None:
        self.answered()


class KubeletFeed(PodFeed):
    """Polled: the kubelet has no watch. A cgroup without a pod has it asked at once, so a new pod is known by its name
    some 0.3 s after its cgroup is there.
    """

    def __init__(
        self, client: KubeletClient, where: str, cache: PodCache | None = None, stop: threading.Event | None = None
    ) -> None:
        super().__init__(where, cache, stop)
        self._client = client
        self._soon = threading.Event()

    def soon(self) -> None:
        self._soon.set()

    def close(self) -> None:
        super().close()
        self._soon.set()

    def _run(self) -> None:
        back_off = BackOff()
        while not self.stop.is_set():
            pause_s = POLL_S
            try:
                found = self._client.pods(lambda obj: known(self.where, obj))
                self.replace_all({one.uid: one for one in found})
                back_off.reset()
            except Cancelled:
                return
            except MonitorError as error:
                self.fail(error)
                pause_s = back_off.next_s(error.retry_after_s if isinstance(error, ApiError) else None)
            self.store()
            if self.stop.wait(SOON_S):
                return
            if not self._failure:
                self._soon.wait(pause_s)
                self._soon.clear()
            else:
                self.stop.wait(pause_s)
