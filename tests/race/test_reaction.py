"""The growth that a threshold survives, by what reacts to the crossing."""

from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.hold import STOP_NS, kill_threshold
from monitor.race.reaction import HOLD, REACTIONS, Reaction, survived

MI = 1 << 20
REACTION = st.sampled_from(REACTIONS)
BEYOND = st.integers(0, 1 << 34)


def threshold_for(rate: int, reaction: Reaction, beyond: int = 0) -> int:
    """The least threshold (bytes) for ``rate`` bytes/s."""
    need = taken = rate * reaction.worst_ms / 1000
    if reaction.through is not None:
        need += max(taken + reaction.through, 4 * max(taken, reaction.through) / 3)
    return beyond + int(need) + 1


@given(st.integers(0, 50_000).map(lambda mi: mi * MI))
def test_a_hold_keeps_its_second_line_with_what_it_needs(rate: int) -> None:
    """By the policy's own line: what passes the brake stays above it, and it is in time for a kill."""
    taken = rate * STOP_NS // 10**9
    left = threshold_for(rate, HOLD) - taken
    line = kill_threshold(left, rate)
    assert left - line >= (HOLD.through or 0) - 1
    assert line >= taken - 1
    less = left - 16
    assert less - kill_threshold(less, rate) < (HOLD.through or 0) or kill_threshold(less, rate) < taken


@given(st.integers(1, 1 << 40), REACTION, BEYOND)
def test_what_a_threshold_survives_needs_no_more(quantity: int, reaction: Reaction, beyond: int) -> None:
    always, at_best = (survived(quantity - beyond, reaction, ms) for ms in (reaction.worst_ms, reaction.best_ms))
    if always is None:
        assert threshold_for(0, reaction, beyond) > quantity
        return
    assert at_best is not None
    assert always <= at_best
    assert threshold_for(always, reaction, beyond) <= quantity
    assert threshold_for(always + 1, reaction, beyond) > quantity
    # 12 MiB: 5 until the brake is on, 2 that pass it, 5 for a kill at the kill threshold (others: test_reserve_cli.py).
    assert survived(12 * MI, HOLD, 5) == 1000 * MI - 1
