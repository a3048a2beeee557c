"""Any stream of passes through Decider, Registry, DiskSignals and PassRecorder of the daemon is decided again alike."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.hot.pass_record import SNAPSHOT_NS
from monitor.link.messages import KubeletEviction, PodSeen, Softened
from monitor.policy.releases import ERAS
from monitor.settings.config import RunConfig
from tests.replay.world import MIB, PODS, SECOND, Step, clocked, fresh, go_on, lived, recorded, replayed

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
    "look": st.just(()),
    "tell": st.tuples(
        st.one_of(
            st.builds(KubeletEviction, st.sampled_from(PODS), st.booleans()),
            st.builds(Softened, st.integers(1, 3), st.sampled_from(PODS), st.sampled_from([0, 100 * MIB])),
        )
    ),
}
calls = st.one_of([st.tuples(st.just(name), arguments) for name, arguments in steps.items()])
losses = st.tuples(st.just("lose"), st.tuples(st.booleans()))
#: Mode, and what it has for options. (With the kernel's trigger no pod is held.)
modes = st.sampled_from(
    [
        *({"enforce": enforce, "trigger": trigger} for enforce in (False, True) for trigger in ("user", "kernel")),
        {"enforce": True, "hard_grace_ns": 5 * SECOND},
        *({"enforce": True, "hold": True, "two_steps": steps, "hold_limit_ns": 3 * SECOND} for steps in (False, True)),
        {"enforce": True, "hold": True, "evict_by": "api"},
    ]
)
configs = st.builds(
    lambda mode, **rest: RunConfig(**mode, **rest),
    mode=modes,
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

#: A pod to evict is there from the beginning on.
BEGIN: list[Step] = [
    ("put", (0, 0, 0, "BestEffort", False, 70)),
    ("put", (1, 1, 10, "Burstable", False, 200)),
    ("run", (250, False)),
]
#: The first of them takes what is short then, so that evicting it helps.
GROWN: Step = ("put", (0, 0, 0, "BestEffort", False, 270))


@given(configs, st.lists(calls, min_size=1, max_size=40))
@settings(max_examples=300, deadline=None)
def test_a_replay_decides_as_the_daemon_did(config: RunConfig, script: list[Step]) -> None:
    world = lived(config, [*BEGIN, *script, ("run", (50, True))], fresh())
    data = world.recording(world.directory / "rec")
    found = replayed(data)
    assert found.differences == []
    assert found.damage is None
    # Nothing is recorded of a pod over its own limit before the first pass: the recording begins with that.
    late = [m for m in world.sent if m.id > world.lines[1]["last_id"]]
    sent = [recorded(message) for message in late]
    assert json.dumps(found.decisions, sort_keys=True) == json.dumps(sent, sort_keys=True)
    assert found.passes == sum(1 for message in world.lines if message["t"] == "pass")
    assert replayed(data).to_json() == found.to_json()


@given(configs, st.lists(st.one_of(calls, losses), min_size=1, max_size=60))
@settings(max_examples=300, deadline=None)
def test_after_a_gap_a_replay_goes_on_from_the_next_snapshot(config: RunConfig, script: list[Step]) -> None:
    world = lived(config, [*BEGIN, *script], fresh())
    world.deaf = False
    go_on(world)
    found = replayed(world.recording(world.directory / "rec"))
    assert found.differences == []
    assert found.damage is None
    assert found.passes >= 1  # the last at least
    sent = [json.dumps(recorded(message), sort_keys=True) for message in world.sent]
    assert {json.dumps(one, sort_keys=True) for one in found.decisions} <= set(sent)


def test_more_pods_than_a_packet_takes(tmp_path: Path) -> None:
    world = lived(RunConfig(), [("run", (500, False))], tmp_path)
    for i in range(600):
        place = tmp_path / f"p{i}"
        place.mkdir()
        world.registry.put(PodSeen(f"u{i}", "a" * 60, f"{i}" * 60, 0, True, 0, "B", False, 1, str(place), {}))
    world.registry.refresh()
    world.recorder.restart()
    go_on(world)
    assert max(len(json.dumps(message)) for message in world.lines) < 128 * 1024
    whole = [message for message in world.lines if message["t"] == "ranking"][-3:]
    assert [message["whole"] for message in whole] == [True, False, False]
    assert sum(len(message["put"]) for message in whole) == 600
    found = replayed(world.recording(tmp_path / "rec"))
    assert (found.passes, found.differences) == (3, [])


SCRIPT: list[Step] = [
    ("run", (500, False)),
    ("put", (1, 0, 0, "BestEffort", False, 100)),
    ("put", (2, 0, 0, "BestEffort", False, 50)),
    ("wait", (SECOND,)),
    ("run", (150, False)),
    ("wait", (SECOND,)),
    ("put", (1, 0, 0, "BestEffort", False, 160)),
    ("run", (90, True)),
]


def test_what_was_reported_before_a_snapshot_is_not_decided_again(tmp_path: Path) -> None:
    world = lived(RunConfig(), SCRIPT, tmp_path)
    assert [message.pod for message in world.sent] == ["uid-1"]
    world.lines.clear()
    with clocked(world):
        world.recorder.restart()
        world.wait(SECOND)
        world.run(90, False)
    found = replayed(world.recording(tmp_path / "rec"))
    assert (len(world.sent), found.passes, found.decisions, found.differences) == (1, 1, [], [])


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
    config: RunConfig, script: list[Step], data: st.DataObject
) -> None:
    """Its checksum is right: it was made so on purpose."""
    world = lived(config, [*BEGIN, *script], fresh())
    *way, last = data.draw(st.sampled_from(spots(world.lines)).filter(lambda path: len(path) > 1))
    target: Any = world.lines
    for key in way:
        target = target[key]
    target[last] = data.draw(junk)
    if not all(isinstance(line["t"], str) for line in world.lines):
        return
    found = replayed(world.recording(world.directory / "rec"))
    if found.damage is not None:
        assert found.damage.record <= len(world.lines)
    json.dumps(found.to_json())
