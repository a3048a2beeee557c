"""Directories that change faster than anybody reads: a look at the pods ends, and what it left comes with the next."""

import contextlib
import os
import select
import time
from pathlib import Path

from monitor.pods.inotify import FILES, IN_MODIFY, Watcher
from monitor.pods.model import Change
from monitor.side.pod_watch import PodWatch
from tests.log_lines import ignored

#: 384 KiB of events, which the kernel merges only where two in a row are alike.
WRITES = 12_000


def test_a_read_of_events_has_an_end_and_each_kind_is_given_once(tmp_path: Path) -> None:
    with contextlib.closing(Watcher()) as watcher:
        watcher.watch_only({tmp_path: FILES | IN_MODIFY})
        with open(tmp_path / "a", "wb", 0) as one, open(tmp_path / "b", "wb", 0) as other:
            for _ in range(WRITES // 2):
                one.write(b"x")
                other.write(b"x")
        found = watcher.drain()
        assert {event.name for event in found} == {"a", "b"}
        assert len(found) == len(set(found))
        assert select.select([watcher], [], [], 0)[0], "the rest is left for the next look"
        (tmp_path / "new").touch()
        names = set[str]()
        while select.select([watcher], [], [], 0)[0]:
            names |= {event.name for event in watcher.drain()}
        assert "new" in names


class Restless:
    """A source of pods where something always changes, and a look takes some time."""

    took_s, is_complete = 0.02, True

    def __init__(self) -> None:
        self.fd = os.eventfd(1)
        self.looks = list[float]()

    def fileno(self) -> int:
        return self.fd

    def due_s(self) -> float:
        return 0.0

    def poll(self) -> Change:
        self.looks.append(time.monotonic())
        if len(self.looks) > 5:
            raise RuntimeError("enough")
        time.sleep(self.took_s)
        return Change()


def test_looks_take_an_eighth_of_a_cpu_at_most() -> None:
    source, over = Restless(), os.eventfd(0)
    PodWatch(source, ignored, lambda _: os.eventfd_write(over, 1)).start()
    os.eventfd_read(over)
    os.close(over)
    os.close(source.fd)
    assert source.looks[-1] - source.looks[0] >= 5 * 8 * source.took_s * 0.99
