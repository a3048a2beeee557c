"""Any stream of passes through the daemon's own Decider, Registry, DiskSignals and PassRecorder is decided again alike.

What needs a kernel (counters, signals) is stood in for, so that time and memory can be anything.
"""

import io
import json
import types
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.hot import act, brake, decide, early_kill, moved_pods, pass_timer
from monitor.hot.decide import Decider
from monitor.hot.disk_signals import DiskSignals
from monitor.hot.pass_record import SNAPSHOT_NS, PassRecorder, RecordedEvictionOrder
from monitor.hot.registry import Registry
from monitor.kernel.domains import Reading
from monitor.link import codec
from monitor.link.counters import SharedStats
from monitor.link.messages import Decision, DiskFigures, HotMessage, PodSeen
from monitor.policy.patience import Coming
from monitor.policy.releases import ERAS, era
from monitor.replay import Replayed, replay, with_changes
from monitor.settings.config import RunConfig
from monitor.side.recorder import header
from monitor.side.recording import Reader, Writer
from tests.replay.decided import recorded

MIB, SECOND = 1 << 20, 10**9
CAPACITY = 1000 * MIB
PODS = [f"uid-{i}" for i in range(5)]
DISKS = ("nodefs.available", "pid.available")


#: One page for all examples: nothing here depends on what it counts, and each has a descriptor.
STATS = SharedStats.create()


class Table:
    """Working sets by index."""

    def __init__(self) -> None:
        self.sets: dict[int, int] = {}

    def check_room(self, entries: int) -> None:
        assert entries

    def add(self, cgroup_id: int, flags: int = 0, step: int = 0, path: Path | None = None) -> int:
        return cgroup_id

    def remove(self, cgroup_id: int) -> None:
        self.sets.pop(cgroup_id, None)

    def synced(self, index: int) -> bool:
        return True

    def working_set(self, index: int) -> int:
        return self.sets.get(index, 0)

    def working_sets(self, indexes: list[int]) -> list[int]:
        return [self.working_set(index) for index in indexes]

    def crossed(self, index: int) -> int:
        return 0


