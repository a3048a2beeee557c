"""Decider, Registry, DiskSignals and PassRecorder of the daemon without a kernel: time and memory can be anything."""

import io
import json
import tempfile
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.replay import Replayed, replay
from monitor.hold import brakes, control, figures
from monitor.hold.control import HoldControl
from monitor.hot import act, decide, moved_pods, pass_timer
from monitor.hot.decide import Decider
from monitor.kernel.domains import Reading
from monitor.link import channel
from monitor.link.counters import SharedStats
from monitor.link.messages import (
    Decision,
    DiskFigures,
    FromHolds,
    HotMessage,
    KubeletEviction,
    PodSeen,
    Softened,
    Suspended,
    ToHolds,
)
from monitor.policy.pending_release import Coming
from monitor.policy.ranking import EvictionOrder
from monitor.policy.releases import era
from monitor.policy.signals import Observation
from monitor.settings.config import RunConfig
from monitor.side.recording import Reader, Writer, header
from monitor.sources import suspension_figures
from monitor.sources.registry import Registry
from tests.replay.stand_ins import StandInBrake, Table

MIB, SECOND = 1 << 20, 10**9
CAPACITY = 1000 * MIB
PODS = [f"uid-{i}" for i in range(5)]
Step = tuple[str, tuple[Any, ...]]  # a method of World and its arguments
DISKS = ("nodefs.available", "pid.available")
#: One page for all examples: nothing here depends on what it counts, and each has a descriptor.
STATS = SharedStats.create()


