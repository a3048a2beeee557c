"""What the hot process makes of a record, whichever source it came from."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import pytest

from monitor.hot.records import Records
from monitor.kernel.wire import CROSS, PAGE, STEP, OomEvent
from tests.daemon.stand_ins import outbox

NOW = 10_000_000_000
WATCH: Any = SimpleNamespace(
    cgroup_id=7,
    name="node",
    thresholds=(SimpleNamespace(signal="memory.available", hard=True),),
    lines=(1,),
    capacity=100 * PAGE,
    formula=0,
)


class Sides:
    """A consumer, and what it calls and sends."""

    def __init__(self, *, is_exact: bool = True) -> None:
        self.sent: list[Any] = []
        self.source, self.decider, self.registry, gauge = MagicMock(), MagicMock(), MagicMock(), MagicMock()
        gauge.table.cgroup_id = {3: 7, 4: 8}.get
        self.pod = self.registry.owner_of_cgroup.return_value = SimpleNamespace(uid="u", title="lab/p")
        self.registry.leaders.return_value = ["first"]
        to = outbox(self.sent.append)
        self.records = Records(self.source, gauge, self.registry, self.decider, to, is_exact=is_exact)
        self.records.opened()
        self.records.watch({3: WATCH})

    def record(self, kind: int, index: int, cgroup_id: int, threshold: int = 0) -> None:
        self.records.event((NOW, cgroup_id, 60, 20, 5, 0, 0, kind, index, threshold, 0, 0, 0))


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_crossing_is_acted_on_after_the_steps_before_it_and_then_reported(is_exact: bool) -> None:
    sides = Sides(is_exact=is_exact)
    order = MagicMock()
    order.attach_mock(sides.source.catch_up, "steps")
    order.attach_mock(sides.decider.run_pass, "acted")
    sides.record(CROSS, 3, 7)
    # What was found by looking is not of this moment: nothing is killed ahead of the pass by it.
    assert order.mock_calls == [call.steps(), call.acted(NOW, WATCH if is_exact else None)]
    (crossing,) = sides.sent
    assert (crossing.ts_ns, crossing.working_set, crossing.available) == (NOW, 40 * PAGE, 60 * PAGE)


@pytest.mark.parametrize(
    ("index", "cgroup_id", "line", "passes"),
    [(4, 8, 0, False), (3, 9, 0, False), (3, 7, 1, True)],  # not watched, not watched any more, the line of holds
)
def test_a_crossing_of_no_threshold_is_not_reported(index: int, cgroup_id: int, line: int, passes: bool) -> None:
    sides = Sides()
    sides.record(CROSS, index, cgroup_id, line)
    assert (sides.decider.run_pass.called, sides.sent) == (passes, [])


def test_a_step_is_of_a_pod_or_of_a_domain() -> None:
    sides = Sides()
    sides.record(STEP, 4, 8)
    sides.record(STEP, 4, 9)  # the slot has another owner by now
    assert sides.decider.step.mock_calls == [call(4, 40 * PAGE)]
    sides.decider.stirred = False
    sides.record(STEP, 3, 7)
    assert sides.decider.stirred


MARK = OomEvent("mark", NOW, victim_pid=5, victim_cgroup=8, anon_rss=3 * PAGE, pgtables=PAGE)


@pytest.mark.parametrize(
    ("event", "size"),
    [
        (MARK, 4 * PAGE),
        (MARK._replace(missing=("reclaim",)), 4 * PAGE),  # by the log
        (OomEvent("exit", NOW, 5, victim_cgroup=8), 0),
        (OomEvent("mark", NOW, victim_cgroup=8, source="memory.events.local"), None),  # counted, a second late
        (MARK._replace(exiting=True), None),
        (OomEvent("reclaim", NOW, victim_cgroup=8), None),
    ],
)
def test_memory_of_a_killed_process_is_waited_for(event: OomEvent, size: int | None) -> None:
    sides = Sides()
    sides.records.oom(event)
    assert sides.decider.died.mock_calls == ([] if size is None else [call(sides.pod, size)])
    order = ["first"] if event.kind == "mark" else ()
    assert sides.sent == [event._replace(pod="u", pod_name="lab/p", order=order)]


def test_a_victim_deeper_than_its_pods_containers_is_the_pods() -> None:
    sides = Sides()
    sides.registry.owner_of_cgroup = {8: sides.pod}.get
    sides.records.oom(MARK._replace(victim_cgroup=99, domain=4))
    sides.records.oom(MARK._replace(victim_cgroup=99))
    assert [message.pod for message in sides.sent] == ["u", None]
