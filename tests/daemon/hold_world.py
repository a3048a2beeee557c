"""The hot process in mode hold without a kernel, with a clock that can be moved: a hog, a database, stand-in brakes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from monitor.policy.hold import MARGIN
from monitor.settings.config import RunConfig
from tests.replay.world import MIB, PODS, SECOND, World, clocked

HOG, DB = PODS[0], PODS[1]
RULES: dict[str, Any] = {"enforce": True, "eviction_hard": {"memory.available": "100Mi"}, "eviction_soft": {}}
BESIDE_KUBELET: Mapping[str, Any] = {"hold": True, "two_steps": True}
ABOVE = 100 + MARGIN // MIB - 2


@contextmanager
def hold_world(state: Path, options: Mapping[str, Any] = BESIDE_KUBELET) -> Iterator[World]:
    """With a hog that is the first of the order, and a database."""
    made = World(RunConfig(**RULES, **options), state)
    with clocked(made):
        made.put(0, 0, 0, "BestEffort", False, 100)
        made.put(1, 1000, 300, "Burstable", False, 200)
        made.run(300, False)
        yield made


def grown(world: World, usage: int, available: int) -> None:
    """The hog has so much now, and so much is left; a ceiling was crossed."""
    world.wait(SECOND // 10)
    world.put(0, 0, 0, "BestEffort", False, usage)
    world.run(available, True)


def reported(world: World, kind: type) -> list[Any]:
    return [message for message in world.told if isinstance(message, kind)]


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    with hold_world(tmp_path, getattr(request, "param", BESIDE_KUBELET)) as made:
        yield made


def both_grow(world: World, available: int) -> None:
    world.wait(SECOND // 10)
    world.put(0, 0, 0, "BestEffort", False, 200)
    world.put(1, 1000, 300, "Burstable", False, 301)
    world.run(available, True)


def look_later(world: World, ns: int = SECOND) -> None:
    world.wait(ns)
    world.look()
