"""The laws of a pass over arbitrary time lines (its rules one by one: test_recorded.py)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.eviction_pass import Outcome, PassConfig, State, run_pass
from monitor.policy.layout import NO_OVERLAY
from monitor.policy.ranking import Candidate, memory_key
from monitor.policy.signals import ALLOCATABLE_MEMORY, CONDITION, MEMORY, Observation
from monitor.policy.thresholds import Threshold, parse_thresholds

S = 10**9
CAPACITY = 1000


def pod(name: str, usage: int | None = 10, critical: bool = False, grace: int | None = None) -> Candidate:
    return Candidate(f"uid-{name}", "ns", name, 0, 0, usage, critical, grace)


PODS = sorted([pod("small", 5), pod("big", 50), pod("huge-critical", 500, critical=True)], key=memory_key)


def run(
    config: PassConfig,
    state: State,
    now: int,
    seen: Mapping[str, int],
    pods: Sequence[Candidate] = PODS,
    stamp: int = -1,
) -> tuple[State, Outcome]:
    """One pass at ``now`` seconds; ``seen`` gives what is available; they are stamped now unless ``stamp`` is given."""
    observations = {s: Observation(a, CAPACITY, now * S if stamp < 0 else stamp) for s, a in seen.items()}
    return run_pass(config, state, observations, now * S, lambda _: pods)[:2]


def first_observed(config: PassConfig, state: State) -> dict[Threshold, int]:
    """Since when each threshold that is met now has been; of two that are equal, the first."""
    found: dict[Threshold, int] = {}
    for rule, since in zip(config.rules, state.first, strict=False):
        if since is not None:
            found[rule.threshold] = min(since, found.get(rule.threshold, since))
    return found


VALUES = st.sampled_from(["100", "10%", "300", "1500m", "25%"])
AVAILABLE = st.sampled_from([-5, 0, 1, 2, 99, 100, 101, 249, 250, 299, 300, 500])
SEEN = st.dictionaries(st.sampled_from([MEMORY, ALLOCATABLE_MEMORY]), AVAILABLE)


@dataclass(frozen=True)
class Line:
    config: PassConfig
    steps: tuple[tuple[int, dict[str, int], bool, tuple[Candidate, ...]], ...]  # seconds later, available, stale, pods


@st.composite
def lines(draw: st.DrawFn) -> Line:
    signals = st.sampled_from([MEMORY, ALLOCATABLE_MEMORY])
    maps = [draw(st.dictionaries(signals, VALUES)) for _ in range(3)]
    graces = {s: draw(st.sampled_from(["0s", "5s", "20s"])) for s in maps[1]}
    thresholds = parse_thresholds(maps[0], maps[1], graces, maps[2], draw(st.sampled_from([(), ("pods",)])))
    config = PassConfig(thresholds, draw(st.sampled_from([0, 5, 30])) * S, draw(st.integers(-1, 60)))
    pods = st.lists(
        st.builds(
            pod, st.sampled_from("abcde"), st.none() | st.integers(0, 3), st.booleans(), st.none() | st.integers(0, 60)
        ),
        max_size=3,
    ).map(lambda found: tuple(sorted(found, key=memory_key)))
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
def test_one_victim_the_first_that_may_soft_after_its_grace_conditions_for_the_transition_period(line: Line) -> None:
    since: dict[Threshold, int] = {}
    last: dict[str, int] = {}
    for now, _, pods, state, outcome in play(line):
        since = {t: since.get(t, now) for t in outcome.observed}
        assert set(outcome.met) == {t for t in outcome.observed if now - since[t] >= t.grace_ns / S}
        assert {t: at // S for t, at in first_observed(line.config, state).items()} == since
        last |= {CONDITION[t.signal]: now for t in outcome.observed}
        period = line.config.transition_period_ns / S
        assert outcome.conditions == {c for c, at in last.items() if now - at < period} == state.conditions
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
def test_nothing_changes_before_the_deadline_and_something_does_at_it(line: Line) -> None:
    for now, seen, pods, state, outcome in play(line):
        if outcome.next_deadline_ns is None:
            _, much_later = run(line.config, state, now + 10**6, seen, pods)
            assert set(much_later.met) <= set(outcome.met)  # less only where min reclaim let go
            continue
        due = outcome.next_deadline_ns // S
        assert due > now
        observations = {s: Observation(a, CAPACITY, 10**6 * S) for s, a in seen.items()}
        just_before = run_pass(line.config, state, observations, due * S - 1, lambda _, pods=pods: pods).outcome
        at = run_pass(line.config, state, observations, due * S, lambda _, pods=pods: pods).outcome
        if just_before.observed == outcome.observed:
            assert (just_before.met, just_before.conditions) == (outcome.met, outcome.conditions)
            assert (at.met, at.conditions) != (outcome.met, outcome.conditions)


@pytest.mark.parametrize(("own", "granted"), [(45, 45), (None, 30), (0, 0)])
def test_a_negative_most_grace_leaves_it_to_the_pod(own: int | None, granted: int) -> None:
    config = PassConfig(parse_thresholds(None, {MEMORY: "100"}, {MEMORY: "1s"}), 300 * S, max_pod_grace_s=-1)
    state, _ = run(config, State(), 0, {MEMORY: 50})
    _, outcome = run(config, state, 1, {MEMORY: 50}, [pod("a", grace=own)])
    assert outcome.grace_s == granted


def test_of_two_disks_and_process_ids_the_first_of_the_signals_goes_first() -> None:
    """What is of memory before all else: test_eviction_pass.py; hard before soft, kubepods first: the oracle."""
    config = PassConfig(
        parse_thresholds({"pid.available": "100", "nodefs.available": "100"}), 300 * S, layout=NO_OVERLAY
    )
    _, outcome = run(config, State(), 1, dict.fromkeys(CONDITION, 0))
    assert outcome.starved.signal == "nodefs.available"


def test_the_state_of_another_configuration_is_refused() -> None:
    state, _ = run(PassConfig(parse_thresholds({MEMORY: "100"}), 300 * S), State(), 1, {MEMORY: 0})
    both = PassConfig(parse_thresholds({MEMORY: "1"}, None, None, None, ["pods"]), S)
    with pytest.raises(ValueError, match="another configuration"):
        run(both, state, 2, {MEMORY: 0})
