"""From an episode to an incident: the verdict, what a kubelet would have done, the store, the alerts, the log.

In threads of their own: judging takes milliseconds, the store may wait for a disk, and the main loop for neither.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from monitor.errors import MonitorError
from monitor.kernel.sched import hurry
from monitor.race.episode import Episode
from monitor.race.incident import FLAGS, LOST_RACES, OWN_LIMIT, STALLED, VERDICTS, Incident
from monitor.race.verdict import verdict
from monitor.settings.config import RunConfig
from monitor.side.export.log import Log
from monitor.side.incidents import FOLDER, IncidentStore
from monitor.side.worker import Worker

#: Episodes waiting to be judged, and incidents waiting to be stored. The reducer has at most 32 episodes open
#: (`Bounds.open`), so these are several times all that can be going on, judged for the last time at one moment.
_QUEUE = 256
#: Pause between two tries to store an incident.
_RETRY_S = 5.0
#: Verdicts that count as soon as they are given. (One that is another at the end counts under both.)
AT_ONCE = LOST_RACES | {OWN_LIMIT, STALLED}


@dataclass(eq=False)
class Judge:
    """Judges episodes one after the other. ``on_incident`` gets each, in the thread that judged it."""

    config: RunConfig
    log: Log
    on_incident: Callable[[dict[str, Any]], None]

    def __post_init__(self) -> None:
        # For the metrics; margins are by verdict.
        self.verdicts, self.flags = dict.fromkeys(VERDICTS, 0), dict.fromkeys(FLAGS, 0)
        self.margin_s = {name: Histogram(MARGIN_S) for name in VERDICTS}
        self.margin_bytes = {name: Histogram(MARGIN_BYTES) for name in VERDICTS}
        self.store = IncidentStore(Path(self.config.state_dir) / FOLDER)
        self._worker = Worker("judge", _QUEUE, on_error=lambda error: self.log.error(str(error)))
        self._worker.submit(hurry)
        self.files = Worker("incidents", _QUEUE, retry_s=_RETRY_S, on_error=self._store_failed)
        self._told: dict[str, str] = {}  # id -> the verdict it was counted and logged with
        self.offset_ns = wall_offset_ns()  # for an episode that knows none, live and in a replay

    def submit(self, found: Episode, final: bool) -> None:
        """Judge an episode; one that is not over is judged again when it is."""
        if not self._worker.submit(partial(self._judge, found, final), (found.domain, found.start_ns), final):
            self.log.error("too many episodes at once: one that is over is not judged", waiting=_QUEUE)

    def close(self, timeout_s: float) -> None:
        """Finish what is queued, within that time in all, and log what could not be stored.

        The first incident of a new state dir makes the store, which waits for the disk several times. If the disk
        refuses, each incident gets one more try, without a pause.
        """
        deadline = time.monotonic() + timeout_s
        self._worker.close(timeout_s)
        self.files.close(max(0.0, deadline - time.monotonic()))
        lost, unjudged = sorted({str(key) for key in self.files.undone}), len(self._worker.undone)
        if lost or unjudged:
            self.log.error("the monitor ends before everything is stored", incidents=lost, unjudged=unjudged)

    @property
    def idle(self) -> bool:
        return not self._worker.undone and not self.files.undone

    @property
    def dropped(self) -> int:
        """Versions of episodes and of incidents that found no room in a queue, and incidents refused for good."""
        return self._worker.dropped + self.files.dropped

    def _judge(self, found: Episode, final: bool) -> None:
        try:
            incident = verdict(found, self.offset_ns, self.config.pass_config() if final else None)
        except Exception as error:  # noqa: BLE001 - a defect in judging must not cost the next incident its verdict
            self.log.error(
                "an episode could not be judged", domain=found.domain, problem=f"{type(error).__name__}: {error}"
            )
            return
        made = incident.to_json()
        # A kill counts at once: a rule that waits for the end of the episode would be seconds late.
        is_new = self._told.get(incident.id) != incident.verdict and (final or incident.verdict in AT_ONCE)
        if is_new:
            self._count(incident)
            self._told[incident.id] = incident.verdict
        if is_new or final:
            self._log_incident(made, final)
        if final:
            self._told.pop(incident.id, None)
        self.files.submit(partial(self.store.add, made), incident.id, final)
        self.on_incident(made)

    def _count(self, incident: Incident) -> None:
        self.verdicts[incident.verdict] += 1
        for flag in incident.flags:
            self.flags[flag] += 1
        if incident.margin_ms is not None:
            self.margin_s[incident.verdict].observe(abs(incident.margin_ms) / 1e3)
        if incident.margin_bytes is not None:
            self.margin_bytes[incident.verdict].observe(abs(incident.margin_bytes))

    def _log_incident(self, incident: Mapping[str, Any], final: bool) -> None:
        level = "info" if incident["verdict"] in ("relieved", "own_limit") else "warning"
        keys = ("id", "verdict", "flags", "domain", "margin_bytes", "margin_ms", "observed", "advice")
        self.log(level, "incident", final=final, **{key: incident[key] for key in keys}, summary=incident["summary"])

    def _store_failed(self, error: OSError | MonitorError) -> None:
        if isinstance(error, MonitorError):
            self.log.error("an incident was not stored", problem=str(error))
            return
        path = str(self.store.path)
        self.log.failed("incidents cannot be stored; trying again", error, path=path, every_s=_RETRY_S)


#: Between two readings of the one clock that of the other is worth this much at best; a process that lost the CPU there
#: reads again.
_CLOSE_NS, _TRIES = 50_000, 5


def wall_offset_ns() -> int:
    """CLOCK_REALTIME less CLOCK_MONOTONIC, in nanoseconds: what makes a recorded time a Unix time."""
    found = list[tuple[int, int]]()
    while len(found) < _TRIES and not any(took <= _CLOSE_NS for took, _ in found):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        found.append((after - before, wall - (before + after) // 2))
    return min(found)[1]


#: Seconds: from the fastest race measured (a page fault's worth) to a grace period.
MARGIN_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
#: Bytes: from one charge batch (64 pages) on.
MARGIN_BYTES = tuple(4**i << 18 for i in range(9))
#: Seconds from a decision or a kill until the API server has accepted what follows from it.
ACCEPTED_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Histogram:
    """Counts by upper bound. Values are sizes: a race that was lost by 1 s counts under its own verdict."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def shown(self) -> tuple[tuple[float, ...], list[int], float]:
        """Upper bounds; how many up to each and not up to the one before, the last beyond all; the sum of all."""
        return self.bounds, self.counts, self.sum