class World:
    """A hot process without a kernel. Time stands still but for `wait`."""

    def __init__(self, config: RunConfig, directory: Path) -> None:
        self.config, self.directory = config, directory
        self.now_ns, self.working_set = 100 * SECOND, 0
        self.lines: list[dict[str, Any]] = []
        self.sent: list[Any] = []  # decisions
        self.deaf = False
        policy, rules = era(config.policy), config.pass_config(kill_at_once=True)
        self.table = Table()
        self.registry = Registry(self.table, MIB, EvictionOrder(policy.memory_key))
        self.watches: list[Any] = [
            types.SimpleNamespace(
                name=name,
                signal=signal,
                index=-1,
                capacity=CAPACITY,
                thresholds=(mine := [t for t in rules.thresholds if t.signal == signal]),
                lines=tuple(t.quantity(CAPACITY) for t in mine),
                path=None,
                compared=False,
                limited=name == "node",
                hard_line=max((t.quantity(CAPACITY) for t in mine if t.hard), default=0),
                observation=lambda reading, now: Observation(CAPACITY - reading.working_set, CAPACITY, now),
            )
            for name, signal in (("node", "memory.available"), ("kubepods", "allocatableMemory.available"))
        ]
        gauge: Any = types.SimpleNamespace(
            watches=self.watches,
            table=self.table,
            reading=lambda watch: Reading(self.working_set, 0, 0),
            take_capacities=lambda: None,
            known=lambda watch: True,
            arming=types.SimpleNamespace(armed=True),
            is_precise=True,
            recount=lambda: None,
            reread=lambda: None,
            sweep_soon=lambda: None,
            hierarchy=(hierarchy := types.SimpleNamespace(version=2, root=directory)),
        )
        self.hierarchy = hierarchy
        self.fired: Any = None
        self.note = types.SimpleNamespace(reported=lambda: None, begin=lambda *_: None, read=lambda: None)
        self.evictor: Any = types.SimpleNamespace(current=None, begin=self.begin, note=self.note)
        self.evictor.is_stuck = lambda _: False
        self.hurried: list[int] = []
        self.evictor.hurry = lambda: self.hurried.append(self.now_ns)
        self.graces: dict[str, int] = {}  # uid -> when it gets SIGKILL
        self.evictor.grace_ends_ns = lambda uid: self.graces.get(uid, 0)
        self.ready = False  # a victim is prepared: it is signalled before the pass
        self.trigger: Any = types.SimpleNamespace(is_pulled=False, ready=self.prepared)
        self.trigger.disarm = lambda: self.fired
        self.trigger.stand_down = self.trigger.forget = lambda *_: None
        self.coming: dict[str, Coming] = {}
        self.evictor.pending = types.SimpleNamespace(
            active=False, left_in=lambda signal: 0, look=lambda now_ns: self.coming, dropped=lambda *_: False
        )
        outbox: Any = types.SimpleNamespace(
            send=self.take, offer=self.send, log=lambda _, msg, **__: self.logged.append(msg), stats=STATS
        )
        self.brakes: dict[str, StandInBrake] = {}
        self.logged: list[str] = []
        self.told: list[HotMessage] = []  # of holds and suspensions
        about = gauge, self.registry, self.trigger, self.evictor
        self.decider = Decider(replace(config, record="RECORDING"), *about, outbox)
        assert self.decider._recorder is not None
        self.recorder = self.decider._recorder
        self.decider.may_act = True

    def send(self, message: HotMessage) -> bool:
        if not self.deaf:
            self.lines.append(json.loads(channel.encode(message)))
        return not self.deaf

    def brake(self, uid: str, cgroup: Path, *_: object) -> StandInBrake:
        self.brakes[uid] = StandInBrake(self.table, uid, cgroup)
        return self.brakes[uid]

    def take(self, message: HotMessage) -> None:
        if isinstance(message, FromHolds | Suspended):
            self.told.append(message)
        if isinstance(message, Decision):
            self.sent.append(message)

    def prepared(self, uid: str) -> Any:
        return types.SimpleNamespace(uid=uid, kill=lambda: None) if self.ready and self.fired is None else None

    def begin(self, entry: Any, grace_s: int, sent: Any = None) -> Any:
        assert sent is None or (sent.entry, grace_s) == (entry, 0), "another pod was signalled than the pass chose"
        self.evictor.current = types.SimpleNamespace(uid=entry.uid, signalled_ns=self.now_ns, killed_ns=None)
        return self.evictor.current

    @property
    def holds(self) -> HoldControl:
        return self.decider.holds

    # what may happen

    def wait(self, ns: int) -> None:
        self.now_ns += ns

    def put(self, pod: int, priority: int, request: int, qos: str, critical: bool, usage: int) -> None:
        place = self.directory / PODS[pod]
        place.mkdir(exist_ok=True)
        about = (PODS[pod], "ns" if pod else "", f"p{pod}", priority, True, request * MIB, qos, critical, pod * 10)
        entry = self.registry.put(PodSeen(*about, cgroup=str(place), containers={}))
        self.table.sets[entry.index] = usage * MIB
        self.registry.refresh()

    def drop(self, pod: int) -> None:
        self.decider.holds.dropped(PODS[pod])
        self.registry.drop(PODS[pod])

    def run(self, available: int, crossed: bool) -> None:
        self.working_set = CAPACITY - available * MIB
        self.ready = crossed and available % 2 == 0
        self.decider.run_pass(self.now_ns if crossed else 0, self.watches[0] if crossed else None)

    def press(self, available: int) -> None:
        self.wait(SECOND)
        self.run(available, True)

    def leave(self, signals: int, *numbers: int) -> None:
        """Another pod died, or a pending release is over."""
        names = ("memory.available", "allocatableMemory.available")
        self.coming = {name: Coming(*numbers) for i, name in enumerate(names) if signals >> i & 1}

    def disks(self, available: int, order: list[int], over: list[int]) -> None:
        stamp = self.now_ns
        self.decider.take_disk_figures(
            DiskFigures(
                observations={name: [available * MIB, 100 * MIB, stamp] for name in DISKS},
                orders={name: [PODS[i] for i in order] for name in DISKS},
                violations={PODS[i]: f"too much in {i}" for i in over},
                cleaned=False,
            )
        )

    def look(self) -> None:
        """It is time to look at the pods that are held."""
        if self.config.holds and self.holds.due_ns() is not None and self.holds.follow(self.now_ns):
            self.decider.run_pass()

    def tell(self, message: ToHolds) -> None:
        """The helper has seen something of the kubelet."""
        if isinstance(message, KubeletEviction):
            self.decider.holds.take_eviction(message)
        elif isinstance(message, Softened):
            self.decider.holds.take_softened(message)

    def end(self, pod: int, fires: bool) -> None:
        """The eviction under way is over; the kernel's trigger may have taken a pod for the next."""
        current, self.evictor.current = self.evictor.current, None
        if current is not None:
            self.decider.holds.went(current.uid, killed=fires)
        if current is not None and current.uid in self.registry.by_uid:
            self.registry.set_evicted(self.registry.by_uid[current.uid], True)
        self.fired = self.registry.by_uid.get(PODS[pod]) if fires and self.config.trigger == "kernel" else None

    def pull(self, pulled: bool) -> None:
        """The kernel's trigger was pulled, or its record was read."""
        self.trigger.is_pulled = pulled

    def lose(self, silently: bool) -> None:
        """A message does not arrive: the hot process knows, or the helper lost it and reports that later."""
        if silently:
            if self.lines:
                self.lines.pop()
            self.recorder.restart()
        else:
            self.deaf = not self.deaf

    def recording(self, path: Path) -> bytes:
        writer = Writer(path, header(self.config, 1, 0))
        lines = []
        for number, message in enumerate(self.lines):
            line = {"n": number, "k": message["t"], "v": {k: v for k, v in message.items() if k != "t"}}
            lines.append(json.dumps(line).encode())
        for first in range(0, len(lines), 3):
            writer.write(first, lines[first : first + 3])
        writer.close()
        return path.read_bytes()


