"""Which pods are held at a crossing: those that grow then, and not one that had grown before. On the simulated node."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon.simulated import OUTSIDE, Node, Taking, simulated
from tests.replay.world import SECOND

HOG, DB = "hog", "database"
#: MiB: below the line they are held.
LINE = 100
MS = 0.001


@contextmanager
def made(directory: Path, left: int) -> Iterator[Node]:
    """A hog that is the first of the order and a database, on a node with so much above the line; nothing has moved."""
    with simulated(directory, 300 + LINE + left, LINE, hold=True) as node:
        node.pod(HOG, 100)
        node.pod(DB, 200, request=300, priority=1000)
        node.begin()
        node.stand(2)
        yield node


@pytest.mark.parametrize(("mib", "since"), [(6, 8), (12, 8), (30, 8), (12, 60 * MS)])
def test_a_pod_that_had_grown_before_and_stands_still_is_not_held(tmp_path: Path, mib: int, since: float) -> None:
    """Growth is measured over 16 MiB at least, so the database was held whenever the hog grew by less; and by the
    sample of 0.1 s before, all of its growth was of now.
    """
    with made(tmp_path, 60 + mib - 1) as node:
        node.play(Taking(DB, 60, 3000))
        node.stand(since)
        node.play(Taking(HOG, mib, 1000))
        assert node.held() == [HOG]


def test_what_was_not_due_as_growth_ended_is_sampled_afterwards(tmp_path: Path) -> None:
    """The last sample of the database's growth lacked up to 15 MiB of it. The hog's own began 8 ms late, as where a CPU
    is not to be had, and then that was the latest one.
    """
    with made(tmp_path, 60 + 33) as node:
        node.play(Taking(DB, 60, 3000))
        assert node.world.decider.figures.due_ns() is not None
        node.stand(120 * MS)
        assert node.world.decider.figures.due_ns() is None, "nothing moves any more"
        node.world.now_ns += int(10 * MS * SECOND)
        node.play(Taking(HOG, 34, 34_000))
        assert node.held() == [HOG]


def test_two_that_grow_by_turns_are_both_held(tmp_path: Path) -> None:
    """More processes than CPUs: each stands still for milliseconds."""
    with made(tmp_path, 35) as node:
        for _ in range(3):
            node.play(Taking(DB, 6, 1000))
            node.play(Taking(HOG, 6, 1000))
        assert sorted(node.held()) == [DB, HOG]


def test_a_pod_that_gave_memory_back_and_grows_now_is_held(tmp_path: Path) -> None:
    """Over the last 50 ms it has not grown, and over the growth that is looked at it took nearly all."""
    with made(tmp_path, 1) as node:
        node.play(Taking(HOG, -40, 40_000))
        node.stand(50 * MS)
        for _ in range(6):
            node.play(Taking(DB, 2, 2000))
            node.play(Taking(HOG, 5, 2500))
        assert sorted(node.held()) == [DB, HOG]


def test_what_was_sampled_before_the_counters_stood_still_is_forgotten(tmp_path: Path) -> None:
    """A node that had room for an hour: what pods have taken in it is no growth."""
    with made(tmp_path, 300) as node:
        arming = node.world.decider._gauge.arming
        arming.armed = False
        node.play(Taking(DB, 200, 10_000))
        node.world.now_ns += 3600 * SECOND
        arming.armed = True
        assert node.world.decider.figures.due_ns() is None
        node.play(Taking(OUTSIDE, 101, 1_000_000))
        assert node.held() == [HOG], "the first of the order, as where nothing was measured"
