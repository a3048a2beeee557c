"""The pass of the daemon: the grace it gives, and what it is sure to decide."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.compat import KUBELET, SANE
from monitor.policy.eviction_pass import (
    KNOWN_LAYOUT,
    PassConfig,
    grace_s,
    is_of_memory,
    is_urgent,
    run_pass,
    takes_first_at_once,
)
from monitor.policy.ranking import Candidate, EvictionOrder
from monitor.policy.releases import ERAS, era
from monitor.policy.signals import ALLOCATABLE_MEMORY, MEMORY
from monitor.policy.synchronize import Observation, Outcome
from monitor.policy.thresholds import Threshold, parse_thresholds

POD = Candidate("u", "ns", "p", 0, 0, 1, critical=False)
HARD, SOFT, DISK = parse_thresholds(
    {"memory.available": "1Gi", "nodefs.available": "1Gi"}, {"memory.available": "2Gi"}, {"memory.available": "30s"}
)
DAEMON = PassConfig((), 0, kill_at_once=True)


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
    assert grace_s(DAEMON, made) == seconds


def test_a_kubelet_passes_on_what_its_release_has() -> None:
    assert [grace_s(PassConfig((), 0, era=era(name)), outcome(HARD, grace=1)) for name in ERAS] == [1, 0, 0]
    assert grace_s(PassConfig((), 0), outcome(SOFT, HARD, grace=30)) == 30
    assert [PassConfig((), 0, era=era(name)).limit_grace_s for name in ERAS] == [1, 0, 0]
    assert [PassConfig((), 0, era=era(name), kill_at_once=True).limit_grace_s for name in ERAS] == [1, 1, 1]


def starved(signal: str, **differs: Any) -> tuple[Candidate | None, list[str]]:
    """The victim of a pass in which ``signal`` is short, and what was asked on the way to it."""
    asked: list[str] = []

    def rank(signal: str) -> list[Candidate]:
        asked.append(f"rank {signal}")
        return [POD]

    config = PassConfig(parse_thresholds({signal: "1Gi"}), 0)
    result = run_pass(config, KNOWN_LAYOUT, {signal: Observation(0, 2 << 30, 1)}, 0, rank, **differs)
    assert result.outcome.starved is not None
    return result.outcome.victim, asked


def test_a_pod_over_its_limit_spares_all_others_in_this_pass() -> None:
    assert (starved(MEMORY), starved(MEMORY, over_limit=True)) == ((POD, [f"rank {MEMORY}"]), (None, []))


def test_the_node_is_cleaned_up_before_a_pod_goes_but_not_for_memory() -> None:
    for enough in (True, False):
        cleaned: list[str] = []

        def clean(signal: str, cleaned: list[str] = cleaned, enough: bool = enough) -> bool:
            cleaned.append(signal)
            return enough

        victim, asked = starved("nodefs.available", clean=clean)
        assert cleaned == ["nodefs.available"]
        assert (victim, asked) == ((None, []) if enough else (POD, ["rank nodefs.available"]))
        assert starved(MEMORY, clean=clean)[0] == POD
        assert cleaned == ["nodefs.available"]


def test_thresholds_of_disks_are_never_that_urgent() -> None:
    made = outcome(DISK, grace=1)
    assert not is_of_memory(made)
    assert not is_urgent(made)
    assert grace_s(DAEMON, made) == 1
    assert grace_s(DAEMON, outcome(DISK, HARD, grace=1)) == 1  # it is for the disk that this pod goes


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
    """A prepared victim is signalled before the pass: whatever came before, the pass has to decide the same."""
    thresholds = parse_thresholds(hard, soft, dict.fromkeys(soft, "30s"), reclaim)
    config = PassConfig(thresholds, 5, max_pod_grace_s=7, compat=compat, kill_at_once=True)
    eviction_order = EvictionOrder()
    for candidate in candidates:
        eviction_order.put(candidate)
    state, result = KNOWN_LAYOUT, None
    for stamp, seen in enumerate((*before, now), 1):
        observations = {signal: Observation(free, CAPACITY, stamp) for signal, free in seen.items()}
        result = run_pass(config, state, observations, stamp, lambda _: eviction_order.order())
        state = result.state
    assert result is not None
    for signal in (MEMORY, ALLOCATABLE_MEMORY):
        lines = [t.quantity(CAPACITY) for t in thresholds if t.signal == signal and t.hard]
        if takes_first_at_once(now[signal], max(lines, default=0)):
            assert result.outcome.victim == eviction_order.first()
            assert is_of_memory(result.outcome)
            assert result.grace_s == 0
