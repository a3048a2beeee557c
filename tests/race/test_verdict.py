"""One episode per verdict and flag with the truth known, the laws of every verdict, and marks that were denied."""

import pytest

from monitor.race.events import Checked, End, Lost
from monitor.race.incident import FLAGS, VERDICTS
from tests.race.builders import (
    CAPACITY,
    OWN_POD,
    START,
    clear,
    crossing,
    died,
    judged,
    mark,
    ms,
    one,
    same_after_json,
    sample,
)
from tests.race.scenarios import SCENARIOS, of_scenario


@pytest.mark.parametrize("name", SCENARIOS)
def test_verdict_and_flags(name: str) -> None:
    found = of_scenario(name)
    assert (found.verdict, set(found.flags)) == SCENARIOS[name][1:]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_incident_can_be_stored_and_is_summed_up_in_one_sentence(name: str) -> None:
    found = of_scenario(name)
    assert same_after_json(found)
    assert same_after_json(one(*SCENARIOS[name][0]))  # type: ignore[arg-type]
    assert list(found.to_json())[:14] == [
        "id", "start", "end", "domain", "verdict", "flags", "oom_victims", "invoker", "evicted",
        "margin_bytes", "margin_ms", "steps", "advice", "summary",
    ]  # fmt: skip
    assert found.summary.endswith(".")
    assert 20 < len(found.summary) < 330
    assert "None" not in found.summary + found.advice
    assert all(a["t_ms"] <= b["t_ms"] for a, b in zip(found.steps, found.steps[1:], strict=False))


def test_every_verdict_and_flag_has_a_scenario() -> None:
    assert {v for _, v, _ in SCENARIOS.values()} == set(VERDICTS)
    assert set().union(*(flags for _, _, flags in SCENARIOS.values())) == set(FLAGS)


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


def test_a_counted_kill_claims_nothing() -> None:
    """The daemon reports "global" where it knows of no cgroup, which is not the same as the machine having run out."""
    lost = [Lost(ms(0), ms(0) - 1, what, 1) for what in ("oom", "exit", "decision", "cross")]
    counted = mark(0, "cart", pid=0, victim_comm="", scope="global", oom_path=None, oom_usage=None, oom_limit=None)
    found = judged(*START, sample(-10, 500), *lost, counted)
    assert (found.verdict, found.flags) == ("undetermined", ("lost_events",))
    seen = mark(0, "cart", scope="global", oom_path=None, oom_usage=None, oom_limit=None)
    assert {"global", "wrong_victim"} <= set(judged(*START, sample(-10, 500), seen).flags)
