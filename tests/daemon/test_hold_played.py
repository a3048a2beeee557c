"""Mode hold on the simulated node: which pods are held, and how that ends (on the real one: test_hold_live.py)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.simulated import Node, Taking, simulated
from tests.replay.world import MIB

#: As fast as one process takes memory, MiB a second.
FULL_SPEED = 800


def hogs(number: int) -> Callable[[Node], None]:
    """What they want fits when the bystander has gone."""

    def play(node: Node) -> None:
        names = [f"hog-{n}" for n in range(number)]
        for name in names:
            node.pod(name)
        node.pod("database", 60, request=64)
        node.begin()
        node.take(*(Taking(name, 72 / number, FULL_SPEED / number) for name in names))
        node.stand(1)
        assert (sorted(node.held()), node.decided) == (names, [])
        assert node.left > node.line / 4, "above the kill threshold"
        node.play(Taking("database", -60, 1000))
        node.stand(3)
        assert [node.usage(name) for name in names] == [72 * MIB // number] * number

    play.__name__ = f"{number}_hogs"
    return play


def node_that_is_short_at_the_start(node: Node) -> None:
    """The policy's victim is held in the first pass, and a pod that grows later; no crossing says which one does."""
    node.pod("calm", 110)
    node.pod("hog")
    node.begin()
    node.stand(1)
    assert node.held() == ["calm"]
    node.take(Taking("hog", 20, FULL_SPEED))
    node.stand(1)
    assert node.held() == ["calm", "hog"]
    node.remove("calm")
    node.stand(3)


def shortage_after_a_kill(node: Node) -> None:
    """What was decided about the last shortage ends with it, also where the killed pod was the only one held."""
    for name in ("first", "second"):
        node.pod(name)
    node.begin()
    node.take(Taking("first", 118, FULL_SPEED))
    node.stand(1)
    assert node.held() == ["first"]
    node.stand(2)
    assert [decision.pod for decision in node.decided] == ["first"]
    node.take(Taking("second", 118, FULL_SPEED))
    node.stand(0.5)
    assert node.held() == ["second"]


def pod_that_ends_while_it_is_held(node: Node) -> None:
    """The next shortage begins as if it had never been."""
    for name in ("hog", "other"):
        node.pod(name)
    node.begin()
    node.take(Taking("hog", 256, FULL_SPEED))
    node.stand(1)
    node.remove("hog")
    node.stand(1)
    node.take(Taking("other", 118, FULL_SPEED))
    node.stand(1)
    assert node.held() == ["other"]


def critical_pod(node: Node) -> None:
    node.pod("vital", priority=2_000_001_000)
    node.begin()
    node.take(Taking("vital", 120, FULL_SPEED))
    node.stand(1)
    assert node.held() == []


def victim_that_stands_still(node: Node) -> None:
    node.pod("victim", 16)
    node.pod("database", request=100)
    node.begin()
    node.play(Taking("database", 40, FULL_SPEED))
    assert set(node.world.brakes) == {"victim", "database"}, "opened before the crossing"
    node.take(Taking("database", 88, FULL_SPEED))
    node.stand(1)
    assert node.held() == ["database"]


@pytest.mark.parametrize(
    ("play", "line", "settings", "decided", "ended"),
    [
        (hogs(1), 8, {}, [], [("hog-0", "clear")]),
        (hogs(2), 16, {}, [], [("hog-0", "clear"), ("hog-1", "clear")]),
        (hogs(4), 32, {}, [], [(f"hog-{n}", "clear") for n in range(4)]),
        (node_that_is_short_at_the_start, 24, {}, [], [("calm", "gone"), ("hog", "clear")]),
        (shortage_after_a_kill, 16, {"hold_limit_ns": 1_000_000_000}, ["first"], [("first", "time_limit")]),
        (pod_that_ends_while_it_is_held, 16, {}, [], [("hog", "gone")]),
        (critical_pod, 48, {}, [], []),
        (victim_that_stands_still, 32, {}, [], []),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_which_pods_are_held_and_how_it_ends(
    tmp_path: Path,
    play: Callable[[Node], None],
    line: int,
    settings: dict[str, Any],
    decided: list[str],
    ended: list[tuple[str, str]],
) -> None:
    with simulated(tmp_path, 128, line, hold=True, **settings) as node:
        play(node)
        assert [decision.pod for decision in node.decided] == decided
        assert sorted(node.holds_ended()) == sorted(ended)
        assert node.oom_killed == []
