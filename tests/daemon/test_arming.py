"""Attaching by headroom: in time, not longer than needed, and really."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.kernel.pins import Pins
from monitor.sources.arming import MAX_LOOK_NS, MIN_LOOK_NS, RESERVE_NS, Arming
from tests import live

pytestmark = pytest.mark.kernel
RATE = 12 << 30
SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def opened() -> Iterator[Arming]:
    made = Arming(RATE, Pins(live.pin_dir()))
    yield made
    for fd in made._programs.values():
        os.close(fd)


@pytest.fixture
def arming(opened: Arming) -> Iterator[Arming]:
    yield opened
    opened.detach()
    opened.rereads = False


def test_the_programs_run_only_while_armed(arming: Arming) -> None:
    with live.cgroup("arming") as pod, live.Watching(attach=False) as watch, live.Puppet(pod) as puppet:

        def evaluated() -> int:
            before = watch.counted()["evaluated"]
            puppet.do("anon(2)")
            return watch.counted()["evaluated"] - before

        assert evaluated() == 0
        assert arming.decide(arming.near - 1, 0)
        assert arming.armed
        assert evaluated() >= 8
        assert not arming.decide(0, 0), "that is no change"
        assert arming.decide(100 * arming.near, 0)
        assert not arming.armed
        live.until(lambda: evaluated() == 0, "the programs to be detached")


def test_near_the_border_it_does_not_flap(arming: Arming) -> None:
    assert not arming.decide(arming.near, 0)
    assert arming.decide(arming.near - 1, 0)
    for headroom in (arming.near, arming.near + 1, 2 * arming.near):
        assert not arming.decide(headroom, 0)
        assert arming.armed
    assert arming.decide(2 * arming.near + 1, 0)
    assert not arming.decide(arming.near, 0)


@given(beyond=st.integers(0, 1 << 50), now=st.integers(0, 1 << 60))
def test_the_next_look_comes_before_the_headroom_can_be_gone(opened: Arming, beyond: int, now: int) -> None:
    headroom = opened.near + beyond
    assert not opened.decide(headroom, now)
    wait = opened.next_look_ns - now
    assert MIN_LOOK_NS <= wait <= MAX_LOOK_NS
    # What the machine can fault in until then, and in the reserve kept for a late timer, still fits.
    assert RATE * (wait + RESERVE_NS) // SECOND <= headroom
    assert wait == MAX_LOOK_NS or RATE * (wait + RESERVE_NS + 1) // SECOND >= headroom, "it looks as rarely as it may"
    assert opened.wait_ns == wait


def test_what_is_never_charged_is_looked_after_while_armed(arming: Arming) -> None:
    for arming.rereads in (True, False):
        arming.decide(1 << 50, 5)
        assert arming.looks
        assert arming.next_look_ns == 5 + MAX_LOOK_NS
        arming.decide(0, 7, 3_000_000)
        assert arming.looks == arming.rereads
        if arming.rereads:
            assert arming.next_look_ns == 7 + 3_000_000
