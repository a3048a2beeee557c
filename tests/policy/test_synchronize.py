"""The rules of a pass, one by one."""

from collections.abc import Sequence

import pytest

from monitor.policy.eviction_pass import carried
from monitor.policy.ranking import Candidate
from monitor.policy.signals import ALLOCATABLE_MEMORY, CONDITION, MEMORY
from monitor.policy.synchronize import EvictionConfig, Observation, State, condition_times, synchronize
from monitor.policy.thresholds import PolicyError, parse_thresholds
from tests.policy.one_pass import CAPACITY, PODS, S, first_observed, pod, run


def hard(value: str = "100", transition: int = 300, reclaim: str | None = None) -> EvictionConfig:
    reclaims = {MEMORY: reclaim} if reclaim else {}
    return EvictionConfig(parse_thresholds({MEMORY: value}, None, None, reclaims), transition * S)


def soft(grace: str, max_pod_grace: int = 0, value: str = "100") -> EvictionConfig:
    return EvictionConfig(parse_thresholds(None, {MEMORY: value}, {MEMORY: grace}), 300 * S, max_pod_grace)


def test_rank_is_asked_only_when_a_pod_is_to_be_picked() -> None:
    asked: list[str] = []

    def rank(signal: str) -> Sequence[Candidate]:
        asked.append(signal)
        return PODS

    state, _ = synchronize(soft("10s"), State(), {MEMORY: Observation(0, CAPACITY, 1)}, 0, rank)
    assert asked == []
    synchronize(soft("10s"), state, {MEMORY: Observation(0, CAPACITY, 2)}, 10 * S, rank)
    assert asked == [MEMORY]


def test_the_same_stamp_twice_does_not_act_but_no_stamp_does() -> None:
    state, first = run(hard(), State(), 1, {MEMORY: 0}, stamp=7)
    state, again = run(hard(), state, 2, {MEMORY: 0}, stamp=7)
    state, older = run(hard(), state, 3, {MEMORY: 0}, stamp=6)
    state, newer = run(hard(), state, 4, {MEMORY: 0}, stamp=7)  # the older one is now the last seen
    _, unstamped = run(hard(), state, 5, {MEMORY: 0}, stamp=0)
    acted = [o.victim is not None for o in (first, again, older, newer, unstamped)]
    assert acted == [True, False, False, True, True]
    assert again.met == first.met


def test_soft_waits_for_its_grace_and_starts_again_after_relief() -> None:
    config, state = soft("30s"), State()
    acted = []
    for now, available in ((0, 50), (29, 50), (30, 50), (31, 100), (32, 50), (61, 50), (62, 50)):
        state, outcome = run(config, state, now, {MEMORY: available})
        acted.append(outcome.victim is not None)
    assert acted == [False, False, True, False, False, False, True]


def test_a_soft_threshold_raises_its_condition_at_once() -> None:
    _, outcome = run(soft("30s"), State(), 5, {MEMORY: 50})
    assert (outcome.conditions, outcome.met) == (frozenset({"MemoryPressure"}), ())
    assert outcome.next_deadline_ns == 35 * S


@pytest.mark.parametrize(
    ("max_pod_grace", "own", "granted"),
    [(0, 30, 0), (60, 30, 30), (60, None, 60), (20, 30, 20), (-1, 45, 45), (-1, None, 30), (-1, 0, 0)],
)
def test_grace_of_a_soft_eviction(max_pod_grace: int, own: int | None, granted: int) -> None:
    config = soft("1s", max_pod_grace)
    state, _ = run(config, State(), 0, {MEMORY: 50})
    _, outcome = run(config, state, 1, {MEMORY: 50}, [pod("a", grace=own)])
    assert outcome.grace_s == granted


def test_an_unknown_compat_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"kubelet-1\.35"):
        EvictionConfig((), S, compat="kubelet-1.35")


