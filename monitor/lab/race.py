"""One race on the real kernel: hogs in a pod of a lab node against its limit, with or without a monitor; in mode hold
(`run_hold`) they are braked at the crossing, and let go on.

The winner is what killed: the OOM killer (the kernel's own counter moved) or the watcher (the hogs are dead and the
counter did not move).
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from monitor.cli.output import format_bytes
from monitor.errors import ConfigError, MonitorError
from monitor.lab.child import PATIENCE_S, Child, until
from monitor.lab.daemon import LabDaemon, Record
from monitor.lab.node import MIB, LabNode, LabPod

#: A race at full speed is over in a second; one that a slow poller loses by sleeping too.
RACE_TIMEOUT_S = 180.0
_OOM_KILL = "the kernel's OOM killer killed a process"
_OF_VICTIM = ("victim_pid", "victim_comm", "oom_score_adj", "invoker_pid", "pod_name")


@dataclass(frozen=True, slots=True)
class RaceResult:
    """`detection_us`: crossing to decision; `kill_us`: to SIGKILL sent; None where no record has it.
    `headroom_bytes`: between the highest usage and the limit.
    """

    winner: str
    detection_us: float | None = None
    kill_us: float | None = None
    evicted: str | None = None
    oom_victims: list[dict[str, Any]] = field(default_factory=list)
    headroom_bytes: int = 0
    trigger: str | None = None


def spread(results: Sequence[object], name: str) -> tuple[Any, Any, Any]:
    """The least, the median and the most of the figures of this name that results have; None where none has one."""
    found = [figure for one in results if (figure := getattr(one, name)) is not None]
    return (min(found), statistics.median(found), max(found)) if found else (None, None, None)


class Poller(NamedTuple):
    """What kills when less than ``margin`` bytes are available, by polling in a process of its own."""

    margin: int
    interval_us: int


def run_race(node: LabNode, pod: LabPod, watcher: LabDaemon | Poller | None, hogs: int, kind: str) -> RaceResult:
    """Start ``hogs`` processes in ``pod`` that want twice the node between them, and see what kills them. ``watcher``:
    the daemon under test, or what polls instead; None: the race is left to the kernel.

    Raises MonitorError when the race does not end.
    """
    each = 2 * node.memory_bytes // MIB // hogs + 64
    running = [node.start_hog(pod, mib=each, kind=kind) for _ in range(hogs)]
    since = 0
    with ExitStack() as stack:
        for hog in running:
            stack.callback(node.end, hog)
        if isinstance(watcher, Poller):
            phase = random.randrange(watcher.interval_us)  # where in its interval the race finds it
            options = {**watcher._asdict(), "phase_us": phase, "kill": [hog.pid for hog in running]}
            poller = node.start(node.cgroup, "monitor.lab.workers:poller", **options)
            stack.callback(node.end, poller)
            poller.go()
        elif watcher is not None:
            since = len(watcher.log)
        node.reset_peak()
        before = node.oom_kills()
        for hog in running:
            hog.go()
        until(
            lambda: node.oom_kills() > before or all(hog.process.poll() is not None for hog in running),
            f"the end of the race on {node.cgroup.name}",
            RACE_TIMEOUT_S,
        )
        peak = node.peak()
        killed = node.oom_kills() - before
    known = _told(watcher, since, evicted=not killed) if isinstance(watcher, LabDaemon) else {}
    if killed and not known.get("oom_victims"):
        known["oom_victims"] = [{"victim_pid": hog.pid} for hog in running if hog.process.returncode == -9][:killed]
    return RaceResult("oom" if killed else "eviction", headroom_bytes=max(0, node.memory_bytes - peak), **known)


def _told(daemon: LabDaemon, since: int, evicted: bool) -> dict[str, Any]:
    """Fields of RaceResult by the daemon's log from ``since`` on. Raises MonitorError."""
    if evicted:
        daemon.told("evicted", since=since)
    else:
        # The kernel won: the monitor's own record of that arrives through its log a moment later.
        with suppress(MonitorError):
            daemon.told(_OOM_KILL, 2.0, since)
    records = daemon.log[since:]
    out: dict[str, Any] = {
        "oom_victims": [{key: r.get(key) for key in _OF_VICTIM} for r in records if r.get("msg") == _OOM_KILL]
    }
    decision = next((r for r in records if r.get("msg") == "evicting"), None)
    if decision is not None:
        out |= {"evicted": decision["pod"], "trigger": decision["trigger"]}
        if decision.get("crossed_ns"):
            out["detection_us"] = (decision["decided_ns"] - decision["crossed_ns"]) / 1000
            out["kill_us"] = (decision["signalled_ns"] - decision["crossed_ns"]) / 1000
    return out


