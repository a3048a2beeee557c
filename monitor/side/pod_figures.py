"""What every pod had in the last half minute: a kubelet ranks pods by figures of then.

Near a threshold the flight recorder looks at every pod once a second, and what it sees is kept here. Far from one the
counters of the kernel programs stand still, and a thread reads the cgroups' files instead. Neither asks anything of the
hot process.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.sched import take_time
from monitor.pods.model import FoundPod
from monitor.race.events import WorkingSets
from monitor.race.figure_age import PodPoints
from monitor.side.view import View

#: Looks kept of each pod, and how far back: cAdvisor's are up to 15 s old, and a kubelet may decide some
#: seconds after the crossing. 500 pods are 125 KiB.
_LOOKS, _REPORTED_NS = 32, 25_000_000_000
#: Most pods: a kubelet allows 110 by default, and the table of watched cgroups has 4096 entries.
_PODS = 2048
#: Memory is charged in batches of 64 pages; a pod that moved by less did not move.
STEP = 64 * 4096
#: Most points reported at a time, of the pods that moved most: some 100 KiB of a recording.
_POINTS = 4096
#: Pace of the thread: a hundred times what a look cost, so at most 1 % of a CPU, within these bounds.
_SHARE, _LEAST_S, _MOST_S = 100, 1.0, 5.0
#: A pod whose usage stands still may have moved page cache all the same: it is read whole so often.
_WHOLE_NS = 10_000_000_000
_NONE = -1


class PodFigures:
    """Working sets of pods by uid, `_LOOKS` of each. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times = array("q", [0]) * _LOOKS
        self._rows: dict[str, array[int]] = {}
        self._looks = 0  # all that ever were

    def note(self, now_ns: int, found: Mapping[str, int | None]) -> None:
        """A look at all pods there are; None for one that could not be read."""
        with self._lock:
            slot, last = self._looks % _LOOKS, (self._looks - 1) % _LOOKS
            if self._looks and now_ns <= self._times[last]:
                return  # the other thread has looked since
            self._times[slot] = now_ns
            self._looks += 1
            for uid in [uid for uid in self._rows if uid not in found]:
                del self._rows[uid]
            for uid, size in found.items():
                row = self._rows.get(uid)
                if row is None:
                    if len(self._rows) >= _PODS:
                        continue
                    row = self._rows[uid] = array("q", [_NONE]) * _LOOKS
                row[slot] = row[last] if size is None else size

    def report(self, now_ns: int) -> WorkingSets | None:
        """The pods that moved or came within the last `_REPORTED_NS`; None before the first look."""
        with self._lock:
            first = max(0, self._looks - _LOOKS)
            slots = [i % _LOOKS for i in range(first, self._looks) if self._times[i % _LOOKS] >= now_ns - _REPORTED_NS]
            if not slots:
                return None
            times = [self._times[slot] for slot in slots]
            rows = {uid: [row[slot] for slot in slots] for uid, row in self._rows.items()}
        moved = []
        for uid, sizes in rows.items():
            made = _points(uid, times, sizes)
            if made is not None:
                moved.append(made)
        moved.sort(key=lambda one: (-_moved(one), one.pod))
        kept, left = [], _POINTS
        for one in moved:
            left -= len(one.points)
            if left < 0:
                break
            kept.append(one)
        return WorkingSets(now_ns, times[0], tuple(kept))


def _points(uid: str, times: list[int], sizes: list[int]) -> PodPoints | None:
    """The figures of one pod without those that repeat the one before; None if it was there and did not move."""
    points: list[tuple[int, int]] = []
    for ts, size in zip(times, sizes, strict=True):
        if size != _NONE and (not points or abs(size - points[-1][1]) >= STEP):
            points.append((ts, size))
    is_new = sizes[0] == _NONE
    return PodPoints(uid, is_new, tuple(points)) if len(points) > 1 or (points and is_new) else None


def _moved(one: PodPoints) -> int:
    sizes = [size for _, size in one.points]
    return max(sizes) if one.new else max(sizes) - min(sizes)


@dataclass
class _Read:
    """What the files of a cgroup held last: usage, the working set, and when both were read."""

    usage: int
    working_set: int
    ts_ns: int


class FileReader:
    """The working sets of pods by their cgroups' files; memory.stat of those alone that moved."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy
        self._known: dict[str, _Read] = {}

    def read(self, pods: Mapping[str, FoundPod], now_ns: int) -> dict[str, int | None]:
        for uid in [uid for uid in self._known if uid not in pods]:
            del self._known[uid]
        return {uid: self._read(uid, found, now_ns) for uid, found in pods.items()}

    def _read(self, uid: str, found: FoundPod, now_ns: int) -> int | None:
        known = self._known.get(uid)
        try:
            if known is not None and now_ns < known.ts_ns + _WHOLE_NS:
                if abs(cgroupfs.usage(self._hierarchy, found.cgroup) - known.usage) < STEP:
                    return known.working_set
            reading = cgroupfs.read_cgroup(self._hierarchy, found.cgroup)
        except MonitorError:
            return None  # gone, and not yet reported to be
        self._known[uid] = _Read(reading.usage, reading.working_set, now_ns)
        return reading.working_set


class PodFiguresThread:
    """Looks at all pods while nobody else does."""

    def __init__(self, view: View, figures: PodFigures) -> None:
        self._view = view
        self._figures = figures
        self._reader = FileReader(view.hierarchy)
        self._thread = threading.Thread(target=self._run, name="pod figures", daemon=True)
        self._ended = threading.Event()
        self._problem = ""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Have it end; it is not waited for."""
        self._ended.set()

    def look(self) -> float:
        """One look; gives the seconds until the next."""
        if self._view.stats.get("armed"):
            return _LEAST_S  # the flight recorder looks
        began = time.thread_time()
        now_ns = time.monotonic_ns()
        self._figures.note(now_ns, self._reader.read(self._view.pods, now_ns))
        return min(_MOST_S, max(_LEAST_S, _SHARE * (time.thread_time() - began)))

    def _run(self) -> None:
        take_time()
        rest_s = 0.0
        while not self._ended.wait(rest_s):
            try:
                rest_s = self.look()
                self._problem = ""
            except Exception as error:  # noqa: BLE001 - what pods had is of use for words alone, and nothing may end by it
                rest_s, problem = _MOST_S, f"{type(error).__name__}: {error}"
                if problem != self._problem:
                    self._view.log.error("pods could not be looked at; trying again", problem=problem)
                self._problem = problem
