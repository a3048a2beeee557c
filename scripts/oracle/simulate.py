"""Recordings that need no kernel: the hot process on a simulated node, and episodes that are made up, by a fixed seed.

Of what the tests have: nodes on which pods grow (tests/daemon/simulated.py), any passes (tests/replay/test_passes.py),
one episode for each verdict and flag (tests/race/scenarios.py), and any events (tests/race/strategies.py).
"""

from __future__ import annotations

import io
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as searched
from hypothesis import strategies as st
from kept import ROOT

sys.path.insert(0, str(ROOT))

from monitor.cli.replay import replay
from monitor.policy.releases import ERAS
from monitor.race.events import Event
from monitor.settings.config import RunConfig
from monitor.side.export.log import Log
from monitor.side.incidents import IncidentStore
from monitor.side.recording import Reader, Recorder, header
from tests.daemon.simulated import OUTSIDE, Node, Taking, simulated
from tests.race.scenarios import SCENARIOS
from tests.race.strategies import streams
from tests.replay.test_passes import BEGIN, calls, configs
from tests.replay.world import MIB, SECOND, lived
from tests.side.incident_samples import SAMPLES

SEED = 20261128
NODES, PASSES, STREAMS = 80, 40, 40
REALTIME_NS = 1_769_800_000_000_000_000
CONFIG = RunConfig(eviction_hard={"memory.available": "100Mi"})


def recordings() -> Iterator[tuple[str, bytes]]:
    """Name and content, all of them."""
    with tempfile.TemporaryDirectory(prefix="outrace-oracle-") as made:
        for number in range(NODES):
            yield f"node-{number:03}", _node(number, Path(made) / f"node-{number}")
        for number, (config, script) in enumerate(_drawn(PASSES, st.tuples(configs, st.lists(calls, min_size=30)))):
            place = Path(made) / f"passes-{number}"
            place.mkdir()
            world = lived(config, [*BEGIN, *script, ("run", (50, True))], place)
            yield f"passes-{number:03}", world.recording(place / "rec")
        for name, (events, *_) in SCENARIOS.items():
            slug = "".join(letter if letter.isalnum() else "-" for letter in name)
            yield f"episode-{slug}", _events(events, Path(made) / slug)
        for number, stream in enumerate(_drawn(STREAMS, streams(120).filter(lambda one: len(one) > 30))):
            yield f"events-{number:03}", _events(stream, Path(made) / f"events-{number}")


def incidents() -> dict[str, bytes]:
    """The files of the samples of the tests, and of one incident for each verdict and flag."""
    with tempfile.TemporaryDirectory(prefix="outrace-oracle-") as made:
        store = IncidentStore(Path(made) / "incidents")
        for sample in SAMPLES:
            store.add(sample)
        for number, name in enumerate(SCENARIOS):
            for one in replay(Reader(io.BytesIO(_events(SCENARIOS[name][0], Path(made) / "rec")), name)).incidents:
                store.add(one | {"id": f"{one['id']}-{number}"})
            (Path(made) / "rec").unlink()
        return {f"{one['id']}.json": json.dumps(one, separators=(",", ":")).encode() for one in store.all()}


def _drawn(count: int, strategy: st.SearchStrategy[Any]) -> list[Any]:
    """The same ones each time, with one version of hypothesis."""
    found: list[Any] = []

    @seed(SEED)
    @searched(
        max_examples=2 * count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(one: Any) -> None:
        found.append(one)

    draw()
    return found[-count:]  # it begins with the simplest


def _events(events: Sequence[Event], path: Path) -> bytes:
    recorder = Recorder(path, header(CONFIG, 1, REALTIME_NS), Log(), lambda: True)
    for event in events:
        recorder.event(event)
    recorder.close(60)
    return path.read_bytes()


def _node(number: int, directory: Path) -> bytes:
    """A node on which something is decided, or a pod is held."""
    for attempt in range(100):
        lines, data = _lived(random.Random(f"{SEED}-{number}-{attempt}"), directory / str(attempt))
        if any(line["t"] == "hold_look" or line.get("decision") for line in lines):
            return data
    raise AssertionError("nothing happens")


def _lived(chance: random.Random, directory: Path) -> tuple[list[dict[str, Any]], bytes]:
    """A node with some pods, on which several grow, shrink and end in turn."""
    directory.mkdir(parents=True)
    size, line = chance.choice(((128, 16), (256, 24), (512, 100), (960, 100)))
    with simulated(directory, size, line, **_settings(chance, line)) as node:
        names = [f"pod-{n}" for n in range(chance.randint(2, 8))]
        for name in names:
            share = size * 0.5 / len(names)
            request, priority = chance.choice((0, 0, share, 2 * share)), chance.choice((-5, 0, 0, 0, 1000, 2 * 10**9))
            node.pod(name, chance.uniform(0, share), request=int(request), priority=priority)
        node.begin()
        for _ in range(chance.randint(2, 5)):
            node.take(*_takings(chance, node, size))
            node.stand(chance.choice((0.3, 1, 2.5)))
            if chance.random() < 0.3:
                node.remove(chance.choice(sorted(node._pods)))
            if not node._pods:
                break
        return node.world.lines, node.world.recording(directory / "rec")


def _takings(chance: random.Random, node: Node, size: int) -> list[Taking]:
    takers = [*node._pods, OUTSIDE] if chance.random() < 0.2 else [*node._pods]
    taken = []
    for name in chance.sample(takers, min(len(takers), chance.randint(1, 3))):
        most = chance.uniform(0.1, 1.1) * size
        mib = -node.usage(name) / MIB if chance.random() < 0.2 else most
        taken.append(Taking(name, mib, chance.choice((20, 200, 800, 3000))))
    return taken


def _settings(chance: random.Random, line: int) -> dict[str, Any]:
    ways: tuple[Callable[[], dict[str, Any]], ...] = (
        lambda: {"enforce": False},
        dict,
        lambda: {"trigger": "kernel"},
        lambda: {"hard_grace_ns": chance.choice((1, 5)) * SECOND},
        lambda: {"hold": True, "hold_limit_ns": chance.choice((1, 2, 120)) * SECOND},
        lambda: {"hold": True, "two_steps": True, "hold_limit_ns": 3 * SECOND},
        lambda: {"hold": True, "never_kill": True},
    )
    made = chance.choice(ways)()
    made["policy"] = chance.choice(ERAS[1:])  # those of the kept answers: without huge pages 1.37 decides as 1.36
    made["compat"] = chance.choice(("sane", "kubelet-1.36"))
    if chance.random() < 0.5:
        made["eviction_soft"] = {"memory.available": f"{2 * line}Mi"}
        made["eviction_soft_grace_period"] = {"memory.available": chance.choice(("0s", "500ms", "2s"))}
        made["eviction_max_pod_grace_period_s"] = chance.choice((0, 1, 7))
    if chance.random() < 0.3:
        made["eviction_minimum_reclaim"] = {"memory.available": f"{line // 2}Mi"}
    made["eviction_pressure_transition_period_ns"] = chance.choice((0, SECOND, 300 * SECOND))
    return made
