"""How an eviction is carried out."""

from __future__ import annotations

import pytest

from monitor.policy.acting import grace_s, hurries, of_memory, urgent
from monitor.policy.ranking import Candidate
from monitor.policy.synchronize import Outcome
from monitor.policy.thresholds import Threshold, parse_thresholds

POD = Candidate("u", "ns", "p", 0, 0, 1, critical=False)
HARD, SOFT, DISK = parse_thresholds(
    {"memory.available": "1Gi", "nodefs.available": "1Gi"}, {"memory.available": "2Gi"}, {"memory.available": "30s"}
)


def outcome(starved: Threshold, *met: Threshold, grace: int = 30, victim: Candidate | None = POD) -> Outcome:
    return Outcome(starved, victim, (), grace, frozenset(), (starved, *met), (starved, *met), None)


@pytest.mark.parametrize(
    ("made", "seconds"),
    [
        (outcome(HARD, grace=1), 0),  # nobody waits for it
        (outcome(SOFT, grace=30), 30),
        (outcome(SOFT, grace=0), 1),  # asked first, always
        (outcome(SOFT, HARD, grace=30), 0),  # whichever was picked to act
        (outcome(SOFT, grace=-5), 1),
    ],
)
def test_the_grace_that_is_given(made: Outcome, seconds: int) -> None:
    assert grace_s(made) == seconds


def test_thresholds_of_disks_are_never_that_urgent() -> None:
    made = outcome(DISK, grace=1)
    assert not of_memory(made)
    assert not urgent(made)
    assert grace_s(made) == 1
    assert grace_s(outcome(DISK, HARD, grace=1)) == 1  # it is for the disk that this pod goes


def test_a_hard_threshold_hurries_who_is_in_the_grace() -> None:
    assert hurries(outcome(HARD))
    assert hurries(outcome(SOFT, HARD))
    assert not hurries(outcome(SOFT))
    assert not hurries(outcome(HARD, victim=None))
