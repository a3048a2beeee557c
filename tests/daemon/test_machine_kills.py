"""OOM kills outside the cgroup that is the node: counted, logged once a second, never one by one."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.kernel.wire import OomEvent
from monitor.link.messages import Oom
from monitor.side import machine_kills
from monitor.side.machine_kills import LOG_INTERVAL_NS, MachineKills, is_outside_node


def step(pod: str | None = None, while_away: bool = False, **fields: Any) -> Oom:
    mark = OomEvent("mark", 1, victim_cgroup=7, victim_comm="stress", oom_cgroup=7)
    return Oom(replace(mark, **fields), pod, None, while_away)


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


def test_they_are_counted_and_logged_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, Any]] = []
    log = SimpleNamespace(info=lambda _, **fields: logged.append(fields))
    view: Any = SimpleNamespace(kills_outside_node=0, log=log)
    now = [1_000 * LOG_INTERVAL_NS]
    monkeypatch.setattr(machine_kills, "time", SimpleNamespace(monotonic_ns=lambda: now[0]))
    one = MachineKills(view)
    for _ in range(100):
        one.take(step())
        one.take(step(kind="kill"))
        one.take(step(exiting=True))
    assert view.kills_outside_node == 100
    assert logged == [{"kills": 1, "victims": {"stress": 1}}]
    now[0] += LOG_INTERVAL_NS
    one.flush()
    one.flush()
    assert logged[1:] == [{"kills": 99, "victims": {"stress": 99}}]