def populate(node: LabNode) -> LabPod:
    """Three pods, one of each QoS class, with a little memory in the first two; returns the one the hogs go into."""
    guaranteed = node.add_pod("database", "Guaranteed", request=64 * MIB, namespace="demo")
    burstable = node.add_pod("web", "Burstable", request=32 * MIB, namespace="demo")
    victim = node.add_pod("batch", "BestEffort", namespace="demo")
    node.fill(guaranteed, 32)
    node.fill(burstable, 16)
    return victim


# In mode hold the node is full of another pod's memory. The pod that grows is held; then that other pod gives its
# memory back, so that the threshold is clear again, with room for everything the held pod still wants. A held pod is
# undamaged if all its processes then take the rest and every byte is what was written (monitor/lab/hog.py).

#: What the pods of `populate` hold, with their interpreters.
_RESIDENT = 50 * MIB
#: What has to be free beside a load when all is over, at the least: 4 interpreters have 20 MiB.
_ROOM = 32 * MIB
#: Between two looks at what no event announces, and at what rarely happens: on an emulated CPU a look takes 1 ms.
_LOOK_S, _SELDOM_S = 0.002, 0.05
#: In which the daemon counts the pods again, also on an emulated CPU; and for which a hold is watched.
_SETTLE_S, _WATCH_S = 0.3, 1.0
_HELD, _ENDED = "pod held", "hold ended"
#: What a brake may write, in the cgroups of a pod.
_FILES = (
    *("memory.limit_in_bytes", "memory.oom_control", "freezer.state"),
    *("memory.max", "memory.high", "memory.oom.group", "cgroup.freeze", "pids.max"),
)


def sizes(node: int, margin: int) -> tuple[int, int]:
    """Bytes of the ballast, which it gives back, and of the load, which is too much beside the ballast, and not without
    it. ConfigError where a threshold so far from the limit leaves too little for a load that begins before it is met.
    """
    load = node - _RESIDENT - margin - max(node // 16, _ROOM)
    over = 3 * node // 16  # by which it is too much
    if load < 64 * MIB or load - over - margin < _ROOM:
        raise ConfigError(f"--margin {format_bytes(margin)} is more than leaves room on the node", "give less")
    return node + over - _RESIDENT - load, load


@dataclass
class HoldResult:
    """What came of one race. Bytes and microseconds; None: not known."""

    held: bool = False
    brake: str | None = None
    brake_us: float | None = None  # crossing to brake in force
    grew_bytes: int | None = None  # of the pod, after it was held and while it was watched
    left_bytes: int | None = None  # of the node, at the least
    ended: str | None = None
    oom_kills: int = 0
    killed: int = 0  # processes of the pod that did not live to the end
    right: bool = False  # all of them went on, and what they had is what they had written
    failed_calls: int = 0  # system calls that failed or came back short for want of memory
    evictions: list[str] = field(default_factory=list)  # that outrace began: their messages
    changed: list[str] = field(default_factory=list)  # files of the pod that are not as before

    @property
    def is_whole(self) -> bool:
        """Whether its processes live, with what they wrote, and outrace evicted no pod."""
        return self.right and not self.killed and not self.evictions

    def trouble(self) -> str:
        """What came of a race without a hold, or with damage to a pod; "" of one that is as it has to be."""
        if self.held and self.is_whole and not self.oom_kills and not self.changed:
            return ""
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items() if value not in (None, []))


