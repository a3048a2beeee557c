"""Growth up to a threshold as the daemon sampled it, and when the kernel saw the threshold crossed."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitor.errors import ConfigError, MonitorError
from monitor.kernel import cgroupfs
from monitor.lab.child import Child, Hog
from monitor.lab.daemon import LabDaemon
from monitor.lab.growth_loads import HARD_MIB, NODE_MIB, SOFT_MIB, GrowthLoad, Part, room_mib
from monitor.lab.node import MIB, LabNode
from monitor.race.codec import Record, RecordError
from monitor.race.events import NODE, Crossing, Event, Sample, event_from_json
from monitor.race.forecast import Points
from monitor.side.recording import Reader

#: A run that has not crossed by then is over: it has no crossing.
_LONGEST_S = 75.0
#: Between two runs on one node: memory comes back, and the episode is over.
_REST_S = 4.0
#: Two looks at whether the hard threshold is crossed.
_LOOK_S = 0.05
#: Written into the file, so that another one is told.
_FORMAT = "outrace growth runs 1"


@dataclass(frozen=True, slots=True)
class Run(Record):
    """One load up to its end. ``points``: (ns from the run's start, bytes of working set of the node), as the daemon
    had them for its forecasts. ``levels``: working set at which each threshold is crossed. ``crossed``: when that was,
    by the kernel; None: it was not. ``end_ns``: when the run was over.
    """

    load: str
    run: int
    points: tuple[tuple[int, int], ...]
    levels: tuple[int, ...]
    crossed: tuple[int | None, ...]
    end_ns: int


def play(load: GrowthLoad, first: int, runs: int, directory: Path) -> list[Run]:
    """``runs`` runs of a load, numbered from ``first``, under one daemon that observes. MonitorError if it fails.

    ``directory``: for what the load writes, and the daemon's recording.
    """
    thresholds = (
        *("--eviction-hard", f"memory.available<{NODE_MIB - HARD_MIB}Mi"),
        *("--eviction-soft", f"memory.available<{NODE_MIB - SOFT_MIB}Mi"),
        *("--eviction-soft-grace-period", "memory.available=10m"),
    )
    began: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory(prefix=f"{load.name}-", dir=directory) as name:
        record = Path(name) / "recording"
        with (
            LabNode(f"growth-{load.name}", NODE_MIB * MIB) as node,
            LabDaemon(node, *thresholds, "--record", str(record)) as daemon,
        ):
            for run in range(first, first + runs):
                began.append(_one(load, run, node, Path(name)))
            daemon.stop()
        events = list(_events(record))
    return [_run(load.name, run, events, *span) for run, span in enumerate(began, first)]


def _one(load: GrowthLoad, number: int, node: LabNode, directory: Path) -> tuple[int, int]:
    """One run; when it began and ended."""
    rng = random.Random(f"{load.name} {number}")
    base = Hog(cgroupfs.make(node.cgroup / "base"), mib=load.base_mib)
    children: list[Child] = [base]
    node.children.append(base)
    try:
        base.go()
        base.expect("grown")
        time.sleep(rng.uniform(1.0, 2.0))  # where in the second between two samples growth begins
        began = time.monotonic()
        parts = sorted(load.parts(rng, room_mib(load)), key=lambda part: part.after_s)
        while time.monotonic() < began + _LONGEST_S:
            while parts and time.monotonic() >= began + parts[0].after_s:
                children.append(_start(parts.pop(0), node, f"{load.name}-{number}-{len(children)}", directory))
            if cgroupfs.read_cgroup(node.hierarchy, node.cgroup).working_set >= (HARD_MIB + 8) * MIB:
                break
            time.sleep(_LOOK_S)
        ended = time.monotonic()
    finally:
        for child in children:
            child.close_stdin()
        for child in children:
            child.wait()
            node.end(child)
        for pod in list(node.pods.values()):
            node.remove_pod(pod)
    time.sleep(_REST_S)
    return round(began * 1e9), round(ended * 1e9)


def _start(part: Part, node: LabNode, name: str, directory: Path) -> Child:
    pod = node.add_pod(name)
    if part.worker == "load":
        return node.start(pod, "load", **{**part.options, "dir": directory / name})
    options: dict[str, Any] = {"dir": str(directory), **part.options}
    hog = node.start_hog(pod, **options)
    hog.go()
    return hog


def _events(record: Path) -> Iterator[Event]:
    with record.open("rb") as file:
        reader = Reader(file, record.name)
        for one in reader.records():
            if one["k"] == "event" and one["v"].get("event") in ("sample", "crossing"):
                yield event_from_json(one["v"])
        if reader.damage is not None:
            raise MonitorError(str(reader.damage))


def _run(load: str, number: int, events: Iterable[Event], began: int, ended: int) -> Run:
    """The part of a recording that is of one run."""
    points = Points()
    levels = (SOFT_MIB * MIB, HARD_MIB * MIB)
    crossed: list[int | None] = [None, None]
    for event in events:
        if not began - _REST_NS <= event.ts_ns <= ended + _LATE_NS:
            continue
        if isinstance(event, Sample) and event.domain == NODE:
            points.add(event.ts_ns - began, event.working_set)
        elif isinstance(event, Crossing) and event.domain == NODE and event.ts_ns >= began:
            which = int(event.hard)
            if crossed[which] is None:
                crossed[which] = event.ts_ns - began
    return Run(load, number, tuple(points), levels, tuple(crossed), ended - began)


_REST_NS, _LATE_NS = 1_000_000_000, 200_000_000


def save(runs: Sequence[Run], path: Path) -> None:
    """Raises OSError."""
    text = json.dumps({"format": _FORMAT, "runs": [run.to_json() for run in runs]}, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def load_runs(path: Path) -> list[Run]:
    """What `save` wrote. Raises ConfigError naming the file."""
    remedy = "name a file that `outrace bench forecast --save` wrote"
    try:
        found = json.loads(gzip.decompress(path.read_bytes()))
        if found["format"] != _FORMAT:
            raise ConfigError(f"{path}: is of format {found['format']!r}", remedy)
        return [Run.from_json(run) for run in found["runs"]]
    except (OSError, EOFError, ValueError, KeyError, TypeError, RecordError) as error:
        raise ConfigError(f"{path}: {error}", remedy) from None
