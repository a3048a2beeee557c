"""`--record FILE`: the passes of the hot process and every event of a race, in one file.

The main loop numbers the records and queues them; a thread makes JSON of them, compresses and writes. What finds no
room in the queue, or on the disk, is missing in the numbers, and the recording goes on with a new snapshot.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import time
import uuid
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any

from monitor import __version__
from monitor.link.messages import NAMES, Bad, Message, OfPasses, Snapshot
from monitor.race.episode import State
from monitor.race.events import Event
from monitor.settings.config import RunConfig
from monitor.side.export.log import Log
from monitor.side.recording import FILE_BYTES, FILES, Writer
from monitor.side.worker import Worker

#: Records waiting to be written: some seconds of everything at once, a few MiB.
_QUEUE = 8192
#: What is lost at most when the machine loses its power or the helper is killed.
FLUSH_NS = 1_000_000_000
#: The fields of a RunConfig that decide anything. (Not those that may hold a secret, such as URLs of webhooks.)
CONFIG_FIELDS = (
    "node_cgroup", "pods", "enforce", "evict_by", "hold", "hold_limit_ns", "two_steps", "hard_grace_ns",
    "trigger", "policy", "compat", "eviction_hard", "eviction_soft",
    "eviction_soft_grace_period", "eviction_minimum_reclaim", "eviction_max_pod_grace_period_s",
    "eviction_pressure_transition_period_ns", "enforce_node_allocatable", "system_reserved", "kube_reserved",
    "local_storage", "layout_image_fs",
)  # fmt: skip


def header(config: RunConfig, cgroup_version: int, realtime_ns: int) -> dict[str, Any]:
    """What a replay has to know besides the records. ``realtime_ns``: Unix time less CLOCK_MONOTONIC."""
    return {
        "outrace": __version__,
        "session": uuid.uuid4().hex,  # the files of one side process belong together
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cgroup_version": cgroup_version,
        "page_size": os.sysconf("SC_PAGE_SIZE"),
        "realtime_ns": realtime_ns,
        "began_ns": time.monotonic_ns(),
        "config": {name: getattr(config, name) for name in CONFIG_FIELDS},
    }


class Recorder:
    """Takes records from the helper's main loop. ``ask()`` has the hot process send a snapshot; False if the request
    could not be sent, and then `turn` calls it again.
    """

    def __init__(self, path: Path, head: Mapping[str, Any], log: Log, ask: Callable[[], bool]) -> None:
        self._path = path
        self._log = log
        self._ask = ask
        self._numbers = itertools.count()
        self._writer = Writer(path, head, self._renew)
        self._worker = Worker("recording", _QUEUE)
        self._error: OSError | None = None  # the last one, while nothing can be written
        self._unwritten_ns: int | None = None  # since when something waits to be written
        log.info("recording", path=str(path), file_bytes=FILE_BYTES, files=FILES)
        self._passes_wanted = True  # a snapshot of the hot process
        self.state_wanted = False  # one of the reducer; it begins empty, like that of a replay

    @property
    def dropped(self) -> int:
        """Records that found no room in the queue or on the disk."""
        return self._queue_dropped + self._writer.lost + self._hot_missed

    @property
    def written(self) -> int:
        return self._writer.written

    @property
    def failing(self) -> bool:
        return self._error is not None

    _queue_dropped = _hot_missed = 0

    def handle(self, message: Message | Bad) -> None:
        """Record a message of the hot process; ignores those that are not for a recording."""
        if not isinstance(message, OfPasses):
            return
        if isinstance(message, Snapshot):
            self._hot_missed = message.missed
        self._add(NAMES[type(message)], message._asdict)

    def event(self, event: Event) -> None:
        """Record an event that the reducer gets."""
        self._add("event", event.to_json)

    def state(self, state: State) -> None:
        """The reducer's state after the last event; where `state_wanted`."""
        self.state_wanted = False
        self._add("state", state.to_json)

    def due_s(self) -> float:
        """Seconds until `turn` has something to do."""
        if self._passes_wanted:
            return 1.0
        if self._unwritten_ns is None:
            return inf
        return max(0.0, (self._unwritten_ns + FLUSH_NS - time.monotonic_ns()) / 1e9)

    def turn(self) -> None:
        """Do what is due: write, request a snapshot of the hot process."""
        if self._passes_wanted and self._ask():
            self._passes_wanted = False
        if self._unwritten_ns is not None and time.monotonic_ns() >= self._unwritten_ns + FLUSH_NS:
            # Without room in the queue, a block becomes full by itself.
            self._worker.submit(lambda: self._attempt(self._writer.flush))
            self._unwritten_ns = None

    def close(self, timeout_s: float) -> None:
        """Write what is queued, for a moment."""
        if self._worker.close(timeout_s):  # then its thread has ended
            self._attempt(self._writer.close)

    def _add(self, kind: str, make: Callable[[], dict[str, Any]]) -> None:
        number = next(self._numbers)
        if not self._worker.submit(lambda: self._write(number, kind, make)):
            self._queue_dropped += 1
            self._renew()
        elif self._unwritten_ns is None:
            self._unwritten_ns = time.monotonic_ns()

    def _write(self, number: int, kind: str, make: Callable[[], dict[str, Any]]) -> None:
        line = json.dumps({"n": number, "k": kind, "v": make()}, separators=(",", ":"))
        self._attempt(lambda: self._writer.add(number, line.encode()))

    def _renew(self) -> None:
        """Records from here on have to make sense without the earlier ones. From any thread."""
        self._passes_wanted = self.state_wanted = True

    def _attempt(self, step: Callable[[], None]) -> None:
        """A step of the writer. The first failure of a row is logged, and the first block written after it."""
        written = self._writer.written
        try:
            step()
        except OSError as error:
            if self._error is None or self._error.errno != error.errno:
                path = str(error.filename or self._path)
                self._log.failed("the recording cannot be written; trying again", error, path=path)
            self._error = error
            return
        if self._error is not None and self._writer.written > written:
            self._error = None
            self._renew()
            self._log.info("the recording is written again", path=str(self._path), lost=self._writer.lost)