class World:
    """A hot process without a kernel. Time stands still but for `wait`."""

    def __init__(self, config: RunConfig, directory: Path) -> None:
        self.config, self.directory = config, directory
        self.now_ns, self.working_set = 100 * SECOND, 0
        self.lines: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []  # decisions
        self.deaf = False
        policy, rules = era(config.policy), config.pass_config(kill_at_once=True)
        self.table = Table()
        eviction_order = RecordedEvictionOrder(policy.memory_key)
        self.registry = Registry(cast(Any, self.table), MIB, eviction_order)
        self.recorder = PassRecorder(eviction_order, self.send)
        self.watches: list[Any] = [
            types.SimpleNamespace(
                name=name,
                signal=signal,
                index=-1,
                capacity=CAPACITY,
                thresholds=(mine := [t for t in rules.thresholds if t.signal == signal]),
                lines=tuple(t.quantity(CAPACITY) for t in mine),
                path=None,
                limited=name == "node",
                hard_line=max((t.quantity(CAPACITY) for t in mine if t.hard), default=0),
                observation=lambda reading, now: decide.Observation(CAPACITY - reading.working_set, CAPACITY, now),
            )
            for name, signal in (("node", "memory.available"), ("kubepods", "allocatableMemory.available"))
        ]
        gauge = types.SimpleNamespace(
            watches=self.watches,
            table=self.table,
            reading=lambda watch: Reading(self.working_set, 0, 0),
            take_capacities=lambda: None,
            known=lambda watch: True,
            arming=types.SimpleNamespace(armed=True),
            is_precise=True,
            recount=lambda: None,
        )
        self.fired: Any = None
        self.note = types.SimpleNamespace(reported=lambda: None, begin=lambda *_: None)
        self.evictor = types.SimpleNamespace(current=None, begin=self.begin, hurry=lambda: None, note=self.note)
        self.evictor.holds = lambda uid: False
        disks = DiskSignals(config, policy, lambda message: None)
        self.ready = False  # a victim is prepared: it is signalled before the pass
        self.trigger = types.SimpleNamespace(
            disarm=lambda: self.fired,
            was_prepared=True,
            is_pulled=False,
            ready=self.prepared,
            rest=lambda: None,
        )
        self.coming: dict[str, Coming] = {}
        patience = types.SimpleNamespace(active=False, left_in=lambda signal: 0, look=lambda now_ns: self.coming)
        parts = (config, rules, gauge, self.registry, self.trigger, disks, self.evictor, patience, STATS, self.take)
        self.decider = Decider(*cast(Any, parts), self.recorder)
        self.decider.may_act = True

    def send(self, message: HotMessage) -> bool:
        if not self.deaf:
            self.lines.append(json.loads(codec.encode(message)))
        return not self.deaf

    def take(self, message: HotMessage) -> None:
        if isinstance(message, Decision):
            self.sent.append(message)

    def prepared(self, uid: str) -> Any:
        return types.SimpleNamespace(uid=uid, kill=lambda: None) if self.ready and self.fired is None else None

    def begin(self, entry: Any, grace_s: int, sent: Any = None) -> Any:
        assert sent is None or (sent.entry, grace_s) == (entry, 0), "another pod was signalled than the pass chose"
        self.evictor.current = types.SimpleNamespace(uid=entry.uid, signalled_ns=self.now_ns, killed_ns=None)
        return self.evictor.current

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
        self.registry.drop(PODS[pod])

    def run(self, available: int, crossed: bool) -> None:
        self.working_set = CAPACITY - available * MIB
        self.ready = crossed and available % 2 == 0
        self.decider.run_pass(self.now_ns if crossed else 0, self.watches[0] if crossed else None)

    def press(self, available: int) -> None:
        self.wait(SECOND)
        self.run(available, True)

    def leave(self, signals: int, *numbers: int) -> None:
        """Somebody else died, or what was coming is back."""
        names = ("memory.available", "allocatableMemory.available")
        self.coming = {name: Coming(*numbers) for i, name in enumerate(names) if signals >> i & 1}

    def disks(self, available: int, order: list[int], over: list[int]) -> None:
        stamp = self.now_ns
        self.decider.take_slow(
            DiskFigures(
                observations={name: [available * MIB, 100 * MIB, stamp] for name in DISKS},
                orders={name: [PODS[i] for i in order] for name in DISKS},
                violations=[{"uid": PODS[i], "message": f"too much in {i}"} for i in over],
                reclaimed=[],
            )
        )

    def end(self, pod: int, fires: bool) -> None:
        """The eviction under way is over; the kernel's trigger may have taken a pod for the next."""
        current, self.evictor.current = self.evictor.current, None
        if current is not None and current.uid in self.registry.by_uid:
            self.registry.set_evicted(self.registry.by_uid[current.uid], True)
        self.fired = self.registry.by_uid.get(PODS[pod]) if fires and self.config.trigger == "kernel" else None

    def pull(self, pulled: bool) -> None:
        """The kernel's trigger was pulled, or its record was read."""
        self.trigger.is_pulled = pulled

    def lose(self, silently: bool) -> None:
        """A message does not arrive: the hot process knows, or the side lost it and says so later."""
        if silently:
            if self.lines:
                self.lines.pop()
            self.recorder.restart()
        else:
            self.deaf = not self.deaf

    def forget(self) -> None:
        """A new recording begins."""
        self.lines.clear()
        self.recorder.restart()

    def recording(self, path: Path) -> bytes:
        writer = Writer(path, header(self.config, 1, 0))
        for number, message in enumerate(self.lines):
            line = {"n": number, "k": message["t"], "v": {k: v for k, v in message.items() if k != "t"}}
            writer.add(number, json.dumps(line).encode())
            if number % 3 == 0:
                writer.flush()
        writer.close()
        return path.read_bytes()


pods = st.integers(0, len(PODS) - 1)
amounts = st.integers(0, 300)
steps = {
    "wait": st.tuples(st.sampled_from([5_000_000, 21_000_000, SECOND, 11 * SECOND, SNAPSHOT_NS])),
    "put": st.tuples(
        pods,
        st.integers(-1, 2),
        amounts,
        st.sampled_from(["Guaranteed", "Burstable", "BestEffort"]),
        st.booleans(),
        amounts,
    ),
    "drop": st.tuples(pods),
    "run": st.tuples(st.integers(-10, 300), st.booleans()),
    "press": st.tuples(st.integers(1, 90)),
    "leave": st.tuples(
        st.integers(0, 3),
        st.integers(0, 100 * MIB),
        st.sampled_from([0, 10_000_000, 200_000_000]),
        st.integers(-MIB, 20 * MIB),
        st.sampled_from([0, 300_000, 10_000_000]),
        st.integers(-MIB, MIB),
        st.sampled_from([0, 300_000]),
        st.just(512 << 10),
    ),
    "disks": st.tuples(st.integers(0, 20), st.lists(pods, unique=True), st.lists(pods, unique=True, max_size=2)),
    "end": st.tuples(pods, st.booleans()),
    "pull": st.tuples(st.booleans()),
}
calls = st.one_of([st.tuples(st.just(name), arguments) for name, arguments in steps.items()])
losses = st.tuples(st.just("lose"), st.tuples(st.booleans()))
configs = st.builds(
    RunConfig,
    enforce=st.booleans(),
    trigger=st.sampled_from(["user", "kernel"]),
    policy=st.sampled_from(ERAS),
    compat=st.sampled_from(["", "kubelet-1.36"]).map(lambda compat: compat or RunConfig().compat),
    eviction_hard=st.just({"memory.available": "100Mi", "nodefs.available": "10%"}),
    eviction_soft=st.sampled_from([{}, {"memory.available": "200Mi"}]),
    eviction_soft_grace_period=st.just({"memory.available": "5s"}),
    eviction_minimum_reclaim=st.sampled_from([{}, {"memory.available": "50Mi"}]),
    eviction_max_pod_grace_period_s=st.sampled_from([-1, 0, 7]),
    eviction_pressure_transition_period_ns=st.sampled_from([0, 300 * SECOND]),
    enforce_node_allocatable=st.sampled_from([(), ("pods",)]),
)

