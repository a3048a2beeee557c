"""The laws of a pass, over arbitrary time lines."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.compat import KUBELET
from monitor.policy.ranking import Candidate, memory_order
from monitor.policy.signals import ALLOCATABLE_MEMORY, CONDITION, MEMORY
from monitor.policy.synchronize import EvictionConfig, Observation, Outcome, State, synchronize
from monitor.policy.thresholds import Threshold, parse_thresholds
from tests.policy.one_pass import CAPACITY, S, first_observed, pod, run

VALUES = st.sampled_from(["100", "10%", "300", "1500m", "25%"])
AVAILABLE = st.sampled_from([-5, 0, 1, 2, 99, 100, 101, 249, 250, 299, 300, 500])
SEEN = st.dictionaries(st.sampled_from([MEMORY, ALLOCATABLE_MEMORY]), AVAILABLE)


@dataclass(frozen=True)
class Line:
    config: EvictionConfig
    steps: tuple[tuple[int, dict[str, int], bool, tuple[Candidate, ...]], ...]  # seconds later, available, stale, pods


@st.composite
def lines(draw: st.DrawFn) -> Line:
    signals = st.sampled_from([MEMORY, ALLOCATABLE_MEMORY])
    maps = [draw(st.dictionaries(signals, VALUES)) for _ in range(3)]
    graces = {s: draw(st.sampled_from(["0s", "5s", "20s"])) for s in maps[1]}
    thresholds = parse_thresholds(maps[0], maps[1], graces, maps[2], draw(st.sampled_from([(), ("pods",)])))
    config = EvictionConfig(thresholds, draw(st.sampled_from([0, 5, 30])) * S, draw(st.integers(-1, 60)))
    pods = st.lists(
        st.builds(
            pod, st.sampled_from("abcde"), st.none() | st.integers(0, 3), st.booleans(), st.none() | st.integers(0, 60)
        ),
        max_size=3,
    ).map(lambda found: tuple(memory_order(found)))
    steps = st.tuples(st.sampled_from([0, 1, 4, 5, 10, 29, 30]), SEEN, st.booleans(), pods)
    return Line(config, tuple(draw(st.lists(steps, min_size=1, max_size=12))))


def play(line: Line) -> Iterator[tuple[int, dict[str, int], tuple[Candidate, ...], State, Outcome]]:
    state, now, stamp = State(), 0, 1
    for later, seen, stale, pods in line.steps:
        now += later
        stamp += 0 if stale else 1
        state, outcome = run(line.config, state, now, seen, pods, stamp)
        yield now, seen, pods, state, outcome


@given(lines())
def test_one_victim_never_critical_always_the_first_that_may(line: Line) -> None:
    for _, _, pods, _, outcome in play(line):
        willing = [c for c in pods if not c.critical]
        if outcome.starved is None:
            assert (outcome.victim, outcome.refused) == (None, ())
            continue
        assert outcome.starved in outcome.met
        assert outcome.victim == (willing[0] if willing else None)
        before = pods[: pods.index(willing[0])] if willing else pods
        assert list(outcome.refused) == list(before)
        assert all(c.critical for c in outcome.refused)


@given(lines())
def test_soft_never_before_its_grace(line: Line) -> None:
    since: dict[Threshold, int] = {}
    for now, _, _, state, outcome in play(line):
        since = {t: since.get(t, now) for t in outcome.observed}
        for t in outcome.met:
            assert now - since[t] >= t.grace_ns / S
        assert set(outcome.met) == {t for t in outcome.observed if now - since[t] >= t.grace_ns / S}
        assert {t: at // S for t, at in first_observed(line.config, state).items()} == since


@given(lines())
def test_a_threshold_is_met_exactly_when_a_pass_sees_it_met(line: Line) -> None:
    for _, seen, _, _, outcome in play(replace(line, config=replace(line.config, compat=KUBELET))):
        met = [t for t in line.config.thresholds if t.signal in seen and t.met(seen[t.signal], CAPACITY)]
        assert set(met) <= set(outcome.observed)
        held = [t for t in outcome.observed if t not in met]
        assert all(t.met(seen[t.signal], CAPACITY, with_reclaim=True) for t in held)


@given(lines())
def test_conditions_hold_for_the_transition_period(line: Line) -> None:
    last: dict[str, int] = {}
    for now, _, _, state, outcome in play(line):
        last |= {CONDITION[t.signal]: now for t in outcome.observed}
        period = line.config.transition_period_ns / S
        assert outcome.conditions == {c for c, at in last.items() if now - at < period} == state.conditions


@given(lines())
def test_the_pass_is_a_function_of_its_inputs(line: Line) -> None:
    first, second = list(play(line)), list(play(line))
    assert first == second
    state, now = State(), 0
    for later, seen, _, pods in line.steps:
        now += later
        observations = {s: Observation(a, CAPACITY, now) for s, a in seen.items()}
        before = (dict(observations), tuple(state))
        result = synchronize(line.config, state, observations, now, lambda _, pods=pods: pods)
        assert (
            synchronize(line.config, State(*state), dict(observations), now, lambda _, pods=pods: list(pods)) == result
        )
        assert before == (observations, tuple(state))
        state = result[0]


@given(lines(), st.integers(0, 300))
def test_raising_usage_never_unmeets_a_threshold(line: Line, more: int) -> None:
    state, now = State(), 0
    for later, seen, _, pods in line.steps:
        now += later
        _, tighter = run(line.config, state, now, {s: a - more for s, a in seen.items()}, pods)
        state, outcome = run(line.config, state, now, seen, pods)
        assert set(tighter.observed) >= set(outcome.observed)
        assert set(tighter.met) >= set(outcome.met)
        assert tighter.conditions >= outcome.conditions


@given(lines())
def test_nothing_changes_before_the_deadline_and_something_does_at_it(line: Line) -> None:
    for now, seen, pods, state, outcome in play(line):
        if outcome.next_deadline_ns is None:
            _, much_later = run(line.config, state, now + 10**6, seen, pods)
            assert set(much_later.met) <= set(outcome.met)  # less only where min reclaim let go
            continue
        due = outcome.next_deadline_ns // S
        assert due > now
        observations = {s: Observation(a, CAPACITY, 10**6 * S) for s, a in seen.items()}
        just_before = synchronize(line.config, state, observations, due * S - 1, lambda _, pods=pods: pods)[1]
        at = synchronize(line.config, state, observations, due * S, lambda _, pods=pods: pods)[1]
        if just_before.observed == outcome.observed:
            assert (just_before.met, just_before.conditions) == (outcome.met, outcome.conditions)
            assert (at.met, at.conditions) != (outcome.met, outcome.conditions)
