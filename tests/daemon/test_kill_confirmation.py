"""Second witnesses of a kill; and kills outside the node: counted, and logged within a budget."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel.cgroupfs import Hierarchy, cgroup_id
from monitor.kernel.kmsg import Invoked, Killed
from monitor.kernel.wire import OomEvent
from monitor.race.events import KMSG_BY_HAND, Checked
from monitor.settings.config import RunConfig
from monitor.side.export.log import BURST
from monitor.side.oom_events import COUNTED_NS, UNSURE_NS, KillConfirmation, is_outside_node
from tests.race.builders import mark
from tests.side.parts import Parts


class Asked:
    """A kill confirmation over plain directories that stand for cgroups, and what it checked."""

    def __init__(self, root: Path, has_log: bool = False) -> None:
        self.checked: list[Checked] = []
        self.confirmation = KillConfirmation(Hierarchy(1, root), has_log, self.checked.append)
        self.root = root

    def count(self, name: str, kills: int) -> None:
        (self.root / name).mkdir(exist_ok=True)
        (self.root / name / "memory.oom_control").write_text(f"under_oom 0\noom_kill {kills}\n")

    def known(self, name: str) -> None:
        self.confirmation.known(cgroup_id(self.root / name), f"/{name}")

    def marked(self, pid: int, name: str, ts_ns: int | None = None) -> None:
        made = mark(0, pid=pid, ts_ns=ts_ns or time.monotonic_ns() + UNSURE_NS, memcg=f"/{name}")
        self.confirmation.marked(made, cgroup_id(self.root / name))

    def answers(self) -> list[bool]:
        self.confirmation.turn(time.monotonic_ns() + UNSURE_NS + COUNTED_NS)
        return [one.agrees for one in self.checked]


def test_kills_before_it_was_watched_confirm_nothing(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.count("a", 3)
    asked.known("a")
    asked.marked(1, "a")
    assert asked.answers() == [False], "it still counts 3"
    assert asked.checked[0].detail == "/a counts 3 OOM kills, 3 of them before it was watched, 1 were seen"
    asked.count("a", 5)
    asked.marked(2, "a")
    assert asked.answers()[1:] == [True]


def test_a_kill_that_may_be_among_them_is_not_asked_about(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.count("a", 1)
    killed_ns = time.monotonic_ns()
    asked.known("a")
    asked.marked(1, "a", killed_ns)
    assert asked.answers() == []


def test_a_cgroup_nobody_saw_before_is_asked_as_it_stands(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.count("a", 1)
    asked.marked(1, "a")
    assert asked.answers() == [True]


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


def test_they_are_counted_and_logged_within_a_budget(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = RunConfig(state_dir=str(tmp_path), node_cgroup="/c/node")
    parts = Parts(config, Hierarchy(2, Path("/c")), 1 << 20)
    handler = parts.handler()
    for _ in range(100):
        assert all(map(handler.handle, (step(), step(kind="kill"), step(exiting=True))))
    assert parts.figures.counts.kills_outside_node == 100
    parts.log.budget.flush(at_once=True)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == BURST + 1
    assert "victim=stress" in lines[0]
    assert f"lines={100 - BURST}" in lines[-1]
