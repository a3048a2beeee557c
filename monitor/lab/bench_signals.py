"""`outrace bench signals`: page cache of several kinds, and a process that needs its memory: which formula saw it?

The kernel says who was right, by what it counted while the process grew: OOM kills, page cache that came back because
it was needed (workingset_refault_file), and the time in which nobody could go on for want of memory (PSI, full). The
formulas only say whether less than the line was available.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitor.errors import MonitorError
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.page_cache import STAT_KEYS
from monitor.kernel.page_cache import number as figure
from monitor.lab import slow_disk
from monitor.lab.bench import Found, Row, bench, number, progress, state_dir
from monitor.lab.child import Hog
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from monitor.lab.slow_disk import SlowDisk
from monitor.lab.truth import unix
from monitor.policy.signals import OF_DOMAIN
from monitor.side.incidents.reader import IncidentReader

SIGNALS = OF_DOMAIN["node"]
NODE_MIB, LINE_MIB = 192, 32
#: In trouble: somebody was OOM-killed, half of what the process took had to be read again, or nobody could go on for a
#: quarter of the time.
REFAULTED, STALLED = 0.5, 0.25
#: How long the process holds what it took, while what was taken from others is missed, or is not.
HOLD_S = 2.0
_REFAULTS = {1: b"\ntotal_workingset_refault_file ", 2: b"\nworkingset_refault_file "}


@dataclass(frozen=True, slots=True)
class Load:
    """``cache``: a hog of page cache, of ``mib`` MiB; then a process takes ``grows`` MiB. ``endless``: it goes on
    reading its file. ``protected``: its pod has memory.min (cgroup v2). ``trouble``: what has to come of it; None: that
    depends on the disk. ``disk``: MiB that its disk writes in a second (0: as many as it can). ``writers``: so many
    pods have a part of the page cache each.
    """

    name: str
    mib: int
    grows: int
    trouble: bool | None
    cache: Mapping[str, int]
    endless: bool = False
    protected: bool = False
    disk: int = 0
    writers: int = 1

    def missing(self, hierarchy: Hierarchy) -> str:
        """Why it cannot be played here, or ""."""
        if self.protected and hierarchy.version != 2:
            return "memory.min is of cgroup v2"
        return slow_disk.problem(hierarchy) if self.disk else ""


LOADS = (
    Load("read three times, not needed", 150, 100, False, {"reread": 3, "sync": 1}),
    Load("read all the time", 110, 110, True, {"reread": 1_000_000, "sync": 1}, endless=True),
    Load("in pipes nobody reads", 110, 110, True, {"reread": 3, "sync": 1, "pin": 1}),
    Load("kept by memory.min", 110, 110, True, {"reread": 3, "sync": 1}, protected=True),
    Load("written, not on the disk yet", 110, 100, None, {"reread": 3}),
    Load("written to a slow disk", 84, 120, True, {"reread": 0}, disk=8, writers=3),
)


@dataclass(frozen=True, slots=True)
class Counted:
    """The kernel's counters of the node: bytes, microseconds."""

    cache: int
    refaults: int
    full_us: int
    oom_kills: int


def counted(node: LabNode, pressure: Path) -> Counted:
    stat = b"\n" + (node.cgroup / "memory.stat").read_bytes()
    version = node.hierarchy.version
    full = next(line for line in pressure.read_text().splitlines() if line.startswith("full"))
    return Counted(
        cache=sum(figure(stat, key) for key in STAT_KEYS[version]),
        refaults=figure(stat, _REFAULTS[version]) * 4096,
        full_us=int(full.rpartition("total=")[2]),
        oom_kills=node.oom_kills(),
    )


