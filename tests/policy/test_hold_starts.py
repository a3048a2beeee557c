"""Whether a held pod may run for a moment for a process that starts in it."""

import pytest

from monitor.policy.hold import ACROSS, Look, Rules, State, advance
from monitor.policy.hold_starts import may_run
from tests.policy.test_hold import ALONE, BESIDE, LINE, MIB, A, B, held, node

#: Of 31 MiB that were left, so the second line is at 7.75.
ROOM = 15 * MIB


def look(available: int, first: str = "a") -> Look:
    return Look(2, node(available), first=first, usages={"a": A[1]})


def across(rules: Rules = BESIDE, **more: object) -> State:
    """Somebody is held, and the threshold is met."""
    return held(rules)._replace(**more)


def test_the_first_of_the_order_may_below_its_cap_and_above_the_second_line() -> None:
    assert may_run(BESIDE, across(), look(31 * MIB), ROOM)
    assert may_run(BESIDE, across(), look(23 * MIB), ROOM)
    assert not may_run(BESIDE, across(), look(22 * MIB), ROOM), "taking all of it would reach the second line"
    assert may_run(BESIDE, across(), look(22 * MIB), ROOM // 2), "it has taken half of it"
    assert may_run(BESIDE, across(), look(9 * MIB), 0), "its own limit is lower than what it has"


@pytest.mark.parametrize(
    ("rules", "state", "first", "room"),
    [
        (ALONE, across(ALONE), "a", ROOM),
        (BESIDE, across(met_ns=0), "a", ROOM),
        (BESIDE, across(opened="unanswered"), "a", ROOM),
        (BESIDE, across(tight=True), "a", ROOM),
        (BESIDE, across(), "b", ROOM),
        (BESIDE, across(), "a", None),
        (BESIDE, across(left={}), "a", ROOM),
        (BESIDE, across(step=ACROSS), "a", ROOM),
    ],
    ids=[
        "no kubelet",
        "above its line",
        "the policy decides",
        "no cap is left",
        "another is first",
        "no cap",
        "not met",
        "others are let across",
    ],
)
def test_nobody_may_where_no_kubelet_kills_or_nothing_bounds_it(
    rules: Rules, state: State, first: str, room: int | None
) -> None:
    assert not may_run(rules, state, look(31 * MIB, first), room)


def test_two_that_are_held_may_not_take_what_is_left_one_after_the_other() -> None:
    """Each has the whole of it for its cap, because both are frozen."""
    state, _ = advance(BESIDE, held(BESIDE), Look(2, node(30 * MIB), (B,), first="a", usages={"a": A[1]}, freezes=True))
    caps = {pod.uid: pod.cap for pod in state.pods}
    left = 30 * MIB - (caps["a"] - A[1])
    after = Look(3, node(left), first="b", usages={"a": caps["a"], "b": B[1]}, freezes=True)
    assert not may_run(BESIDE, state, after, caps["b"] - B[1])
    assert left - (caps["b"] - B[1]) < LINE // 4
