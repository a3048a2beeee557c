"""Marks that the kernel's log and the victim's own counter confirm or deny."""

import pytest

from monitor.race.events import Checked, End
from tests.race.builders import CAPACITY, OWN_POD, START, clear, crossing, died, judged, mark, ms


def checked(t: float, source: str, agrees: bool, pid: int = 4242) -> Checked:
    return Checked(ms(t), source, pid, agrees, "as asked")


@pytest.mark.parametrize(
    ("confirmations", "expected"),
    [
        ((("kmsg", False), ("memory.events", False)), "relieved"),
        ((("kmsg", False), ("memory.oom_control", False)), "relieved"),
        ((("kmsg", False), ("memory.events", True)), "oom_before_decision"),
        ((("kmsg", True), ("memory.events", False)), "oom_before_decision"),
        ((("kmsg", False),), "oom_before_decision"),
        ((("memory.events", False),), "oom_before_decision"),
        ((), "oom_before_decision"),
    ],
)
def test_a_mark_that_both_confirmations_deny_is_no_kill(
    confirmations: tuple[tuple[str, bool], ...], expected: str
) -> None:
    asked = [checked(100 + k, source, agrees) for k, (source, agrees) in enumerate(confirmations)]
    found = judged(*START, crossing(), mark(3), *asked, clear(1000), died(1100), End(ms(9000)))
    assert found.verdict == expected
    assert ("already_exiting" in found.flags) == (expected == "relieved")
    assert bool(found.oom_victims) == (expected != "relieved")
    denied = "python3 (pid 4242) was marked, but both the kernel's log and the counter of its cgroup deny a kill"
    assert (denied in found.summary) == (expected == "relieved")


def test_of_two_marks_the_one_that_is_confirmed_decides() -> None:
    marks = (mark(3), mark(40, "cart", pid=5, oom_usage=CAPACITY))
    denied = (checked(100, "kmsg", False), checked(101, "memory.events", False), checked(102, "kmsg", True, 5))
    found = judged(*START, crossing(), *marks, *denied, clear(1000), died(1100), died(1100, 5), End(ms(9000)))
    assert [v.pid for v in found.oom_victims] == [5]
    assert (found.verdict, "already_exiting" in found.flags) == ("oom_before_decision", True)


def test_a_denied_mark_alone_is_no_oom_kill() -> None:
    denied = (checked(100, "kmsg", False), checked(101, "memory.events", False))
    found = judged(*START, mark(3, **OWN_POD), *denied, died(1100), End(ms(9000)))
    assert found.summary.startswith("No OOM kill: it was announced, but no other source confirms it")
