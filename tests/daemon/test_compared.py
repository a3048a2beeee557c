"""The kubelet's line where only outrace's own signals act: watched, compared, and no action follows."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.domains import NO_CEILING, RECLAIMABLE
from monitor.policy.signals import ALLOCATABLE_MEMORY, MEMORY, Observation
from monitor.policy.signals import RECLAIMABLE as SIGNAL
from monitor.policy.thresholds import parse_thresholds
from monitor.sources.polled_table import PolledTable
from monitor.sources.watch import Compared, Watch, arm_thresholds, make_watches
from tests import live

MIB = live.MIB
HIERARCHY = cgroupfs.detect()
pytestmark = pytest.mark.kernel


node = live.fixture(live.cgroup, "compared", 100 * MIB)


Watches = Callable[..., list[Watch]]


@pytest.fixture
def watches(node: Path) -> Iterator[Watches]:
    """Watches of the node, closed at the end."""
    with ExitStack() as stack:

        def make(hard: dict[str, str]) -> list[Watch]:
            thresholds = parse_thresholds(hard, own=True)
            table = PolledTable(HIERARCHY)
            stack.callback(table.reset)
            made = make_watches(table, "node", node, 100 * MIB, thresholds, HIERARCHY.version)
            for watch in made:
                stack.callback(watch.close)
            return made

        yield make


def test_a_domain_is_watched_once_for_each_formula(node: Path, watches: Watches) -> None:
    (only,) = watches({MEMORY: "10Mi"})
    assert (only.signal, only.formula, only.compared, only.hard_line) == (MEMORY, 0, False, 10 * MIB)
    made = watches({SIGNAL: "10Mi", MEMORY: "1Mi"})
    assert [(w.formula, w.compared, w.hard_line // MIB) for w in made] == [(0, False, 1), (RECLAIMABLE, False, 10)]
    assert len({w.index for w in made}) == 2
    assert {w.cgroup_id for w in made} == {cgroupfs.cgroup_id(node)}


def test_the_kubelets_line_is_there_and_kills_nobody(watches: Watches) -> None:
    kubelets, ours = watches({SIGNAL: "10Mi"})
    assert (kubelets.signal, kubelets.compared, kubelets.lines) == (MEMORY, True, (10 * MIB,))
    assert kubelets.hard_line == 0, "no pod is signalled at its crossing"
    for watch, pull_above in ((kubelets, NO_CEILING), (ours, 90 * MIB // 4096)):
        table = MagicMock()
        arm_thresholds(table, watch, kernel_trigger=True)
        assert table.set_ceilings.call_args.args[::2] == (watch.index, pull_above)
    kubelets.set_capacity(200 * MIB)
    assert kubelets.hard_line == 0
    assert kubelets.floor == 10 * MIB


def test_when_a_line_is_met_no_more(watches: Watches) -> None:
    kubelets, _ = watches({SIGNAL: "10Mi"})
    compared = Compared()
    assert compared.look(kubelets, Observation(11 * MIB, 100 * MIB, 1)) == ()
    assert compared.look(kubelets, Observation(9 * MIB, 100 * MIB, 2)) == ()
    assert [t.signal for t in compared.met] == [MEMORY]
    other = type("Other", (), {"signal": ALLOCATABLE_MEMORY, "thresholds": (), "lines": ()})()
    assert compared.look(other, Observation(0, 1, 2)) == (), "another domain changes nothing"
    (over,) = compared.look(kubelets, Observation(10 * MIB, 100 * MIB, 3))
    assert over.signal == MEMORY
    assert compared.met == ()
