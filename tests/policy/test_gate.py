"""The gate between a pass and an eviction: which question comes first, and which are not asked at all."""

from typing import Any

import pytest

from monitor.policy.decisions import BUSY, EVICT, HELD, NO_VICTIM, RETURNS, SUSPENDED, gate
from monitor.policy.ranking import Candidate
from monitor.policy.suspension import GO, NO_GAIN, WAIT, Answer
from monitor.policy.synchronize import Outcome

IDLE = Outcome(None, None, (), 0, frozenset(), (), (), None)
VICTIM = IDLE._replace(victim=Candidate("uid", "ns", "pod", 0, 0, 0, critical=False))
STOP = Answer(False, NO_GAIN)


def through(suspends: Answer, holds: bool, **more: Any) -> tuple[str, str]:
    """The answer, and the parts that were asked: the brake on evictions (s), the holds (h)."""
    asked = ""

    def ask(part: str, answer: Any) -> Any:
        nonlocal asked
        asked += part
        return answer

    given = {"may_act": True, "busy": False, "waits": False, "forced": False, **more}
    outcome = given.pop("outcome", VICTIM)
    found = gate(outcome, suspends=lambda _: ask("s", suspends), holds=lambda _: ask("h", holds), **given)
    return found, asked


@pytest.mark.parametrize(
    ("more", "answer"),
    [
        ({"outcome": IDLE, "busy": True}, NO_VICTIM),
        ({"may_act": False, "busy": True}, NO_VICTIM),
        ({"busy": True, "waits": True}, BUSY),
        ({"waits": True}, RETURNS),
    ],
)
def test_what_is_known_is_asked_first(more: dict[str, Any], answer: str) -> None:
    assert through(STOP, True, **more) == (answer, "")


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
