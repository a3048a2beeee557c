"""Second witnesses of a kill; and which kills are outside the node."""

import time
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel.cgroupfs import Hierarchy, cgroup_id
from monitor.kernel.kmsg import Invoked, Killed
from monitor.kernel.wire import OomEvent
from monitor.race.events import KMSG_BY_HAND, Checked
from monitor.side.oom_events import COUNTED_NS, KillConfirmation, is_outside_node
from tests.race.builders import mark


class Asked:
    """A kill confirmation over plain directories that stand for cgroups, and what it checked."""

    def __init__(self, root: Path, has_log: bool = False) -> None:
        self.checked: list[Checked] = []
        self.confirmation = KillConfirmation(Hierarchy(1, root), has_log, self.checked.append)
        self.root = root

    def count(self, name: str, kills: int) -> None:
        (self.root / name).mkdir(exist_ok=True)
        (self.root / name / "memory.oom_control").write_text(f"under_oom 0\noom_kill {kills}\n")

    def marked(self, pid: int, name: str) -> None:
        made = mark(0, pid=pid, ts_ns=time.monotonic_ns(), memcg=f"/{name}")
        self.confirmation.marked(made, cgroup_id(self.root / name))

    def answers(self) -> list[bool]:
        self.confirmation.turn(time.monotonic_ns() + COUNTED_NS)
        return [one.agrees for one in self.checked]


def test_a_kill_is_confirmed_where_its_cgroup_counts_as_many_as_were_seen(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.count("a", 1)
    asked.marked(1, "a")
    assert asked.answers() == [True]
    asked.marked(2, "a")
    assert asked.answers()[1:] == [False], "it still counts 1"
    assert asked.checked[-1].detail == "/a counts 1 OOM kills, 2 were seen"
    asked.count("a", 5)
    asked.marked(3, "a")
    assert asked.answers()[2:] == [True]


def test_the_log_says_which_kill_sysrq_asked_for(tmp_path: Path) -> None:
    asked = Asked(tmp_path, has_log=True)
    killed = [Killed(2, pid, "x", False, "Killed process") for pid in (5, 6)]
    for pid, lines in ((5, [Invoked("x", True), killed[0]]), (6, killed[1:])):  # the kernel left out the other header
        asked.confirmation.read(lines)
        made = mark(0, pid=pid, ts_ns=time.monotonic_ns(), memcg="/n/a", oom_path=None)
        asked.confirmation.marked(made, 7)
    assert [(c.source, c.victim_pid) for c in asked.checked] == [("kmsg", 5), (KMSG_BY_HAND, 5), ("kmsg", 6)]


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
