"""A disk watch over file systems of its own."""

import queue
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel.disks import Disks, find_disks
from monitor.link import channel
from monitor.link.messages import DiskFigures
from monitor.pods.model import FoundPod
from monitor.pods.storage import Roots
from monitor.policy.pods import Pod
from monitor.settings.config import RunConfig
from monitor.side.disk_watch import DiskWatch
from tests import live
from tests.filesystems import Mounts
from tests.log_lines import LogLines

MI = 1 << 20
SIZE = 8 * MI


class Bench:
    """A watch on disks of 8 MiB, with pods that write logs on the node's."""

    def __init__(self, mounts: Mounts, image: bool = False) -> None:
        self.node = mounts.tmpfs("node", size=SIZE)
        images = mounts.tmpfs("image", size=SIZE) if image else None
        self.disks: Disks = find_disks(self.node, images or self.node)
        self.roots = Roots(self.node / "log", self.node / "pods")
        self.pods: dict[str, FoundPod] = {}
        self.log = LogLines()
        self.delivered: queue.SimpleQueue[DiskFigures] = queue.SimpleQueue()
        self.takes = True
        self.failure: Exception | None = None
        self.watch: DiskWatch | None = None

    def open(self, hard: Mapping[str, str], start: bool = True, **settings: Any) -> DiskWatch:
        config = RunConfig(eviction_hard=dict(hard), layout_image_fs=self.disks.layout_image_fs, **settings)
        self.watch = DiskWatch(config, self.disks, lambda: self.pods, self.send, self.failed, self.log, self.roots)
        if start:
            self.watch.start()
        return self.watch

    def send(self, message: DiskFigures) -> bool:
        channel.encode(message)
        if self.takes:
            self.delivered.put(message)
        return self.takes

    def failed(self, error: Exception) -> None:
        self.failure = error

    def add(self, one: Pod, log_bytes: int = 0, cgroup: Path = Path("/nonexistent")) -> None:
        if log_bytes:
            self.write(one, log_bytes)
        self.pods = {**self.pods, one.uid: FoundPod(one, cgroup, {})}

    def remove(self, uid: str) -> None:
        self.pods = {other: found for other, found in self.pods.items() if other != uid}

    def write(self, one: Pod, size: int) -> None:
        path = self.roots.logs / f"{one.namespace}_{one.name}_{one.uid}" / "c" / "0.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))

    def next(self) -> DiskFigures:
        """Wait for the next message."""
        return self.delivered.get(timeout=live.TIMEOUT_S)

    def drop(self) -> None:
        """All messages until now."""
        while not self.delivered.empty():
            self.delivered.get()

    def until(self, check: Callable[[DiskFigures], object]) -> DiskFigures:
        """The first message of that kind."""
        for _ in range(60):
            message = self.next()
            if check(message):
                return message
        pytest.fail(f"no such message; the last: {message!r}")

    def look(self) -> None:
        """Have the disks looked at, to the end of the look."""
        began_ns = time.monotonic_ns()

        def is_over() -> bool:
            # A look that began after this one's call is over once another one has stamped its observations.
            self.watch.pods_changed()
            return min((seen.stamp_ns for seen in self.watch.observations.values()), default=0) > began_ns

        live.until(is_over, "a look at the disks")


@pytest.fixture
def bench(mounts: Mounts, request: pytest.FixtureRequest) -> Iterator[Bench]:
    found = Bench(mounts, image=getattr(request, "param", False))
    yield found
    if found.watch is not None:
        found.watch.close()
