"""Collections of the helper: rarely, and without end nowhere."""

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from monitor.side.main import NEW_OBJECTS, SWITCH_S, collect_rarely


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def rarely() -> Iterator[None]:
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    collect_rarely()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    sys.setswitchinterval(interval)


def test_a_cycle_goes_when_many_objects_are_new(rarely: None) -> None:
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    assert gc.get_freeze_count() > 1000, "what was there at the start is not looked at again"
    left = weakref.ref(Cycle())
    kept = []
    while left() is not None:
        kept.append([[]])
        assert len(kept) <= NEW_OBJECTS
    assert len(kept) > NEW_OBJECTS // 4
