"""The pass of the daemon: the grace, what it is sure to decide."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.compat import KUBELET, SANE
from monitor.policy.eviction_pass import (
    Outcome,
    PassConfig,
    State,
    grace_s,
    is_of_memory,
    run_pass,
    takes_first_at_once,
)
from monitor.policy.ranking import Candidate, EvictionOrder
from monitor.policy.releases import ERAS, era
from monitor.policy.signals import ALLOCATABLE_MEMORY, MEMORY, Observation
from monitor.policy.thresholds import Threshold, parse_thresholds
from tests.policy.test_ranking import CANDIDATES
from tests.policy.test_synchronize import CAPACITY

POD = Candidate("u", "ns", "p", 0, 0, 1, critical=False)
HARD, SOFT, DISK = parse_thresholds(
    {"memory.available": "1Gi", "nodefs.available": "1Gi"}, {"memory.available": "2Gi"}, {"memory.available": "30s"}
)
DAEMON = PassConfig((), 0, kill_at_once=True)


def outcome(starved: Threshold, *met: Threshold, grace: int = 30) -> Outcome:
    return Outcome(starved, POD, (), grace, frozenset(), (starved, *met), (starved, *met), None)


@pytest.mark.parametrize(
    ("made", "seconds"),
    [
        (outcome(HARD, grace=1), 0),  # a hard threshold gives no grace
        (outcome(SOFT, grace=30), 30),
        (outcome(SOFT, grace=0), 1),  # asked first, always
        (outcome(SOFT, HARD, grace=30), 0),  # whichever was picked to act
        (outcome(SOFT, grace=-5), 1),
    ],
)
def test_the_grace_that_is_given(made: Outcome, seconds: int) -> None:
    assert grace_s(DAEMON, made) == seconds


def test_a_kubelet_passes_on_what_its_release_has() -> None:
    assert [grace_s(PassConfig((), 0, era=era(name)), outcome(HARD, grace=1)) for name in ERAS] == [1, 1, 0, 0]
    assert grace_s(PassConfig((), 0), outcome(SOFT, HARD, grace=30)) == 30
    assert [PassConfig((), 0, era=era(name)).limit_grace_s for name in ERAS] == [1, 1, 0, 0]
    assert [PassConfig((), 0, era=era(name), kill_at_once=True).limit_grace_s for name in ERAS] == [1, 1, 1, 1]


SIGNALS = (MEMORY, ALLOCATABLE_MEMORY, "nodefs.available", "pid.available")
percents = st.integers(1, 99).map(lambda n: f"{n}%")
amounts = st.integers(1, CAPACITY).map(str)
available = st.integers(-50, CAPACITY)
observed = st.fixed_dictionaries({MEMORY: available, ALLOCATABLE_MEMORY: available}, optional={
    "nodefs.available": available, "pid.available": available,
})  # fmt: skip


@given(
    hard=st.dictionaries(st.sampled_from(SIGNALS[:1] + SIGNALS[2:]), percents | amounts, min_size=1),
    soft=st.dictionaries(st.sampled_from(SIGNALS[:1] + SIGNALS[2:]), percents | amounts),
    reclaim=st.dictionaries(st.sampled_from(SIGNALS[:1] + SIGNALS[2:]), amounts),
    compat=st.sampled_from([SANE, KUBELET]),
    before=st.lists(observed, max_size=3),
    now=observed,
    candidates=CANDIDATES,
)
def test_below_a_hard_line_for_memory_a_pass_takes_the_first_of_the_order_at_once(
    hard: Mapping[str, str],
    soft: Mapping[str, str],
    reclaim: Mapping[str, str],
    compat: str,
    before: list[Mapping[str, int]],
    now: Mapping[str, int],
    candidates: list[Candidate],
) -> None:
    """A prepared victim is signalled before the pass: whatever came before, the pass has to decide the same."""
    thresholds = parse_thresholds(hard, soft, dict.fromkeys(soft, "30s"), reclaim)
    config = PassConfig(thresholds, 5, max_pod_grace_s=7, compat=compat, kill_at_once=True)
    eviction_order = EvictionOrder()
    for candidate in candidates:
        eviction_order.put(candidate)
    state, result = State(), None
    for stamp, seen in enumerate((*before, now), 1):
        observations = {signal: Observation(free, CAPACITY, stamp) for signal, free in seen.items()}
        result = run_pass(config, state, observations, stamp, lambda _: eviction_order.order())
        state = result.state
    for signal in (MEMORY, ALLOCATABLE_MEMORY):
        lines = [t.quantity(CAPACITY) for t in thresholds if t.signal == signal and t.hard]
        if takes_first_at_once(now[signal], max(lines, default=0)):
            assert result.outcome.victim == eviction_order.first()
            assert is_of_memory(result.outcome)
            assert result.grace_s == 0
