"""The pass of the daemon: its laws over arbitrary time lines, the grace, what it is sure to decide. (The rules one by
one: test_recorded.py.)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.compat import KUBELET, SANE
from monitor.policy.eviction_pass import Outcome, PassConfig, State, grace_s, run_pass, takes_first_at_once
from monitor.policy.layout import NO_OVERLAY
from monitor.policy.ranking import Candidate, EvictionOrder, memory_key
from monitor.policy.releases import ERAS, era
from monitor.policy.signals import ALLOCATABLE_MEMORY, CONDITION, MEMORY, Observation
from monitor.policy.thresholds import Threshold, parse_thresholds
from tests.policy.test_ranking import CANDIDATES

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
    """What is of memory before all else: below; hard before soft, kubepods first: the oracle."""
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


# the grace, and what is sure

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
            assert result.outcome.starved.signal in (MEMORY, ALLOCATABLE_MEMORY)
            assert result.grace_s == 0
