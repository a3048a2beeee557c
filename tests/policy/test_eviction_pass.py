"""The pass of the daemon: the grace, what it is sure to decide, what it leaves for another configuration."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.compat import KUBELET, SANE
from monitor.policy.eviction_pass import (
    Outcome,
    PassConfig,
    PassResult,
    State,
    carry,
    grace_s,
    is_of_memory,
    run_pass,
    takes_first_at_once,
)
from monitor.policy.ranking import Candidate, EvictionOrder
from monitor.policy.releases import ERAS, era
from monitor.policy.signals import ALLOCATABLE_MEMORY, MEMORY, NODEFS, Observation
from monitor.policy.thresholds import Threshold, parse_thresholds
from tests.policy.test_ranking import CANDIDATES
from tests.policy.test_synchronize import CAPACITY, PODS, S

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


def config(
    hard: Mapping[str, str] | None = None, soft: str = "", grace: str = "1h", reclaim: str = "", period_s: int = 300
) -> PassConfig:
    softs = {MEMORY: soft} if soft else {}
    reclaims = {MEMORY: reclaim} if reclaim else {}
    return PassConfig(parse_thresholds(hard or {}, softs, dict.fromkeys(softs, grace), reclaims), period_s * S)


def passed(by: PassConfig, state: State, at_s: int, available: int, signal: str = MEMORY) -> PassResult:
    seen = {signal: Observation(available, CAPACITY, at_s * S)}
    return run_pass(by, state, seen, at_s * S, lambda _: PODS)


def test_a_soft_threshold_that_stays_is_met_since_when_it_was() -> None:
    long, short = config(soft="100"), config(soft="100", grace="30s")
    state = passed(long, State(), 10, 50).state
    assert passed(short, carry(long, state, short), 39, 50).outcome.victim is None
    assert passed(short, carry(long, state, short), 40, 50).outcome.victim is not None
    # ... and one with a longer grace waits longer, though it was past its grace before.
    state = passed(short, passed(short, State(), 10, 50).state, 40, 50).state
    assert passed(long, carry(short, state, long), 41, 50).outcome.victim is None


@pytest.mark.parametrize("new", [config(soft="90"), config(hard={MEMORY: "90"}, soft="90")])
def test_a_soft_threshold_of_another_value_begins_anew(new: PassConfig) -> None:
    old = config(soft="100", grace="30s")
    state = passed(old, State(), 10, 89).state
    found = passed(new, carry(old, state, new), 60, 89).outcome
    softs = [t for t in found.met if not t.hard]
    assert softs == []


def test_nobody_is_evicted_for_the_min_reclaim_of_a_threshold_that_is_gone() -> None:
    old, same, lower = (config(hard={MEMORY: v}, reclaim="50") for v in ("100", "100", "60"))
    state = passed(old, State(), 10, 90).state
    held = passed(same, carry(old, state, same), 11, 120).outcome
    assert held.victim is not None  # 120 is below 100 and 50
    assert passed(lower, carry(old, state, lower), 11, 100).outcome.victim is None


def test_nobody_is_evicted_by_the_figure_that_the_configuration_before_has_acted_on() -> None:
    old, new = config(hard={MEMORY: "100"}), config(hard={MEMORY: "100"}, soft="200")
    state, seen = passed(old, State(), 10, 50).state, {MEMORY: Observation(50, CAPACITY, 10 * S)}
    assert run_pass(new, carry(old, state, new), seen, 11 * S, lambda _: PODS).outcome.victim is None


def test_a_condition_stays_for_the_transition_period_of_now() -> None:
    old, shorter = config(hard={MEMORY: "100"}), config(hard={MEMORY: "90"}, period_s=60)
    state = passed(old, State(), 10, 95).state
    moved = carry(old, state, shorter)
    assert passed(shorter, moved, 69, 200).outcome.conditions == {"MemoryPressure"}
    assert passed(shorter, moved, 70, 200).outcome.conditions == frozenset()


def test_a_condition_that_no_threshold_speaks_of_is_over() -> None:
    old, new = config(hard={MEMORY: "100"}), config(hard={NODEFS: "100"})
    state = passed(old, State(), 10, 50).state
    assert state.conditions == {"MemoryPressure"}
    assert passed(new, carry(old, state, new), 11, 500, NODEFS).outcome.conditions == frozenset()


def test_before_the_first_pass_there_is_nothing_to_keep() -> None:
    old, new = config(hard={MEMORY: "100"}), config(hard={MEMORY: "90", NODEFS: "5"})
    assert carry(old, State(), new) == State()
    assert carry(config(), passed(config(), State(), 1, 1).state, new) == State()