@contextmanager
def clocked(world: World) -> Iterator[None]:
    """Meanwhile the daemon's modules have the world's clock."""
    clock = types.SimpleNamespace(monotonic_ns=lambda: world.now_ns, time=lambda: 0.0, thread_time_ns=lambda: 0)
    with pytest.MonkeyPatch.context() as patch:
        held = brakes, control, figures
        for module in (act, decide, moved_pods, pass_timer, suspension_figures, *held):
            patch.setattr(module, "time", clock)
        patch.setattr(brakes, "PodBrake", world.brake)
        patch.setattr(brakes, "cgroup_procs", types.SimpleNamespace(empty=lambda *_: False))
        yield


def fresh() -> Path:
    """A directory for each example of a law; gone with the session."""
    return Path(tempfile.mkdtemp())


def lived(config: RunConfig, script: list[Step], directory: Path) -> World:
    world = World(config, directory)
    with clocked(world):
        for name, arguments in script:
            getattr(world, name)(*arguments)
    return world


def go_on(world: World) -> None:
    """One more pass, all of which arrives."""
    with clocked(world):
        world.run(500, False)
        world.recorder.restart()
        world.run(500, False)


def replayed(data: bytes) -> Replayed:
    return replay(Reader(io.BytesIO(data), "FILE"))


_ABOUT = ("id", "signal", "kind", "domain", "quantity", "available", "capacity", "grace_s", "given_s")
_WHO = ("braked", "message", "pod", "name", "observed", "trigger", "crossed_ns", "decided_ns")
_NOT_OF_LIMITS = ("domain", "quantity", "available", "capacity")


def recorded(message: Decision | Mapping[str, Any]) -> dict[str, Any]:
    """What a recording keeps of a `decision` message or its log line, and a replay makes again: not what only the
    daemon measures.
    """
    if isinstance(message, Decision):
        others = ["message"] if message.signal is not None else [*_NOT_OF_LIMITS]
        others += [] if message.braked else ["braked"]
        message = {key: value for key, value in message._asdict().items() if key not in others}
    return {key: message[key] for key in (*_ABOUT, *_WHO) if key in message}
