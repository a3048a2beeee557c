"""The second witness of a kill; and which kills are outside the node."""

import time
from typing import Any

import pytest

from monitor.kernel.kmsg import LoggedKill
from monitor.kernel.wire import OomEvent
from monitor.race.events import KMSG_BY_HAND, Checked
from monitor.side.oom_events import LOGGED_NS, KillConfirmation, is_outside_node
from tests.race.builders import mark


def test_the_log_says_which_kill_sysrq_asked_for() -> None:
    """Its line may come before the mark of the kill, or after."""
    checked: list[Checked] = []
    confirmation, now = KillConfirmation(checked.append), time.monotonic_ns()
    for pid, by_hand in ((5, True), (6, False)):
        kill = LoggedKill(OomEvent("mark", now, victim_pid=pid), None, "Killed process", by_hand)
        steps = [lambda kill=kill: confirmation.logged(kill), lambda pid=pid: confirmation.marked(mark(0, pid=pid))]
        for take in steps if by_hand else steps[::-1]:
            assert [one for one in checked if one.victim_pid == pid] == []
            take()
    assert [(c.source, c.victim_pid) for c in checked] == [("kmsg", 5), (KMSG_BY_HAND, 5), ("kmsg", 6)]
    confirmation.marked(mark(0, pid=7, ts_ns=now))
    confirmation.turn(now + LOGGED_NS + 1)
    confirmation.logged(kill._replace(event=kill.event._replace(victim_pid=7)))
    assert len(checked) == 3, "another process of that number"


def step(**fields: Any) -> OomEvent:
    return OomEvent("mark", 1, victim_cgroup=7, victim_comm="stress", oom_cgroup=7)._replace(**fields)


@pytest.mark.parametrize(
    ("more", "node", "expected"),
    [
        ({}, "/c/node", True),
        ({"kind": "kill", "oom_cgroup": 0}, "/c/node", True),
        ({"kind": "exit", "oom_cgroup": 0}, "/c/node", True),
        ({}, None, False),  # the machine is the node
        ({"pod": "u"}, "/c/node", False),
        ({"domain": 0}, "/c/node", False),  # the first of the watched cgroups
        ({"oom_cgroup": 0}, "/c/node", False),  # the machine ran out
        ({"victim_cgroup": 0}, "/c/node", False),  # not known whose
        ({"while_away": True}, "/c/node", False),
        ({"kind": "reclaim", "victim_cgroup": 0}, "/c/node", False),
    ],
)
def test_what_is_outside_the_node(more: dict[str, Any], node: str | None, expected: bool) -> None:
    assert is_outside_node(step(**more), node) is expected