class HoldStage:
    """A lab node with pods of every QoS class, one of them the ballast, and a pod that is held."""

    def __init__(self, node: LabNode, margin: int) -> None:
        self.node = node
        ballast, self._load = sizes(node.memory_bytes, margin)
        self.victim = populate(node)
        # What it uses is what it requests: the policy takes it last.
        archive = node.add_pod("archive", "Guaranteed", request=2 * ballast, namespace="demo")
        self._ballast = node.start_hog(archive, mib=ballast // MIB)
        self._before = self._snapshot()
        self._numbers = count(1)

    def renew(self, daemon: LabDaemon) -> None:
        """Another pod in the place of the victim: one that was evicted is not held again, and of one pod the daemon
        reports one hold a minute.
        """
        self.node.remove_pod(self.victim)
        self.victim = self.node.add_pod(f"batch-{next(self._numbers)}", namespace="demo")
        self._before = self._snapshot()
        daemon.wait_for_pods(self.victim)

    @contextmanager
    def growing(self, kind: str, number: int) -> Iterator[list[Child]]:
        """The ballast fills the node again, and then processes of the victim take memory, until they are ended."""
        self._ballast.go()
        self._ballast.expect("grown")
        time.sleep(_SETTLE_S)  # a pod that grew just before the crossing is held too
        mib = self._load // MIB // number
        hogs = [self.node.start_hog(self.victim, kind=kind, mib=mib, seed=seed) for seed in range(number)]
        try:
            for hog in hogs:
                hog.go()
            yield hogs
        finally:
            self.node.thaw()
            for hog in hogs:
                self.node.end(hog)

    def unload(self) -> None:
        """The ballast gives its memory back: the threshold is clear."""
        self._ballast.free()

    def watch(self, held: Record) -> tuple[int, int]:
        """Bytes by which the held pod grows while it is watched, and the least that is left on the node."""
        usage, left = 0, self.node.memory_bytes
        deadline = time.monotonic() + _WATCH_S
        while not usage or time.monotonic() < deadline:
            usage = max(usage, self.node.usage(self.victim))
            left = min(left, self.node.memory_bytes - self.node.usage())
            time.sleep(_LOOK_S)
        return usage - int(held["usage"]), left

    def _snapshot(self) -> dict[Path, str]:
        """What the files say that a brake may write, of the pod that is held and its containers."""
        directories = [self.victim.cgroup, *self.victim.containers.values()]
        directories += [path for path in map(self.node.in_freezer, directories) if path is not None]
        found = {}
        for path in (directory / name for directory in directories for name in _FILES):
            with suppress(OSError):  # this kernel has no such file
                found[path] = path.read_text().partition("under_oom")[0].strip()
        return found

    def changed(self) -> list[str]:
        """A line for each of these files that is not as before."""
        after = self._snapshot()
        return [
            f"{path} is {after.get(path, 'gone')!r} and was {text!r}"
            for path, text in self._before.items()
            if after.get(path) != text
        ]


def run_hold(stage: HoldStage, daemon: LabDaemon, kind: str, number: int) -> HoldResult:
    """``number`` processes of load ``kind`` against the limit, held, watched, and let go on.

    Raises MonitorError where outrace holds no pod and no process ends either.
    """
    node = stage.node
    stage.renew(daemon)
    since, before = len(daemon.log), node.oom_kills()

    def told(message: str) -> list[Record]:
        return [r for r in daemon.log[since:] if r.get("msg") == message and not r.get("resent")]

    def over() -> bool:
        held = daemon.wait_for(lambda r: r.get("msg") == _HELD and not r.get("resent"), _SELDOM_S, since)
        return bool(held) or node.oom_kills() > before or any(hog.process.poll() is not None for hog in hogs)

    with stage.growing(kind, number) as hogs:
        until(over, "a hold")
        found = HoldResult()
        for held in told(_HELD)[:1]:
            found.held, found.brake = True, held["brake"]
            if held["crossed_ns"]:
                found.brake_us = (held["at_ns"] - held["crossed_ns"]) / 1000
            found.grew_bytes, found.left_bytes = stage.watch(held)
        stage.unload()
        found.right, found.failed_calls = go_on(hogs)
        until(lambda: {r["id"] for r in told(_HELD)} <= {r["id"] for r in told(_ENDED)}, "the end of a hold")
        found.ended = next((record["why"] for record in reversed(told(_ENDED))), None)
        found.killed = sum(hog.process.poll() is not None for hog in hogs)
        found.oom_kills = node.oom_kills() - before
        found.evictions = [f"{r['pod']} evicted: {r['message']}" for r in told("evicting")]
        found.changed = stage.changed()  # before the node is thawed
        return found


def go_on(hogs: Sequence[Child], patience_s: float = PATIENCE_S) -> tuple[bool, int]:
    """Whether all take the rest, and have what they wrote; and how many of their calls failed for want of memory."""
    failed = 0
    for hog in hogs:
        answer = hog.answer(patience_s)  # none of one that is dead
        if answer.startswith("grown"):
            failed += int(answer.split()[1])
            hog.send("check")
    answers = [hog.answer() for hog in hogs]
    return all(answer == "right" for answer in answers), failed
