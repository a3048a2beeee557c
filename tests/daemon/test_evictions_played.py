"""Which pods are evicted, and when evictions are suspended because they would not help, on the simulated node.

On the real one: test_hot_eviction.py, test_hot_suspension.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.policy.suspension import OBSERVE_NS
from tests.daemon.simulated import OUTSIDE, Node, Taking, simulated
from tests.replay.world import MIB, SECOND

CRITICAL = 2_000_001_000
OVER, HELPS = "the shortage is over", "evictions help now"


def small(node: Node, number: int = 5, mib: float = 3) -> None:
    """Pods that are far below their requests."""
    for n in range(number):
        node.pod(f"small-{n}", mib, request=32)


def process_in_no_pod(node: Node) -> None:
    small(node)
    node.begin()
    node.play(Taking(OUTSIDE, 100, 100))
    node.stand(1)
    assert not node.world.trigger.armed, "the kernel may signal no pod meanwhile"
    node.play(Taking(OUTSIDE, -100, 1000))
    node.stand(1)


def daemon_that_is_started_again(node: Node) -> None:
    """It knew nothing of what had grown, and took what pods had before for growth: all went within a second."""
    small(node)
    node.begin()
    node.play(Taking(OUTSIDE, 60, 200))
    node.take(Taking(OUTSIDE, 40, 10))
    node.stand(3)
    node.restart()
    node.begin()
    node.stand(5)


def leak_beside_a_pod_that_trembles(node: Node) -> None:
    """Growth was remembered for 24 samples: 0.12 s where something moves all the time."""
    small(node)
    node.pod("trembling", 1, priority=CRITICAL)
    node.begin()
    node.play(Taking(OUTSIDE, 62, 200))
    node.take(Taking(OUTSIDE, 36, 4))
    for _ in range(60):
        for mib in (2, -2):
            node.take(Taking("trembling", mib, 30))
            node.stand(0.08)


def pod_that_becomes_known_meanwhile(node: Node) -> None:
    """What it had already was taken for growth of pods."""
    small(node)
    node.pod("late", 10, request=32, known=False)
    node.begin()
    node.play(Taking(OUTSIDE, 128 - 32 - 15 - 10 - 6, 200))
    node.take(Taking(OUTSIDE, 14, 3))
    node.stand(1)
    node.meet("late")
    node.stand(5)


def what_is_given_back_outside(node: Node) -> None:
    """When less was missing than the pods had, one went although 100 MiB were on their way back."""
    small(node)
    node.play(Taking(OUTSIDE, 104, 10_000))
    node.begin()
    node.stand(1.5 * OBSERVE_NS / SECOND)
    node.play(Taking(OUTSIDE, -100, 300))
    node.stand(1)


def shortage_that_stands_still_at_the_start(node: Node) -> None:
    for n in range(4):
        node.pod(f"large-{n}", 25, request=8)
    node.begin()
    node.stand(5)


def process_that_the_kernel_kills(node: Node) -> None:
    small(node)
    node.begin()
    node.play(Taking(OUTSIDE, 200, 100), until=lambda: node.oom_killed)
    node.stand(1)
    assert node.oom_killed == [OUTSIDE]


def pod_that_grows_meanwhile(node: Node) -> None:
    """What is outside stands still, and no eviction makes up for it."""
    small(node, 2)
    node.pod("hog")
    node.begin()
    node.play(Taking(OUTSIDE, 100, 200))
    assert node.decided == []
    node.stand(0.5)
    node.take(Taking("hog", 100, 20))
    node.stand(3)


def candidates_that_just_cover_what_is_missing(node: Node) -> None:
    """Growth is remembered for 12 s; then it is known that it stands still."""
    small(node, mib=8)
    node.begin()
    node.play(Taking(OUTSIDE, 40, 200))
    node.stand(0.1)
    node.play(Taking(OUTSIDE, 20, 20))
    assert node.decided == []
    node.stand(15)


def growth_that_demands_a_pod_that_covers(node: Node) -> None:
    """Memory would be used up otherwise, and was not yet at the crossing."""
    node.pod("large", 56)
    node.begin()
    node.play(Taking(OUTSIDE, 68, 20))
    [decision] = node.decided
    assert (decision.braked, decision.available < 26 * MIB) == ("outgrown", True)


def pods_one_after_the_other(node: Node) -> None:
    """90 MiB are in use and 56 may be; without the first 64 are, without the second 46."""
    for name, mib in (("third", 6), ("second", 18), ("first", 26)):
        node.pod(name, mib)
    node.pod("database", request=64)
    node.begin()
    node.play(Taking("database", 40, 1000))
    node.stand(1)


def critical_pod_alone(node: Node) -> None:
    """Nor does an ordinary pod go that is too small to help."""
    node.pod("critical", priority=CRITICAL)
    node.begin()
    node.play(Taking("critical", 64, 400))
    node.stand(1)
    node.pod("small", 4)
    node.play(Taking("critical", 2, 400))
    node.stand(1)


def pod_beside_a_critical_one(node: Node) -> None:
    node.pod("critical", 40, priority=CRITICAL)
    node.pod("ordinary")
    node.begin()
    node.play(Taking("ordinary", 24, 400))
    node.play(Taking("critical", 24, 400))
    node.stand(1)


PLAYS: list[tuple[Callable[[Node], None], int, list[str], list[str]]] = [
    (pods_one_after_the_other, 72, ["first", "second"], []),
    (critical_pod_alone, 80, [], ["not_covered"]),
    (pod_beside_a_critical_one, 80, ["ordinary"], []),
    (process_in_no_pod, 32, [], ["outgrown", "not_covered", OVER]),
    (daemon_that_is_started_again, 32, [], ["outgrown", "outgrown", "not_covered"]),
    (leak_beside_a_pod_that_trembles, 32, [], ["outgrown", OVER, "outgrown", "not_covered"]),
    (pod_that_becomes_known_meanwhile, 32, [], ["outgrown"]),
    (what_is_given_back_outside, 32, [], ["not_covered", OVER]),
    (shortage_that_stands_still_at_the_start, 32, ["large-0"], []),
    (process_that_the_kernel_kills, 32, [], ["outgrown", OVER]),
    (pod_that_grows_meanwhile, 32, ["hog"], ["outgrown", HELPS, "not_covered"]),
    (candidates_that_just_cover_what_is_missing, 32, ["small-0"], ["outgrown", HELPS]),
    (growth_that_demands_a_pod_that_covers, 48, ["large"], ["outgrown", OVER]),
]


@pytest.mark.parametrize(
    ("enforce", "play", "line", "decided", "reasons"),
    [*((True, *row) for row in PLAYS), *((False, *row) for row in PLAYS if not row[2])],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_which_pod_is_evicted_and_why_evictions_are_suspended(
    tmp_path: Path, enforce: bool, play: Callable[[Node], None], line: int, decided: list[str], reasons: list[str]
) -> None:
    """Where no pod is to be evicted, mode observe says the same."""
    with simulated(tmp_path, 128, line, enforce=enforce) as node:
        play(node)
        assert [decision.pod for decision in node.decided] == decided
        assert node.reasons() == reasons


def test_with_the_answers_of_the_kubelet_none_are(tmp_path: Path) -> None:
    with simulated(tmp_path, 128, 32, compat="kubelet-1.36") as node:
        small(node)
        node.begin()
        node.play(Taking(OUTSIDE, 92, 100))
        assert (len(node.decided), node.reasons()) == (4, [])
