"""Collections of the helper: in quiet moments alone, and without end nowhere."""

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from monitor.side.garbage import MOST, PATIENCE_S, PERIOD_S, SWITCH_S, Garbage
from tests.kube.clock import WaitedClock


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def clock() -> Iterator[WaitedClock]:
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    yield WaitedClock(100.0)
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    sys.setswitchinterval(interval)


def test_quiet_moments_alone(clock: WaitedClock) -> None:
    garbage = Garbage(clock)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    left = weakref.ref(Cycle())
    assert garbage.turn(is_quiet=True) is None
    clock.now += PERIOD_S
    assert garbage.turn(is_quiet=False) is None
    assert left() is not None
    assert garbage.turn(is_quiet=True) == 0
    assert left() is None
    assert garbage.turn(is_quiet=True) is None


def test_what_lasts_is_not_waited_for_for_ever(clock: WaitedClock) -> None:
    garbage, seen = Garbage(clock), []
    for _ in range(200):
        clock.now += 1.0
        seen.append(garbage.turn(is_quiet=False))
    assert len([one for one in seen if one is not None]) == 200 // (PERIOD_S + PATIENCE_S)


def test_older_generations_have_their_turn(clock: WaitedClock) -> None:
    garbage, seen = Garbage(clock), []
    for _ in range(240):
        clock.now += PERIOD_S
        seen.append(garbage.turn(is_quiet=True))
    assert (seen.count(1), seen.count(2)) == (18, 2)


def test_where_it_is_never_quiet_there_is_an_end_too(clock: WaitedClock) -> None:
    Garbage(clock)
    left = weakref.ref(Cycle())
    kept = []
    while left() is not None:
        kept.append([[]])
        assert len(kept) <= MOST


def test_what_was_there_at_the_start_is_not_looked_at_again(clock: WaitedClock) -> None:
    Garbage(clock)
    assert gc.get_freeze_count() > 1000
