"""Laws of waiting for memory that is coming back."""

from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.pending_release import LEAD_NS, SPAN_NS, Coming, waits

MIB, MS = 1 << 20, 1_000_000
NOISE = 512 << 10
sizes = st.integers(0, 1 << 40)
times = st.integers(0, 10**10)
comings = st.builds(
    Coming, sizes, times, st.integers(-(1 << 40), 1 << 40), times, st.integers(-(1 << 40), 1 << 40), times, sizes
)
available = st.integers(-(1 << 40), 1 << 40)


def quiet(coming: int = 135 * MIB, back_ns: int = 200 * MS) -> Coming:
    return Coming(coming, back_ns, 0, 10 * MS, 0, MS // 4, NOISE)


@given(comings, available, sizes)
def test_what_would_not_be_enough_or_is_late_is_not_waited_for(seen: Coming, left: int, line: int) -> None:
    if left + seen.coming < line or seen.back_ns == 0:
        assert not waits(seen, left, line)


@given(sizes, st.integers(1, 10**10), available, sizes)
def test_while_nobody_grows_what_is_enough_is_waited_for(coming: int, back_ns: int, left: int, line: int) -> None:
    assert waits(quiet(coming, back_ns), left, line) is (left + coming >= line)


@given(comings, available, sizes, st.integers(0, 1 << 40), sizes)
def test_more_growth_or_less_left_never_makes_it_wait(seen: Coming, left: int, line: int, more: int, less: int) -> None:
    if waits(seen, left, line):
        return
    assert not waits(seen._replace(grown=seen.grown + more, jump=seen.jump + more), left, line)
    assert not waits(seen, left - less, line)


@given(st.integers(1, 10_000), st.integers(0, 64 * MIB), st.integers(1, 200))
def test_the_next_victim_goes_before_nothing_is_left(rate: int, left: int, back_ms: int) -> None:
    """A pod charges ``rate`` MiB/s all the time: when the wait ends, what it takes to kill is left."""
    coming, line, now_ms = 1 << 40, 1 << 39, 0
    took = 0
    while now_ms < back_ms:
        seen = Coming(coming, (back_ms - now_ms) * MS, took, max(1, now_ms * MS), rate * MIB // 1000, MS, NOISE)
        if not waits(seen, left - took, line):
            # Chosen with the time of a kill to spare, but for what was taken in the millisecond between two looks.
            return
        assert (left - took) * MS > seen.jump * LEAD_NS, "too late: at this pace nothing is left when it is dead"
        now_ms += 1
        took += rate * MIB // 1000


def test_growth_that_would_use_up_what_is_left_is_not_let_go_on() -> None:
    grown = Coming(135 * MIB, 100 * MS, 4 * MIB, 10 * MS, MIB // 4, MS, NOISE)  # 350 MiB/s
    assert not waits(grown, 16 * MIB, 64 * MIB)
    assert waits(grown, 64 * MIB, 128 * MIB), "they would take 35"
    assert SPAN_NS < 10 * MS
