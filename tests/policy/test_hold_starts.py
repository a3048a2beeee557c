"""Whether a held pod may run for a moment for a process that starts in it."""

import pytest

from monitor.policy.hold import Look, Rules, State, advance
from monitor.policy.hold_starts import may_run
from tests.policy.test_hold import ALONE, BESIDE, LINE, MIB, A, B, held, node

#: 31 MiB were left, so the second line is at 7.75.
CAP = A[1] + 15 * MIB


def look(available: int, first: str = "a", usage: int = A[1]) -> Look:
    return Look(2, node(available), first=first, usages={"a": usage})


def across(rules: Rules = BESIDE, **more: object) -> State:
    """Somebody is held, and the threshold is met."""
    return held(rules)._replace(**more)


def test_the_first_of_the_order_may_below_its_cap_and_above_the_second_line() -> None:
    assert may_run(BESIDE, across(), look(31 * MIB), CAP)
    assert may_run(BESIDE, across(), look(23 * MIB), CAP)
    assert not may_run(BESIDE, across(), look(22 * MIB), CAP), "taking all of it would reach the second line"
    assert may_run(BESIDE, across(), look(22 * MIB, usage=A[1] + 8 * MIB), CAP), "it has taken half of it"
    assert may_run(BESIDE, across(), look(9 * MIB), A[1] - MIB), "its own limit is lower than what it has"


@pytest.mark.parametrize(
    ("rules", "state", "first", "cap"),
    [
        (ALONE, across(ALONE), "a", CAP),
        (BESIDE, across(met_ns=0), "a", CAP),
        (BESIDE, across(opened="unanswered"), "a", CAP),
        (BESIDE, across(tight=True), "a", CAP),
        (BESIDE, across(), "b", CAP),
        (BESIDE, across(), "a", 0),
        (BESIDE, across(left={}), "a", CAP),
    ],
    ids=[
        "no kubelet",
        "above its line",
        "the policy decides",
        "no cap is left",
        "another is first",
        "no cap",
        "not met",
    ],
)
def test_nobody_may_where_no_kubelet_kills_or_nothing_bounds_it(
    rules: Rules, state: State, first: str, cap: int
) -> None:
    assert not may_run(rules, state, look(31 * MIB, first), cap)


def test_two_that_are_held_may_not_take_what_is_left_one_after_the_other() -> None:
    """Each has the whole of it for its cap, because both are frozen."""
    state, _ = advance(BESIDE, held(BESIDE), Look(2, node(30 * MIB), (B,), first="a", usages={"a": A[1]}, freezes=True))
    caps = {pod.uid: pod.cap for pod in state.pods}
    left = 30 * MIB - (caps["a"] - A[1])
    after = Look(3, node(left), first="b", usages={"a": caps["a"], "b": B[1]}, freezes=True)
    assert not may_run(BESIDE, state, after, caps["b"])
    assert left - (caps["b"] - B[1]) < LINE // 4
