"""How an eviction is carried out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.acting import grace_s, hurries, of_memory, takes_first_at_once, urgent
from monitor.policy.compat import KUBELET, SANE
from monitor.policy.eviction_order import EvictionOrder
from monitor.policy.ranking import Candidate, memory_key
from monitor.policy.signals import ALLOCATABLE_MEMORY, MEMORY
from monitor.policy.synchronize import EvictionConfig, Observation, Outcome, State, synchronize
from monitor.policy.thresholds import Threshold, parse_thresholds

POD = Candidate("u", "ns", "p", 0, 0, 1, critical=False)
HARD, SOFT, DISK = parse_thresholds(
    {"memory.available": "1Gi", "nodefs.available": "1Gi"}, {"memory.available": "2Gi"}, {"memory.available": "30s"}
)


def outcome(starved: Threshold, *met: Threshold, grace: int = 30, victim: Candidate | None = POD) -> Outcome:
    return Outcome(starved, victim, (), grace, frozenset(), (starved, *met), (starved, *met), None)


@pytest.mark.parametrize(
    ("made", "seconds"),
    [
        (outcome(HARD, grace=1), 0),  # nobody waits for it
        (outcome(SOFT, grace=30), 30),
        (outcome(SOFT, grace=0), 1),  # asked first, always
        (outcome(SOFT, HARD, grace=30), 0),  # whichever was picked to act
        (outcome(SOFT, grace=-5), 1),
    ],
)
def test_the_grace_that_is_given(made: Outcome, seconds: int) -> None:
    assert grace_s(made) == seconds


def test_thresholds_of_disks_are_never_that_urgent() -> None:
    made = outcome(DISK, grace=1)
    assert not of_memory(made)
    assert not urgent(made)
    assert grace_s(made) == 1
    assert grace_s(outcome(DISK, HARD, grace=1)) == 1  # it is for the disk that this pod goes


def test_a_hard_threshold_hurries_who_is_in_the_grace() -> None:
    assert hurries(outcome(HARD))
    assert hurries(outcome(SOFT, HARD))
    assert not hurries(outcome(SOFT))
    assert not hurries(outcome(HARD, victim=None))


CAPACITY = 1000
SIGNALS = (MEMORY, ALLOCATABLE_MEMORY, "nodefs.available", "pid.available")
percents = st.integers(1, 99).map(lambda n: f"{n}%")
amounts = st.integers(1, CAPACITY).map(str)
available = st.integers(-50, CAPACITY)
observed = st.fixed_dictionaries({MEMORY: available, ALLOCATABLE_MEMORY: available}, optional={
    "nodefs.available": available, "pid.available": available,
})  # fmt: skip
pods = st.lists(
    st.builds(
        Candidate,
        uid=st.integers(0, 10**9).map(str),
        namespace=st.just("ns"),
        name=st.just("p"),
        priority=st.integers(-2, 2),
        request=st.integers(0, 500),
        usage=st.integers(0, 500) | st.none(),
        critical=st.booleans(),
    ),
    max_size=5,
    unique_by=lambda candidate: candidate.uid,
)


@given(
    hard=st.dictionaries(st.sampled_from(SIGNALS[:1] + SIGNALS[2:]), percents | amounts, min_size=1),
    soft=st.dictionaries(st.sampled_from(SIGNALS[:1] + SIGNALS[2:]), percents | amounts),
    reclaim=st.dictionaries(st.sampled_from(SIGNALS[:1] + SIGNALS[2:]), amounts),
    compat=st.sampled_from([SANE, KUBELET]),
    before=st.lists(observed, max_size=3),
    now=observed,
    candidates=pods,
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
    """A prepared victim is signalled before the pass that says so: whatever came before, the pass has to say so."""
    thresholds = parse_thresholds(hard, soft, dict.fromkeys(soft, "30s"), reclaim)
    config = EvictionConfig(thresholds=thresholds, transition_period_ns=5, max_pod_grace_s=7, compat=compat)
    eviction_order = EvictionOrder(lambda candidate, _qos: memory_key(candidate))
    for candidate in candidates:
        eviction_order.put(candidate, "Burstable")
    state, outcome = State.initial(), None
    for stamp, seen in enumerate((*before, now), 1):
        observations = {signal: Observation(free, CAPACITY, stamp) for signal, free in seen.items()}
        state, outcome = synchronize(config, state, observations, stamp, lambda _: eviction_order.order())
    assert outcome is not None
    for signal in (MEMORY, ALLOCATABLE_MEMORY):
        lines = [t.quantity(CAPACITY) for t in thresholds if t.signal == signal and t.hard]
        if takes_first_at_once(now[signal], max(lines, default=0)):
            assert outcome.victim == eviction_order.first()
            assert of_memory(outcome)
            assert grace_s(outcome) == 0