def test_min_reclaim_holds_only_what_has_acted() -> None:
    config = hard(reclaim="50")
    state, outcome = run(config, State(), 1, {MEMORY: 120})
    assert outcome.observed == ()  # it is no trigger
    state, _ = run(config, state, 2, {MEMORY: 99})
    state, outcome = run(config, state, 3, {MEMORY: 149})
    assert outcome.victim is not None
    state, outcome = run(config, state, 4, {MEMORY: 150})
    assert outcome.victim is None
    _, outcome = run(config, state, 5, {MEMORY: 149})
    assert outcome.victim is None  # one clear pass and it is forgotten


def test_a_condition_outlives_its_threshold_by_the_transition_period() -> None:
    config = hard(transition=30)
    state, outcome = run(config, State(), 10, {MEMORY: 0})
    assert outcome.next_deadline_ns is None  # as long as it is met only new data can change anything
    state, outcome = run(config, state, 39, {MEMORY: 500})
    assert (outcome.conditions, outcome.next_deadline_ns) == (frozenset({"MemoryPressure"}), 40 * S)
    state, outcome = run(config, state, 40, {MEMORY: 500})
    assert (outcome.conditions, outcome.next_deadline_ns) == (frozenset(), None)
    assert condition_times(config, state) == {"MemoryPressure": 10 * S}


def test_preference_among_thresholds() -> None:
    thresholds = parse_thresholds(
        {MEMORY: "100", "nodefs.available": "100", "pid.available": "100"},
        {MEMORY: "200", ALLOCATABLE_MEMORY: "200"},
        {MEMORY: "1s", ALLOCATABLE_MEMORY: "1s"},
        None,
        ["pods"],
    )
    config = EvictionConfig(thresholds, 300 * S)
    low = dict.fromkeys(CONDITION, 0)
    state, _ = run(config, State(), 0, low)
    picked = []
    while low:
        _, outcome = run(config, state, 1, low)
        if outcome.starved is None:
            break
        picked.append((outcome.starved.signal, outcome.starved.hard))
        if outcome.starved.hard and outcome.starved.signal in (MEMORY, ALLOCATABLE_MEMORY):
            low[outcome.starved.signal] = 150  # only the soft one is still met
        else:
            del low[outcome.starved.signal]
    assert picked == [
        (ALLOCATABLE_MEMORY, True),
        (MEMORY, True),
        (ALLOCATABLE_MEMORY, False),
        (MEMORY, False),
        ("nodefs.available", True),
        ("pid.available", True),
    ]


def test_a_state_is_carried_to_a_configuration_with_more_thresholds() -> None:
    old = EvictionConfig(parse_thresholds({MEMORY: "100", "pid.available": "100"}), 300 * S)
    new = EvictionConfig((*old.thresholds, *parse_thresholds({"containerfs.available": "100"})), 300 * S)
    seen = {MEMORY: Observation(0, CAPACITY, 7), "containerfs.available": Observation(0, CAPACITY, 7)}
    before, _ = synchronize(old, State(), seen, 5 * S, lambda _: PODS)
    state = carried(old, before, new, seen)
    assert first_observed(new, state) == first_observed(old, before)
    assert condition_times(new, state) == condition_times(old, before)
    assert state.conditions == before.conditions
    _, outcome = synchronize(new, state, seen, 6 * S, lambda _: PODS)
    assert outcome.starved is None  # the same stamps, also for the signal the old one did not look at
    assert {t.signal for t in outcome.met} == set(seen)
    fresh = carried(old, State(), new, None)
    assert synchronize(new, fresh, seen, 6 * S, lambda _: PODS)[1].starved is not None


def test_the_state_of_another_configuration_is_refused() -> None:
    state, _ = run(hard(), State(), 1, {MEMORY: 0})
    both = EvictionConfig(parse_thresholds({MEMORY: "1"}, None, None, None, ["pods"]), S)
    with pytest.raises(ValueError, match="another configuration"):
        run(both, state, 2, {MEMORY: 0})
