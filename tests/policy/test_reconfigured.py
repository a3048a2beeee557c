"""What a pass leaves for the next one where another configuration comes into force in between."""

from collections.abc import Mapping

import pytest

from monitor.policy.eviction_pass import KNOWN_LAYOUT, PassConfig, PassResult, PassState, reconfigured, run_pass
from monitor.policy.signals import MEMORY, NODEFS
from monitor.policy.synchronize import Observation
from monitor.policy.thresholds import parse_thresholds
from tests.policy.test_synchronize import CAPACITY, PODS, S


def config(
    hard: Mapping[str, str] | None = None,
    soft: str = "",
    grace: str = "1h",
    reclaim: str = "",
    period_s: int = 300,
) -> PassConfig:
    softs = {MEMORY: soft} if soft else {}
    reclaims = {MEMORY: reclaim} if reclaim else {}
    return PassConfig(parse_thresholds(hard or {}, softs, dict.fromkeys(softs, grace), reclaims), period_s * S)


def passed(by: PassConfig, state: PassState, at_s: int, available: int, signal: str = MEMORY) -> PassResult:
    seen = {signal: Observation(available, CAPACITY, at_s * S)}
    return run_pass(by, state, seen, at_s * S, lambda _: PODS)


def test_a_soft_threshold_that_stays_is_met_since_when_it_was() -> None:
    long, short = config(soft="100"), config(soft="100", grace="30s")
    state = passed(long, KNOWN_LAYOUT, 10, 50).state
    assert passed(short, reconfigured(long, state, short), 39, 50).outcome.victim is None
    assert passed(short, reconfigured(long, state, short), 40, 50).outcome.victim is not None
    # ... and one with a longer grace waits longer, though it was past its grace before.
    state = passed(short, passed(short, KNOWN_LAYOUT, 10, 50).state, 40, 50).state
    assert passed(long, reconfigured(short, state, long), 41, 50).outcome.victim is None


@pytest.mark.parametrize("new", [config(soft="90"), config(hard={MEMORY: "90"}, soft="90")])
def test_a_soft_threshold_of_another_value_begins_anew(new: PassConfig) -> None:
    old = config(soft="100", grace="30s")
    state = passed(old, KNOWN_LAYOUT, 10, 89).state
    found = passed(new, reconfigured(old, state, new), 60, 89).outcome
    softs = [t for t in found.met if not t.hard]
    assert softs == []


def test_a_hard_threshold_that_is_met_at_once_evicts_at_once() -> None:
    old, new = config(hard={MEMORY: "10"}), config(hard={MEMORY: "100"})
    result = passed(old, KNOWN_LAYOUT, 10, 50)
    assert result.outcome.victim is None
    assert passed(new, reconfigured(old, result.state, new), 11, 50).outcome.victim is not None


def test_nobody_is_evicted_for_the_min_reclaim_of_a_threshold_that_is_gone() -> None:
    old, same, lower = (config(hard={MEMORY: v}, reclaim="50") for v in ("100", "100", "60"))
    state = passed(old, KNOWN_LAYOUT, 10, 90).state
    held = passed(same, reconfigured(old, state, same), 11, 120).outcome
    assert held.victim is not None  # 120 is below 100 and 50
    assert passed(lower, reconfigured(old, state, lower), 11, 100).outcome.victim is None


def test_a_condition_stays_for_the_transition_period_of_now() -> None:
    old, shorter = config(hard={MEMORY: "100"}), config(hard={MEMORY: "90"}, period_s=60)
    state = passed(old, KNOWN_LAYOUT, 10, 95).state
    moved = reconfigured(old, state, shorter)
    assert passed(shorter, moved, 69, 200).outcome.conditions == {"MemoryPressure"}
    assert passed(shorter, moved, 70, 200).outcome.conditions == frozenset()


def test_a_condition_that_no_threshold_speaks_of_is_over() -> None:
    old, new = config(hard={MEMORY: "100"}), config(hard={NODEFS: "100"})
    state = passed(old, KNOWN_LAYOUT, 10, 50).state
    assert state.core.conditions == {"MemoryPressure"}
    assert passed(new, reconfigured(old, state, new), 11, 500, NODEFS).outcome.conditions == frozenset()


def test_before_the_first_pass_there_is_nothing_to_keep() -> None:
    old, new = config(hard={MEMORY: "100"}), config(hard={MEMORY: "90", NODEFS: "5"})
    assert reconfigured(old, KNOWN_LAYOUT, new) == KNOWN_LAYOUT
    assert reconfigured(old, PassState(), new) == PassState()
    assert reconfigured(config(), passed(config(), KNOWN_LAYOUT, 1, 1).state, new) == KNOWN_LAYOUT
