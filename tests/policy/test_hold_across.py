"""Laws of a hold beside a kubelet, once its pods are let across the line: how far, that they come there,
and whether one may run for a moment for a process that starts in it.
"""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy import hold
from monitor.policy.hold import FREE, Domain, Look, Rules, State, Steps, may_run
from tests.policy.test_hold import ALONE, BESIDE, LINE, MIB, held, node, run

_LINES = st.sampled_from([MIB, 2 * MIB, 7 * MIB, LINE, 100 * MIB])
_ABOVE = st.integers(0, 28 * MIB)


def usages_of(number: int) -> dict[str, int]:
    return {f"p{n}": 100 * MIB for n in range(number)}


def let_across(domains: Mapping[str, Domain], number: int) -> State:
    """The state when so many pods, each of 100 MiB, have been let across the line of a kubelet."""
    above = {signal: d._replace(available=d.line + 15 * MIB) for signal, d in domains.items()}
    usages = usages_of(number)
    began = Look(2 - hold.FIGURES_NS, above, tuple(usages.items()))
    return run(BESIDE, began, Look(2, domains, usages=usages), state=FREE)[0]


@given(st.lists(st.tuples(_LINES, _ABOVE), min_size=1, max_size=2), st.integers(1, 8))
def test_who_is_let_across_may_take_half_of_what_is_below_any_line_and_all_of_them_come_to_no_second_line(
    pairs: list[tuple[int, int]], number: int
) -> None:
    names = ("memory.available", "allocatableMemory.available")
    domains = {name: Domain(line + above, line, line) for name, (line, above) in zip(names, pairs, strict=False)}
    state = let_across(domains, number)
    if state.step != hold.ACROSS:
        return  # there is room
    rooms = [pod.cap - 100 * MIB for pod in state.pods]
    beyond = min(d.available - d.line + min(hold.BEYOND, d.line // 2) for d in domains.values())
    assert 0 < max(rooms) <= beyond
    assert sum(rooms) <= beyond or all(
        d.available - sum(rooms) >= hold.kill_threshold(d.line) for d in domains.values()
    ), "or each has its part of the way"
    same = Look(3, domains, usages=dict.fromkeys(state.uids, 100 * MIB))
    assert run(BESIDE, same, state=state)[1] == [Steps()], "once is enough"


@given(_LINES, _ABOVE, st.integers(1, 8), st.integers(MIB // 8, 8 * MIB))
def test_one_who_grows_among_several_who_are_held_comes_across(line: int, above: int, number: int, step: int) -> None:
    """Else the kubelet sees nothing, and it stands at its cap until the time limit."""
    available = line + above
    state, usages = let_across(node(available, line), number), usages_of(number)
    if state.step != hold.ACROSS:
        return
    for look in range(3, 2000):
        taken = min(step, state.pods[0].cap - usages["p0"])  # at a cap that is too near a fault of v1 waits
        usages["p0"] += taken
        available -= taken
        state, done = run(BESIDE, Look(look, node(available, line), usages=usages), state=state)
        assert all(pod.cap >= usages[pod.uid] for pod in state.pods), "on cgroup v2 a cap below kills"
        if available < line:
            return
        assert taken or done[0].recap, "it stands for good"
    raise AssertionError("it never came there")


@given(_ABOVE, st.integers(1, 8), st.integers(1, 2 * MIB), st.integers(0, 7))
def test_nobody_comes_to_his_cap_on_the_way_where_v2_would_kill_him(
    above: int, number: int, step: int, others: int
) -> None:
    """One of several grows, by up to 2 MiB from look to look; ``others`` give 1 MiB back, or take it, each third."""
    line = available = 100 * MIB
    available += above
    state, usages = let_across(node(available, line), number), usages_of(number)
    if state.step != hold.ACROSS:
        return
    for look in range(3, 1000):
        usages["p0"] += step
        available -= step
        if look % 3 == 0 and others:
            available += MIB if others % 2 else -MIB
        assert usages["p0"] < state.pods[0].cap, f"at its cap {(available - line) / MIB:g} MiB above the line"
        state, _ = run(BESIDE, Look(look, node(available, line), usages=usages), state=state)
        if not state.step:
            assert available < line, "stopped, and not there"
            return
    assert step <= MIB // 8 or (others % 2 and step <= MIB // 3), "it never came there"


def test_who_joins_those_on_their_way_is_stopped_and_goes_on_when_the_kubelet_has_seen_it() -> None:
    state = let_across(node(LINE + 10 * MIB), 1)
    usages = {"p0": 100 * MIB}
    state, [steps] = run(BESIDE, Look(3, node(LINE + 8 * MIB), [("new", 50 * MIB)], usages=usages), state=state)
    assert [(pod.uid, pod.crosses) for pod in state.pods] == [("p0", True), ("new", False)]
    assert steps.hold[0].cap - 50 * MIB <= 8 * MIB + hold.BEYOND
    usages["new"] = 50 * MIB
    unseen = Look(4, node(LINE + 8 * MIB), usages=usages)
    assert run(BESIDE, unseen, state=state) == (state, [Steps()])
    state, [steps] = run(BESIDE, unseen._replace(now_ns=3 + hold.FIGURES_NS), state=state)
    assert all(pod.crosses for pod in state.pods)
    assert state.step == hold.ACROSS


def test_one_after_another_who_joins_does_not_keep_the_first_above_the_line() -> None:
    """Small ones that come every few seconds are never all shown: it would stand there until its time limit."""
    state, _ = run(BESIDE, Look(1, node(LINE + 15 * MIB), [("a", 100 * MIB)]), state=FREE)
    usages = {"a": 100 * MIB}
    young = Look(hold.FIGURES_NS, node(LINE + 10 * MIB), [("b", MIB)], usages=usages)
    state, _ = run(BESIDE, young, state=state)
    usages["b"] = MIB
    assert run(BESIDE, young._replace(growers=(), usages=usages), state=state)[0].step == hold.ABOVE
    old = Look(hold.FIGURES_NS + 1, node(LINE + 10 * MIB), usages=usages)
    state, _ = run(BESIDE, old, state=state)
    assert [(pod.uid, pod.crosses) for pod in state.pods] == [("a", True), ("b", False)]


def test_the_end_of_a_held_pod_is_an_answer() -> None:
    """The kubelet waits until it is gone and looks again: 20 s after the crossing its next loop was 2 s away."""
    growers = (("a", 100 * MIB), ("b", 100 * MIB))
    state, _ = run(BESIDE, Look(1, node(LINE - 5 * MIB), growers), state=FREE)
    met = node(LINE - 3 * MIB)
    state, _ = run(BESIDE, Look(hold.LOOPS_NS - 1, met, gone=["a"], usages={"b": 100 * MIB}), state=state)
    state, _ = run(BESIDE, Look(hold.LOOPS_NS + 1, met, usages={"b": 100 * MIB}), state=state)
    assert state.opened == ""
    state, _ = run(BESIDE, Look(2 * hold.LOOPS_NS, met, usages={"b": 100 * MIB}), state=state)
    assert state.opened == hold.UNANSWERED


@pytest.mark.parametrize("kills", [True, False])
def test_a_second_line_on_the_way_stops_who_is_held(kills: bool) -> None:
    """If it ran on below a cap that was tightened to 1 MiB, cgroup v2 would kill it where outrace kills no pod."""
    rules = BESIDE._replace(kills=kills)
    state = let_across(node(LINE + 10 * MIB), 2)
    usages = dict.fromkeys(state.uids, 105 * MIB)
    state, _ = run(rules, Look(3, node(LINE - MIB), usages=usages), state=state)
    assert state.step == hold.ACROSS
    state, [steps] = run(rules, Look(4, node(LINE // 5), usages=usages), state=state)
    assert (state.opened, state.step) == (hold.SECOND_LINE, "")
    assert {pod.uid for pod in steps.recap} == set(usages)
    assert not any(pod.crosses for pod in state.pods)


def test_a_cap_leaves_half_of_every_domain_not_only_of_the_one_that_is_short() -> None:
    domains = {
        "memory.available": Domain(3100 * MIB, 3200 * MIB, 3200 * MIB),
        "allocatableMemory.available": Domain(500 * MIB, 205 * MIB, 205 * MIB),
    }
    state, _ = run(BESIDE._replace(kubelet=False), Look(1, domains, [("a", 100 * MIB)]), state=FREE)
    assert state.pods[0].cap - 100 * MIB == 250 * MIB


@pytest.mark.parametrize(("number", "above"), [(1, 16), (4, 16), (4, 19.4), (5, 13.6), (6, 10), (8, 5.8)])
def test_caps_are_not_written_at_every_look_while_one_reads_files(number: int, above: float) -> None:
    """Usage grows and the working set does not: by 100 MiB/s, and caps were written up to 3,320 times a second."""
    available = LINE + int(above * MIB)
    state = let_across(node(available, LINE), number)
    assert state.step == hold.ACROSS
    usages, written = dict.fromkeys(state.uids, 100 * MIB), 0
    for number_of_look in range(3, 2003):
        usages["p0"] += MIB // 20
        state, [steps] = run(BESIDE, Look(number_of_look, node(available, LINE), usages=usages), state=state)
        written += len(steps.recap)
    assert written <= 60


def test_a_way_across_ends_with_those_who_are_on_it() -> None:
    """Else the next one that is held would have no room beyond a line that is met already."""
    state = let_across(node(LINE + 5 * MIB), 1)
    met = Look(3, node(LINE - MIB), usages={"p0": 106 * MIB})
    state, _ = run(BESIDE, met, met._replace(now_ns=4, gone=["p0"]), state=state)
    assert (state.pods, state.step) == ((), "")
    state, [steps] = run(BESIDE, Look(5, node(LINE - 10 * MIB), [("b", 50 * MIB)], freezes=True), state=state)
    assert steps.hold[0].cap - 50 * MIB > 10 * MIB


@pytest.mark.parametrize(
    ("rules", "state", "available", "room", "may"),
    [
        (BESIDE, held(BESIDE), 31, 15, True),
        (BESIDE, held(BESIDE), 23, 15, True),
        (BESIDE, held(BESIDE), 22, 15, False),
        (BESIDE, held(BESIDE), 22, 7, True),
        (BESIDE, held(BESIDE), 9, 0, True),
        (ALONE, held(ALONE), 22, 15, False),
        (BESIDE, held(BESIDE)._replace(met_ns=0), 47, 14, True),
        (BESIDE, held(BESIDE)._replace(met_ns=0), 47, 15, False),
    ],
    ids=["half", "less", "to the second line", "has taken half", "at its cap", "alone", "above a line", "to the line"],
)
def test_a_held_pod_may_run_above_the_second_line(
    rules: Rules, state: State, available: int, room: int, may: bool
) -> None:
    """31 MiB were left as it was held, so that line is at 7.75; a kubelet's, which is not met, at 32."""
    assert may_run(rules, state, node(available * MIB), room * MIB) is may
