"""The gate between a pod and its eviction: which question comes first, and which are not asked at all."""

from itertools import pairwise
from typing import Any

import pytest

from monitor.policy.decisions import BUSY, EVICT, HELD, NO_VICTIM, PRESSED, RETURNS, SIGNALLED, SUSPENDED, gate
from monitor.policy.suspension import GO, NO_GAIN, WAIT, Answer

STOP = Answer(False, NO_GAIN)
NONE = {"may_act": True, "busy": False}
#: Reasons that callers know, in the order of the gate.
KNOWN = {
    NO_VICTIM: {"may_act": False},
    BUSY: {"busy": True},
    SIGNALLED: {"signalled": True},
    PRESSED: {"pressed": True},
    RETURNS: {"waits": True},
    SUSPENDED: dict[str, bool](),
}


def through(suspends: Answer, holds: bool, **more: Any) -> tuple[str, str]:
    """The answer, and the parts that were asked: the suspension (s), the holds (h)."""
    asked = ""

    def ask(part: str, answer: Any) -> Any:
        nonlocal asked
        asked += part
        return answer

    found = gate(suspends=lambda: ask("s", suspends), holds=lambda: ask("h", holds), **NONE | more)
    return found, asked


@pytest.mark.parametrize(("first", "second"), [*pairwise(KNOWN)])
def test_what_is_known_is_asked_first(first: str, second: str) -> None:
    assert through(STOP, True, **KNOWN[second] | KNOWN[first]) == (first, "")
    assert gate(**NONE) == EVICT


@pytest.mark.parametrize(
    ("suspends", "holds", "forced", "answer", "asked"),
    [
        (GO, False, False, EVICT, "sh"),
        (GO, True, False, HELD, "sh"),
        (STOP, True, False, SUSPENDED, "s"),
        (WAIT, True, False, HELD, "sh"),
        (WAIT, False, False, SUSPENDED, "sh"),
        (STOP, False, True, EVICT, "sh"),
        (STOP, True, True, HELD, "sh"),
    ],
)
def test_suspended_evictions_come_before_holds(
    suspends: Answer, holds: bool, forced: bool, answer: str, asked: str
) -> None:
    """A signal that went out is not suspended; to hold a pod need not be thought over."""
    assert through(suspends, holds, forced=forced) == (answer, asked)
