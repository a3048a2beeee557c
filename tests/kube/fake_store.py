"""Objects with resourceVersions and a history, as etcd and the watch cache keep them."""

import copy
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str, str]  # plural, namespace, name


class Refused(Exception):
    """code, reason, message and, if there are any, details of a Status."""


class Store:
    """Every change has a resourceVersion of its own. `changed` is notified of each."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.version = 1000
        self.oldest = self.version  # watches and continue tokens before it have expired
        self._objects: dict[Key, Object] = {}
        self._history: list[tuple[int, str, Key, Object, Object | None]] = []

    def compact(self) -> None:
        """Forget all history, as etcd does every 5 minutes."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self._history.clear()

    def all(self, plural: str, namespace: str = "", matches: Callable[[Object], bool] = lambda _: True) -> list[Object]:
        """In the order of their keys, which is that of pages."""
        with self.changed:
            found = sorted(key for key in self._objects if key[0] == plural and namespace in ("", key[1]))
            return [copy.deepcopy(self._objects[key]) for key in found if matches(self._objects[key])]

    def get(self, key: Key) -> Object:
        with self.changed:
            if key not in self._objects:
                raise Refused(404, "NotFound", f'{key[0]} "{key[2]}" not found', {"name": key[2], "kind": key[0]})
            return copy.deepcopy(self._objects[key])

    def create(self, plural: str, made: Object) -> Object:
        made = copy.deepcopy(made)
        metadata = made.setdefault("metadata", {})
        key = (plural, metadata.get("namespace", ""), metadata["name"])
        with self.changed:
            if key in self._objects:
                raise Refused(409, "AlreadyExists", f'{plural} "{key[2]}" already exists')
            metadata.setdefault("uid", str(uuid.uuid4()))
            metadata["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            return self._set("ADDED", key, made)

    def update(self, key: Key, change: Callable[[Object], Object]) -> Object:
        """``change`` gets a copy and returns the new object. No new version where nothing changed, as in Kubernetes."""
        with self.changed:
            before = self.get(key)
            after = change(copy.deepcopy(before))
            return before if after == before else self._set("MODIFIED", key, after)

    def delete(self, key: Key) -> Object:
        with self.changed:
            found = self.get(key)
            before = self._objects.pop(key)
            self.version += 1
            found["metadata"]["resourceVersion"] = str(self.version)
            self._history.append((self.version, "DELETED", key, found, before))
            self.changed.notify_all()
            return found

    def _set(self, kind: str, key: Key, made: Object) -> Object:
        self.version += 1
        made["metadata"]["resourceVersion"] = str(self.version)
        before = self._objects.get(key)
        self._objects[key] = made
        self._history.append((self.version, kind, key, copy.deepcopy(made), before))
        self.changed.notify_all()
        return copy.deepcopy(made)

    def events(
        self,
        plural: str,
        namespace: str,
        after: int,
        matches: Callable[[Object], bool],
        until: float,
        bookmark_s: float,
        ended: threading.Event,
    ) -> Iterator[tuple[str, Object]]:
        """Changes after a version, until a time (monotonic) or ``ended``, with bookmarks while there are none.

        An object that comes to match was added, one that matches no more was deleted: what a fieldSelector does.
        Raises Refused 410.
        """
        marked = time.monotonic()
        while time.monotonic() < until and not ended.is_set():
            with self.changed:
                if after < self.oldest:
                    raise Refused(410, "Expired", f"too old resource version: {after} ({self.oldest})")
                new = [one for one in self._history if one[0] > after]
                if not new:
                    self.changed.wait(0.02)
                last = self.version
            for version, kind, key, made, before in new:
                after = version
                if key[0] != plural or namespace not in ("", key[1]):
                    continue
                now, then = kind != "DELETED" and matches(made), before is not None and matches(before)
                if now:
                    yield ("MODIFIED" if then else "ADDED"), made
                elif then:
                    yield "DELETED", made
            if not new and time.monotonic() - marked >= bookmark_s:
                marked = time.monotonic()
                yield "BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": str(last)}}
                after = max(after, last)