#: Somebody to evict is there from the beginning on.
BEGIN: list[tuple[str, tuple[Any, ...]]] = [
    ("put", (0, 0, 0, "BestEffort", False, 70)),
    ("put", (1, 1, 10, "Burstable", False, 200)),
    ("run", (250, False)),
]
#: The first of them takes what is short then, so that evicting it helps.
GROWN: tuple[str, tuple[Any, ...]] = ("put", (0, 0, 0, "BestEffort", False, 270))


def lived(config: RunConfig, script: list[tuple[str, tuple[Any, ...]]], directory: Path) -> World:
    world = World(config, directory)
    clock = types.SimpleNamespace(monotonic_ns=lambda: world.now_ns, time=lambda: 0.0)
    with pytest.MonkeyPatch.context() as patch:
        for module in (decide, act, early_kill, moved_pods, pass_timer):
            patch.setattr(module, "time", clock)
        patch.setattr(brake, "time", clock)
        for name, arguments in script:
            getattr(world, name)(*arguments)
    return world


def replayed(data: bytes, **changes: Any) -> Replayed:
    return replay([Reader(io.BytesIO(data), "FILE")], with_changes(**changes))


@given(configs, st.lists(calls, min_size=1, max_size=40))
@settings(max_examples=300, deadline=None)
def test_a_replay_decides_as_the_daemon_did(
    tmp_path_factory: pytest.TempPathFactory, config: RunConfig, script: list[tuple[str, tuple[Any, ...]]]
) -> None:
    directory = tmp_path_factory.mktemp("law")
    world = lived(config, [*BEGIN, *script, ("run", (50, True))], directory)
    data = world.recording(directory / "rec")
    found = replayed(data)
    assert found.differences == []
    assert found.damage is None
    # Nothing is told of a pod over its own limit before the first pass: the recording begins with that.
    late = [m for m in world.sent if m.id > world.lines[1]["last_id"]]
    sent = [recorded(message) for message in late]
    assert json.dumps(found.decisions, sort_keys=True) == json.dumps(sent, sort_keys=True)
    assert found.passes == sum(1 for message in world.lines if message["t"] == "pass")
    assert replayed(data).to_json() == found.to_json()


@given(configs, st.lists(st.one_of(calls, losses), min_size=1, max_size=60))
@settings(max_examples=300, deadline=None)
def test_after_a_gap_a_replay_goes_on_from_the_next_snapshot(
    tmp_path_factory: pytest.TempPathFactory, config: RunConfig, script: list[tuple[str, tuple[Any, ...]]]
) -> None:
    directory = tmp_path_factory.mktemp("law")
    world = lived(config, [*BEGIN, *script], directory)
    world.deaf = False
    _go_on(world)
    data = world.recording(directory / "rec")
    found = replayed(data)
    assert found.differences == []
    assert found.damage is None
    assert found.passes >= 1  # the last at least
    sent = [json.dumps(recorded(message), sort_keys=True) for message in world.sent]
    assert {json.dumps(one, sort_keys=True) for one in found.decisions} <= set(sent)


def _go_on(world: World) -> None:
    """One more pass, all of which arrives."""
    clock = types.SimpleNamespace(monotonic_ns=lambda: world.now_ns, time=lambda: 0.0)
    with pytest.MonkeyPatch.context() as patch:
        for module in (decide, act, early_kill, moved_pods, pass_timer):
            patch.setattr(module, "time", clock)
        patch.setattr(brake, "time", clock)
        world.run(500, False)
        world.recorder.restart()
        world.run(500, False)


