"""A reflector in its thread, and a handler that keeps what it hears."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from monitor.errors import MonitorError
from monitor.kube.backoff import BackOff
from monitor.kube.reflector import ListWatch, Reflector


class Heard:
    """A handler that keeps what it is given, and the pods by uid that follow from it."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.errors: list[MonitorError] = []
        self.pauses: list[float] = []
        self.now: dict[str, str] = {}

    def replaced(self, objects: Mapping[str, str]) -> None:
        self.changes.append(f"all {' '.join(sorted(objects.values()))}".strip())
        self.now = dict(objects)

    def changed(self, uid: str, known: str) -> None:
        self.changes.append(f"{'changed' if uid in self.now else 'new'} {known}")
        self.now[uid] = known

    def deleted(self, uid: str, last: str) -> None:
        self.changes.append(f"deleted {last}")
        del self.now[uid]

    def failed(self, error: MonitorError, pause_s: float) -> None:
        self.errors.append(error)
        self.pauses.append(pause_s)

    def connected(self) -> None:
        self.changes.append("connected")


def decode(found: dict[str, Any]) -> str | None:
    """Name and phase; pods called ignored-... are not wanted."""
    name = found["metadata"].get("name", "")
    return None if name.startswith("ignored") else f"{name}:{found.get('status', {}).get('phase', '?')}"


class Running:
    """A reflector in its thread."""

    def __init__(self, pods: ListWatch, stop: threading.Event) -> None:
        self.heard = Heard()
        back_off = BackOff(first_s=0.02, cap_s=0.1, jitter=0.0)
        self.reflector = Reflector(pods, decode, self.heard, stop, back_off)
        self.thread = threading.Thread(target=self.reflector.run)
        self.thread.start()

    def knows(self, *pods: str) -> None:
        """Wait until these are all the pods."""
        until(lambda: self.reflector.synced and sorted(self.heard.now.values()) == sorted(pods), self.heard)
        assert self.reflector.objects == self.heard.now

    def watches(self, count: int) -> None:
        until(lambda: self.reflector.watches >= count, self.heard)


def until(condition: Callable[[], bool], heard: Heard, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, (heard.now, heard.changes, heard.errors)
        time.sleep(0.005)