class Pressure:
    """PSI of the node's processes: of its own cgroup on v2, of one in the unified hierarchy beside v1."""

    def __init__(self, node: LabNode) -> None:
        self._made: Path | None = None
        if node.hierarchy.version == 2:
            self.path = node.cgroup / "memory.pressure"
            return
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        root = next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)
        if root is None or not (root / "cgroup.procs").exists():
            self.path = Path("/proc/pressure/memory")
            return
        self._made = root / node.cgroup.name
        self._made.mkdir()
        node.also_remove(self._made)
        self.path = self._made / "memory.pressure"

    def join(self, pid: int) -> None:
        if self._made is not None:
            (self._made / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        if self._made is not None:
            self._made.rmdir()


def play(load: Load, directory: Path) -> Row:
    """One run of a load beside a daemon that observes."""
    thresholds = ",".join(f"{signal}<{LINE_MIB}Mi" for signal in SIGNALS)
    with LabNode("bench-signals", NODE_MIB * MIB) as node:
        readers, grower = [node.add_pod(f"reader-{n}") for n in range(load.writers)], node.add_pod("grower")
        with (
            LabDaemon(node, "--eviction-hard", thresholds, state_dir=directory, keep_pins=True) as daemon,
            SlowDisk(node, directory, load.disk * MIB) if load.disk else nullcontext() as disk,
        ):
            pressure = Pressure(node)
            began = time.time()
            if load.protected:
                node.protect(readers[0], load.mib)
            file: dict[str, Any] = {"kind": "file", "mib": load.mib // load.writers, **load.cache}
            if disk is not None:
                file["dir"] = str(disk.path)
            caches = [node.start_hog(reader, **file) for reader in readers]
            for cache in caches:
                pressure.join(cache.pid)
                cache.go()
            if load.endless:
                _until(lambda: counted(node, pressure.path).cache >= load.mib * MIB * 3 // 4, "the file to be read")
                time.sleep(1.0)  # oftener than once
            else:
                for cache in caches:
                    cache.expect("grown")
            if disk is None:
                _until_settled(node, pressure.path)
            hog = node.start_hog(grower, mib=load.grows, rate=100)
            pressure.join(hog.pid)
            before, started, grew = counted(node, pressure.path), time.monotonic(), time.time()
            hog.go()
            killed = _ended(hog)
            took = time.monotonic() - started
            time.sleep(HOLD_S)
            after, lasted = counted(node, pressure.path), time.monotonic() - started
            if disk is not None:
                disk.full_speed()
            for child in (hog, *caches):
                node.end(child)
            pressure.close()
            daemon.stop()
            incidents = list(IncidentReader(daemon.state_dir / "incidents.db").all())
    crossed: dict[str, float] = {}  # when first, in ms since growth began
    for incident in incidents:
        start = unix(incident["start"])
        for step in incident["steps"] if start >= began - 0.001 else ():
            if step["what"] == "crossed":
                at = (start - grew) * 1e3 + step["t_ms"]
                crossed[step["signal"]] = min(at, crossed.get(step["signal"], at))
    refaulted, full = after.refaults - before.refaults, (after.full_us - before.full_us) / 1e6
    kills = after.oom_kills - before.oom_kills
    trouble = bool(kills or killed) or refaulted > REFAULTED * load.grows * MIB or full > STALLED * lasted
    return {
        "name": load.name,
        "crossed": [signal for signal in SIGNALS if signal in crossed],
        "crossed_ms": {signal: round(crossed[signal]) for signal in SIGNALS if signal in crossed},
        "trouble": trouble,
        "expected": load.trouble,
        "oom_kills": kills,
        "refaulted_bytes": refaulted,
        "full_stall_ms": round(full * 1e3),
        "grew_ms": round(took * 1e3),
        "given_back_bytes": max(0, before.cache - after.cache),
        "right": [signal for signal in SIGNALS if (signal in crossed) == trouble],
    }


def _ended(hog: Hog) -> bool:
    """Whether it was killed before it had all; else it has."""
    try:
        hog.expect("grown")
    except MonitorError:
        return True
    return False


def _until(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not check():
        if time.monotonic() > deadline:
            raise MonitorError(f"the bench waited in vain for {what}")
        time.sleep(0.05)


def _until_settled(node: LabNode, pressure: Path) -> None:
    """memory.stat is brought up to date every 2 s."""
    time.sleep(2.2)
    counted(node, pressure)


@bench("name crossed trouble oom_kills refaulted_bytes full_stall_ms given_back_bytes right")
@number("--runs", 3, "Runs of each load.")
def signals(runs: int) -> Found:
    """Compare memory.available, memory.reclaimable and memory.obtainable with what the kernel could do.

    Page cache of several kinds fills a node; then a process takes memory. A formula is right if it falls below its line
    where the kernel was in trouble, and only there. Exit code 1 if a load had another end than it must.
    """
    rows: list[Row] = []
    with LabNode("bench-signals", MIB) as owner, state_dir(owner) as directory:
        for load in LOADS:
            if problem := load.missing(owner.hierarchy):
                progress(f"{load.name}: left out: {problem}")
                continue
            for _ in range(runs):
                rows.append(row := play(load, directory))
                progress(f"{load.name}: below the line {', '.join(row['crossed']) or 'none'}")
    more = {
        "right": {signal: sum(signal in row["right"] for row in rows) for signal in SIGNALS},
        "runs": len(rows),
    }
    return Found(rows, more, int(any(row["expected"] not in (None, row["trouble"]) for row in rows)))