def test_more_pods_than_a_packet_takes(tmp_path: Path) -> None:
    world = lived(RunConfig(), [("run", (500, False))], tmp_path)
    for i in range(600):
        place = tmp_path / f"p{i}"
        place.mkdir()
        world.registry.put(PodSeen(f"u{i}", "a" * 60, f"{i}" * 60, 0, True, 0, "B", False, 1, str(place), {}))
    world.registry.refresh()
    world.recorder.restart()
    _go_on(world)
    assert max(len(json.dumps(message)) for message in world.lines) < 128 * 1024
    whole = [message for message in world.lines if message["t"] == "ranking"][-3:]
    assert [message["whole"] for message in whole] == [True, False, False]
    assert sum(len(message["put"]) for message in whole) == 600
    found = replayed(world.recording(tmp_path / "rec"))
    assert (found.passes, found.differences) == (3, [])


SCRIPT: list[tuple[str, tuple[Any, ...]]] = [
    ("run", (500, False)),
    ("put", (1, 0, 0, "BestEffort", False, 100)),
    ("put", (2, 0, 0, "BestEffort", False, 50)),
    ("wait", (SECOND,)),
    ("run", (150, False)),
    ("wait", (SECOND,)),
    ("put", (1, 0, 0, "BestEffort", False, 160)),
    ("run", (90, True)),
]


def test_a_decision_that_comes_out_otherwise_is_reported(tmp_path: Path) -> None:
    world = lived(RunConfig(), SCRIPT, tmp_path)
    assert [one["pod"] for one in replayed(world.recording(tmp_path / "rec")).decisions] == ["uid-1"]
    passed = next(m for m in world.lines if m["t"] == "pass" and m["decision"] is not None)
    passed["decision"]["pod"] = "uid-2"
    (tmp_path / "rec").unlink()
    found = replayed(world.recording(tmp_path / "rec"))
    assert found.different == 1
    assert found.differences[0]["what"] == "decision"
    assert (found.differences[0]["recorded"]["pod"], found.differences[0]["replayed"]["pod"]) == ("uid-2", "uid-1")


def test_the_pod_that_the_kernel_took_is_the_one_decided_on(tmp_path: Path) -> None:
    config = RunConfig(enforce=True, trigger="kernel")
    world = lived(config, [*BEGIN, GROWN, ("end", (0, True)), ("press", (50,))], tmp_path)
    assert [(m.pod, m.trigger) for m in world.sent] == [("uid-0", "kernel")]
    found = replayed(world.recording(tmp_path / "rec"))
    assert found.differences == []
    assert [(m["pod"], m["name"], m["trigger"]) for m in found.decisions] == [("uid-0", "p0", "kernel")]


def test_a_snapshot_knows_what_was_told_already(tmp_path: Path) -> None:
    world = lived(
        RunConfig(),
        [*BEGIN, GROWN, ("press", (50,)), ("forget", ()), ("wait", (SECOND,)), ("run", (40, False))],
        tmp_path,
    )
    assert len(world.sent) == 1  # the second is the same, within 10 s
    found = replayed(world.recording(tmp_path / "rec"))
    assert (found.passes, found.decisions, found.differences) == (1, [], [])


def test_what_if_the_threshold_had_been_another(tmp_path: Path) -> None:
    data = lived(RunConfig(), SCRIPT, tmp_path).recording(tmp_path / "rec")
    early = replayed(data, eviction_hard={"memory.available": "200Mi"})
    late = replayed(data, eviction_hard={"memory.available": "50Mi"})
    assert [one["available"] for one in early.decisions] == [150 * MIB, 90 * MIB]
    assert late.decisions == []
    assert early.different == late.different == 0


junk = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=3) | st.just([]) | st.just({})


def spots(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to everything in a tree of dicts and lists."""
    if isinstance(value, dict | list):
        items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        return [path for key, item in items for path in ((*at, key), *spots(item, (*at, key)))]
    return []


@given(configs, st.lists(calls, min_size=5, max_size=20), st.data())
@settings(max_examples=300, deadline=None)
def test_a_record_that_makes_no_sense_is_damage_or_a_difference(
    tmp_path_factory: pytest.TempPathFactory,
    config: RunConfig,
    script: list[tuple[str, tuple[Any, ...]]],
    data: st.DataObject,
) -> None:
    """Its checksum is right: somebody made it so."""
    directory = tmp_path_factory.mktemp("law")
    world = lived(config, [*BEGIN, *script], directory)
    *way, last = data.draw(st.sampled_from(spots(world.lines)).filter(lambda path: len(path) > 1))
    target: Any = world.lines
    for key in way:
        target = target[key]
    target[last] = data.draw(junk)
    if not all(isinstance(line["t"], str) for line in world.lines):
        return
    found = replayed(world.recording(directory / "rec"))
    if found.damage is not None:
        assert found.damage.record <= len(world.lines)
    json.dumps(found.to_json())
