"""The arithmetic between growth and threshold: worked by hand, and the same both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.hold import STOP_NS, second_line
from monitor.race.reaction import (
    ENFORCE,
    HOLD,
    KUBELET,
    NOTIFIED,
    OBSERVE,
    REACTIONS,
    Reaction,
    survives,
    threshold_for,
)
from tests.race.builders import MI

RATES = st.integers(0, 1 << 40)
REACTION = st.sampled_from(REACTIONS)
BEYOND = st.integers(0, 1 << 34)


@pytest.mark.parametrize(
    ("reaction", "rate_mi", "wanted"),
    [
        # 50 MiB/s x 12.03 s = 601.5 MiB = 630,718,464 bytes, and one more, because a threshold is met strictly below.
        (KUBELET, 50, 630_718_465),
        # outrace only tells: as the kubelet.
        (OBSERVE, 50, 630_718_465),
        # 50 MiB/s x 2.25 s = 112.5 MiB = 117,964,800 bytes.
        (NOTIFIED, 50, 117_964_801),
        # 50 MiB/s x 5 ms = 0.25 MiB.
        (ENFORCE, 50, 262_145),
        # The same 0.25 MiB; then 2 MiB that pass the brake are three quarters, above a second line of 2/3 MiB: in all
        # 0.25 + 2.667 MiB = 3,058,346.67 bytes.
        (HOLD, 50, 3_058_347),
        # 1000 MiB/s x 5 ms = 5 MiB until the brake is on, 2 MiB that pass it, 5 MiB for a kill at the second line.
        (HOLD, 1000, 12 * MI + 1),
        # 4000 MiB/s: 20 MiB, and a second line of 20 MiB is at most three quarters of what is left, 26.67 MiB: in
        # all 46.67 MiB = 48,933,546.67 bytes.
        (HOLD, 4000, 48_933_547),
    ],
)
def test_the_threshold_that_a_growth_needs(reaction: Reaction, rate_mi: int, wanted: int) -> None:
    assert threshold_for(rate_mi * MI, reaction) == wanted
    assert threshold_for(rate_mi * MI, reaction, beyond=7 * MI) == wanted + 7 * MI


@given(st.integers(0, 50_000).map(lambda mi: mi * MI))
def test_a_hold_keeps_its_second_line_with_what_it_needs(rate: int) -> None:
    """By the policy's own line: what passes the brake stays above it, and it is in time for a kill."""
    taken = rate * STOP_NS // 10**9
    left = threshold_for(rate, HOLD) - taken
    line = second_line(left, rate)
    assert left - line >= (HOLD.through or 0) - 1
    assert line >= taken - 1
    less = left - 16
    assert less - second_line(less, rate) < (HOLD.through or 0) or second_line(less, rate) < taken


@given(RATES, REACTION, BEYOND)
def test_what_a_growth_needs_survives_it(rate: int, reaction: Reaction, beyond: int) -> None:
    wanted = threshold_for(rate, reaction, beyond)
    found = survives(wanted, reaction, beyond)
    assert found.always is not None
    assert found.always >= rate
    smaller = survives(wanted - 1, reaction, beyond).always
    assert smaller is None or smaller < rate


@given(st.integers(1, 1 << 40), REACTION, BEYOND)
def test_what_a_threshold_survives_needs_no_more(quantity: int, reaction: Reaction, beyond: int) -> None:
    found = survives(quantity, reaction, beyond)
    if found.always is None:
        assert threshold_for(0, reaction, beyond) > quantity
        return
    assert found.at_best is not None
    assert found.always <= found.at_best
    assert threshold_for(found.always, reaction, beyond) <= quantity
    assert threshold_for(found.always + 1, reaction, beyond) > quantity


@given(RATES, RATES, REACTION)
def test_faster_growth_never_needs_a_smaller_threshold(one: int, other: int, reaction: Reaction) -> None:
    slower, faster = sorted((one, other))
    assert threshold_for(slower, reaction) <= threshold_for(faster, reaction)
