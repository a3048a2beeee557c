"""What systemd's units say about stalls, as `systemctl show` prints it, and what becomes of the rules."""

from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import CannotError
from monitor.policy.stall import LONGEST_GRACE_NS, WINDOW_NS, Rule
from monitor.side import managed_oom
from monitor.side.managed_oom import UNASKED, Managed, Units, ask, parse
from tests.log_lines import LogLines
from tests.side.test_stalls import MIB, Node, S
from tests.waiting import until

#: systemd 257.
SHOWN = """\
ControlGroup=/system.slice/web.service
ManagedOOMSwap=auto
ManagedOOMMemoryPressure=kill
ManagedOOMMemoryPressureLimit=3435973836
ManagedOOMMemoryPressureDurationUSec=1min 30s

ControlGroup=/batch.slice
ManagedOOMSwap=auto
ManagedOOMMemoryPressure=kill
ManagedOOMMemoryPressureLimit=0
ManagedOOMMemoryPressureDurationUSec=[not set]

ControlGroup=/system.slice/db.service
ManagedOOMSwap=auto
ManagedOOMMemoryPressure=auto
ManagedOOMMemoryPressureLimit=3435973836

ControlGroup=
ManagedOOMSwap=auto
ManagedOOMMemoryPressure=kill
ManagedOOMMemoryPressureLimit=0
"""
POD = Rule("pod", 0.5, 10 * S, relax=True)


@pytest.mark.parametrize(
    ("cgroup", "share", "grace_s"),
    [
        ("/system.slice/web.service", 0.8, 90),
        ("/batch.slice/batch-one.slice/job.service", 0.6, 30),  # oomd kills one of those in the slice
        ("/system.slice/db.service", 0.5, 10),
        ("/system.slice/web.service.d", 0.5, 10),
    ],
)
def test_share_and_grace_are_the_units_and_what_is_done_is_the_rules(cgroup: str, share: float, grace_s: int) -> None:
    found = parse(SHOWN).rule({"pod": POD}, "pod", cgroup)
    assert found is not None
    assert (round(found.share, 3), found.grace_ns, found.relax) == (share, grace_s * S, True)


@pytest.mark.parametrize(("word", "swap"), [("auto", False), ("kill", True)])
def test_any_unit_may_ask_for_a_look_at_swap(word: str, swap: bool) -> None:
    found = parse(SHOWN + f"\nControlGroup=/user.slice\nManagedOOMSwap={word}\n")
    assert (found.rule({}, "swap.used", "/") is not None) is swap
    own = Rule("swap.used", 0.7)
    assert found.rule({"swap.used": own}, "swap.used", "/") == own
    assert found.rule({}, "pod", "/user.slice") is None


@given(st.text(), st.text(alphabet="0123456789 msuinh"))
def test_whatever_is_printed_a_rule_stays_one(limit: str, duration: str) -> None:
    block = "ControlGroup=/a\nManagedOOMMemoryPressure=kill\n"
    named = f"ManagedOOMMemoryPressureLimit={limit}\nManagedOOMMemoryPressureDurationUSec={duration}\n"
    rule = parse(block + named).rule({"pod": POD}, "pod", "/a")
    assert rule is not None
    assert rule.share > 0
    assert WINDOW_NS <= rule.grace_ns <= LONGEST_GRACE_NS


def test_a_manager_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(managed_oom, "_SYSTEMCTL", str(tmp_path / "none"))
    with pytest.raises(CannotError, match="what units say about memory pressure is not known"):
        ask()


def test_new_units_alone_cause_a_question_and_not_often() -> None:
    asked, answers = Queue[None](), Queue[Managed]()

    def answer() -> Managed:
        asked.put(None)
        return answers.get(timeout=30)

    units = Units(LogLines(), answer)
    for uids, now_s, is_asked in (("ab", 100, True), ("abc", 120, False), ("ab", 401, False), ("abc", 402, True)):
        units.look(uids, now_s * S)
        if is_asked:  # another question would wait for its answer
            asked.get(timeout=30)
            answers.put(Managed({}, swap=True))
    units.look("abcd", 800 * S)
    asked.get(timeout=30)
    assert (units.managed.swap, asked.qsize(), answers.qsize()) == (True, 0, 0)
    answers.put(Managed({}, swap=False))


def test_a_question_without_an_answer_is_repeated() -> None:
    asked, log = Queue[None](), LogLines()

    def fail() -> Managed:
        asked.put(None)
        raise CannotError("no answer")

    units = Units(log, fail)
    for now_s in (100, 500, 900):
        until(lambda: not units._known, "the failure")
        units.look("a", now_s * S)
        asked.get(timeout=30)
    until(lambda: bool(log.lines), "the failure")
    assert [text for _, text, _ in log.lines] == ["no answer"]


def test_a_pod_stalls_by_its_units_line_and_swap_is_looked_at_for_a_unit(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    found = Managed({"/node/reader": (0.9, 10 * S), "/node/hog": (0.6, 20 * S)}, swap=True)
    units: Any = SimpleNamespace(managed=UNASKED)
    units.look = lambda *_: setattr(units, "managed", found)
    node.stalls.units, node.swap = units, (0.95, 128 * MIB)
    node.quiet()
    node.seconds(14, reader=0.8, third=0.8, hog=0.8)
    assert sorted(one.pod_name for one in node.events()) == ["ns/third", "swap.used"]
    node.seconds(8, hog=0.8)
    assert [one.pod_name for one in node.events() if not one.over] == ["ns/hog"]
