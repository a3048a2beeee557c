"""Pods as a cluster reports them, kept up to date by a thread.

What is known is stored (`PodCache`) and used while no server answers. A deleted pod stays for `LINGER_S`, and as long
as its cgroup: a kubelet that was restarted answers with its static pods alone until it has reached the API server.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from monitor.errors import MonitorError
from monitor.kernel.durable import replace_file
from monitor.kube.client import PODS, SILENCE_S, WATCH_S, ApiClient
from monitor.kube.decode import BOOKMARK, DELETED
from monitor.kube.errors import ApiError, Cancelled, ResourceExpired, ServerError, TooManyRequests, TransportError
from monitor.kube.kubelet import KubeletClient
from monitor.kube.retry import BackOff
from monitor.pods import manifest_files
from monitor.pods.manifest_files import Manifest, Object
from monitor.pods.model import Ends

#: Beside the pods, so that a later version can tell that it does not know the format.
_VERSION = 1
#: Bytes of the pods in the file, which is written again with each change: 1 KB of most.
_MOST_BYTES = 8 << 20


class PodCache:
    """One JSON file, replaced as a whole, for root alone. A cache that cannot be read or written is none."""

    def __init__(self, state_dir: Path, node: str) -> None:
        self.path = state_dir / "pods-cache.json"
        self._node = node
        self.problem = ""  # why the last `load` or `store` failed

    def load(self) -> list[Any]:
        """The objects that were stored for this node; none where there is no file, or a damaged one."""
        try:
            found = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as error:
            self.problem = f"{self.path}: {error}; pods are known when the cluster answers"
            return []
        if not isinstance(found, dict) or found.get("version") != _VERSION or found.get("node") != self._node:
            return []  # of another version, or the disk of another node
        pods = found.get("pods")
        return pods if isinstance(pods, list) else []

    def store(self, objects: list[Any]) -> bool:
        """Whether the file is written, without the largest pods where all do not fit. Raises nothing: after the next
        start the feed gets what is not stored.
        """
        texts = sorted((json.dumps(one, separators=(",", ":")) for one in objects), key=len)
        chosen = [text for text, size in zip(texts, accumulate(map(len, texts)), strict=True) if size <= _MOST_BYTES]
        text = f'{{"version":{_VERSION},"node":{json.dumps(self._node)},"pods":[{",".join(chosen)}]}}'
        try:
            replace_file(self.path, text.encode())
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror}; after a restart pods are known when the cluster answers"
            return False
        lost = f"{self.path}: the {len(texts) - len(chosen)} largest of {len(texts)} pods do not fit into a file"
        lost += "; after a restart they are known when the cluster answers"
        self.problem = lost if len(chosen) < len(texts) else ""
        return True


#: How long a pod that was deleted is still known. The kubelet removes its cgroup some seconds after.
LINGER_S = 60.0
#: Between two writes of the cache.
STORE_S = 5.0
_EVICTED = ("Failed", "Evicted")


@dataclass(frozen=True)
class Known:
    """A pod: what is stored of it, and what the policy needs. ``problem`` stands where it is no pod."""

    uid: str
    object: Object
    manifest: Manifest | None
    problem: str = ""


def known(where: str, obj: object) -> Known | None:
    """What is kept of an object that a server sent; None without a uid, which no pod of a server lacks."""
    kept = manifest_files.kept(obj)
    uid = kept["metadata"].get("uid")
    if not isinstance(uid, str) or not uid:
        return None
    found = manifest_files.manifest(where, kept)
    return Known(uid, kept, None, found) if isinstance(found, str) else Known(uid, kept, found)


class PodFeed(ABC):
    """`fileno` is readable when `pods` has changed. ``where`` names the source in messages."""

    def __init__(
        self,
        where: str,
        cache: PodCache | None = None,
        stop: threading.Event | None = None,
        ends: Ends | None = None,
    ) -> None:
        self.where = where
        self.stop = stop or threading.Event()
        self._cache = cache
        self._clock: Callable[[], float] = time.monotonic
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._pods: dict[str, Known] = {}
        self._gone: dict[str, tuple[float, Known]] = {}  # uid -> since when, as it was last
        self._failure = ""
        self._stored_at = -STORE_S
        self._dirty = False
        self._bug: Exception | None = None  # that ended the thread
        self.ends = ends or Ends()
        self.synced = False  # whether the source has answered since the start
        if cache is not None:
            self._pods = {one.uid: one for obj in cache.load() if (one := known(f"{cache.path}", obj)) is not None}

    @property
    def is_known(self) -> bool:
        """Whether the source has answered, or what it answered before the last restart is stored."""
        return self.synced or bool(self._pods)

    @property
    def is_failing(self) -> bool:
        """Whether the source did not answer the last time: its last pods stay in use."""
        return bool(self._failure)

    def start(self) -> None:
        """Begin to ask. The thread ends with `close`."""
        threading.Thread(target=self._guarded, name="pod feed", daemon=True).start()

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
        with self._lock:  # the thread may live for 0.5 s more, and the number be another file's by then
            if self._event >= 0:
                os.close(self._event)
            self._event = -1

    def soon(self, for_s: float = 0.0) -> None:  # noqa: B027 - what is watched comes by itself
        """There is something that is not known here yet, as a pod with a cgroup, and will be within ``for_s``."""

    def manifests(self, present: Collection[str] = ()) -> list[Manifest]:
        """Every pod, those deleted a moment ago too, and those of ``present`` (uids with a cgroup). Raises a bug of the
        thread.
        """
        with self._lock:
            if self._bug is not None:
                raise self._bug
            now = self._clock()
            self._gone = {uid: it for uid, it in self._gone.items() if uid in present or now - it[0] < LINGER_S}
            there = [one.manifest for one in self._pods.values() if one.manifest is not None]
            gone = [one.manifest for _, one in self._gone.values() if one.manifest is not None]
        return there + [replace(one, pod=replace(one.pod, phase="Succeeded")) for one in gone]

    def problems(self) -> list[str]:
        """One line each: pods that cannot be read, and a source that does not answer."""
        with self._lock:
            found = [one.problem for one in self._pods.values() if one.problem]
            stored = self._cache.problem if self._cache is not None else ""
            return found + [one for one in (self._failure, stored) if one]

    def replace_all(self, pods: Mapping[str, Known]) -> None:
        self._take(pods, self._pods if self.synced else {}, answered=True)  # what ended before this process is reported

    def put(self, one: Known) -> None:
        self._take({**self._pods, one.uid: one}, self._pods)

    def drop(self, uid: str) -> None:
        self._take({other: one for other, one in self._pods.items() if other != uid}, self._pods)

    def _take(self, pods: Mapping[str, Known], before: Mapping[str, Known], answered: bool = False) -> None:
        """What there is from now on; what ended since ``before`` is reported."""
        with self._lock:
            now, changed = self._clock(), self._pods != pods
            gone = self._gone | {uid: (now, one) for uid, one in self._pods.items() if uid not in pods}
            self._gone = {uid: it for uid, it in gone.items() if uid not in pods}
            self._pods, self._dirty = dict(pods), self._dirty or changed
            news = changed or (answered and (not self.synced or self._failure != ""))
            if answered:
                self.synced, self._failure = True, ""
            self._changed(news)  # last: a reader that it wakes takes no lock
        for uid, one in pods.items():
            self._report(before.get(uid), one)

    def _report(self, before: Known | None, one: Known) -> None:
        """That a pod was evicted since, or asked to end. (One that was not admitted is Evicted too, and never ran.)"""
        was: Object = {"metadata": {}, "status": {}} if before is None else before.object
        meta, status = one.object["metadata"], one.object["status"]
        if was["status"].get("phase") == "Running" and (status.get("phase"), status.get("reason")) == _EVICTED:
            title = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
            self.ends.evicted(one.uid, title, str(status.get("message", "")))
        if meta.get("deletionTimestamp") and not was["metadata"].get("deletionTimestamp"):
            self.ends.ending(one.uid)

    def fail(self, error: MonitorError) -> None:
        """It does not answer: what is known stays in use."""
        self.answered(f"{self.where}: {error}; its last pods stay in use")

    def answered(self, failure: str = "") -> None:
        with self._lock:
            before, self._failure = self._failure, failure
            self._changed(before != failure)

    def store(self) -> None:
        """Write the cache, if that is due: every `STORE_S` at most."""
        if self._cache is None or not self._dirty or self._clock() - self._stored_at < STORE_S:
            return
        with self._lock:
            # One that is gone too: a kubelet that was restarted does not know its pods for a while.
            objects = [one.object for one in (*self._pods.values(), *(one for _, one in self._gone.values()))]
            self._dirty = False
        self._stored_at = self._clock()
        before = self._cache.problem
        stored = self._cache.store(objects)
        with self._lock:
            self._dirty = self._dirty or not stored  # again in 5 s
            self._changed(before != self._cache.problem)

    def _changed(self, really: bool = True) -> None:
        """Wake the reader of `fileno`. Under the lock."""
        if really and self._event >= 0:
            os.eventfd_write(self._event, 1)

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - raised again by `manifests`: a thread that ends in silence is worse
            with self._lock:
                self._bug = error
                self._changed()

    @abstractmethod
    def _run(self) -> None:
        """Ask until ``stop``."""


# ---- polled at the kubelet

#: Between two looks at the kubelet's pods, where nothing asks for one sooner.
POLL_S = 10.0
#: ... and where a cgroup has no known pod: at most so often, and after `_REST` times what an answer (3 MB) took.
SOON_S = 0.25
_REST = 10


class KubeletFeed(PodFeed):
    """Polled: the kubelet has no watch. A cgroup without a pod has it asked at once: its name is here 0.3 s later."""

    def __init__(
        self, client: KubeletClient, where: str, cache: PodCache | None = None, ends: Ends | None = None
    ) -> None:
        super().__init__(where, cache, client.stop, ends)
        self._client = client
        self._back_off = BackOff(cap_s=POLL_S)  # it is on this node, for few clients
        self._soon = threading.Event()
        self._followed_until = 0.0

    def soon(self, for_s: float = 0.0) -> None:
        self._followed_until = max(self._followed_until, self._clock() + for_s)
        self._soon.set()

    def close(self) -> None:
        super().close()
        self._soon.set()

    def _run(self) -> None:
        with closing(self._client):
            while not self.stop.is_set():
                began = self._clock()
                try:
                    found = self._client.pods(lambda obj: known(self.where, obj))
                except Cancelled:
                    return
                except MonitorError as error:
                    self.fail(error)
                    self.store()
                    self.stop.wait(self._back_off.next_s(error))
                    continue
                self.replace_all({one.uid: one for one in found})
                self._back_off.reset()
                pause_s = SOON_S if self._clock() < self._followed_until else POLL_S
                rest_s = min(_REST * (self._clock() - began), POLL_S)
                self.store()
                if self.stop.wait(max(SOON_S, rest_s)):
                    return
                self._soon.wait(max(0.0, pause_s - rest_s))
                self._soon.clear()


# ---- listed and watched at the API server, as client-go's reflector does

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
        ends: Ends | None = None,
    ) -> None:
        super().__init__(where, cache, client.stop, ends)
        self._client = client
        self._field_selector = field_selector
        self._back_off = BackOff()
        self._silence_s = SILENCE_S
        self._version = "0"  # of the last event or list; "": a list of that or newer cannot be had
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
        listed = self._client.list(
            PODS,
            lambda found: known(self.where, found),
            field_selector=self._field_selector,
            resource_version=self._version,
        )
        self._version, self._watchable = listed.resource_version, True
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
        # Of a server that is behind, or whose etcd was restored, too: take what there is.
        behind = isinstance(error, ApiError) and error.has_cause("ResourceVersionTooLarge")
        if behind or (at_list and isinstance(error, ResourceExpired)):
            self._version, self._watchable = "", False
        if not isinstance(error, ResourceExpired):  # every watch meets that some day: a list follows
            self.fail(error)
        self.stop.wait(self._back_off.next_s(error))
