"""Which pods are held, how much they charge, when that ends: cases, and laws for every course of a shortage."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from monitor.policy import hold
from monitor.policy.hold import FREE, Domain, Look, Rules, State, Steps, advance, who_grew, who_grows_on

MIB = 1 << 20
MS = 1_000_000
S = 1_000_000_000
NEW = hold.FIGURES_NS  # so long after a hold began the kubelet has figures of its pod
LINE = 32 * MIB
ALONE = Rules(120 * S, kills=True)
BESIDE = Rules(120 * S, kills=True, kubelet=True)
NEVER = Rules(120 * S, kills=False)
A, B, C = ("a", 100 * MIB), ("b", 50 * MIB), ("c", 10 * MIB)


def node(available: int, line: int = LINE, rate: int = 0) -> Mapping[str, Domain]:
    return {"memory.available": Domain(available, line, line, rate)}


def run(rules: Rules, *looks: Look, state: State = FREE) -> tuple[State, list[Steps]]:
    """The state after these looks, and what was done at each."""
    done = []
    for look in looks:
        state, steps = advance(rules, state, look)
        done.append(steps)
    return state, done


def held(rules: Rules = ALONE, available: int = 31 * MIB) -> State:
    """A pod is held since the time 0."""
    return run(rules, Look(1, node(available), (A,), first="a"))[0]


def test_the_policys_victim_is_held_where_nobody_is_known_to_grow() -> None:
    look = Look(1, node(31 * MIB), victim=A, first="a")
    assert run(ALONE, look)[1][0].hold[0].reason == "victim"
    assert run(ALONE, look._replace(growers=(B,)))[0].uids == ("b",), "an innocent victim is left alone"
    assert run(ALONE, look._replace(domains=node(LINE)))[0] == FREE, "nothing is short"


def test_the_next_who_grows_is_held_and_has_no_part_of_what_lies_below_the_second_line() -> None:
    state, steps = run(
        ALONE,
        Look(2, node(20 * MIB), (B,), usages={"a": A[1] + 11 * MIB}),
        Look(3, node(9 * MIB), (C,), usages={"a": A[1] + 15 * MIB, "b": B[1] + 6 * MIB}),
        state=held(available=32 * MIB - 1),
    )
    assert [pod.uid for pod in state.pods] == ["a", "b", "c"]
    first, second = (one.hold[0] for one in steps)
    assert first.cap - first.usage == 20 * MIB - hold.kill_threshold(32 * MIB - 1) - (5 * MIB - 1)
    assert second.cap == second.usage, "what is left is spoken for: the brake gives it a MiB"


def test_who_is_slowed_down_near_his_cap_has_a_little_more_room_down_to_the_second_line() -> None:
    """Never as much as a huge page, to no other pod, nor where no process sleeps for its charges."""
    state = held(available=32 * MIB - 1)
    cap = state.pods[0].cap
    near = Look(2, node(16 * MIB), usages={"a": cap - MIB // 2}, slow=["a"])
    after, [steps] = run(ALONE, near, state=state)
    assert steps.recap == after.pods
    assert after.pods[0].cap == cap - MIB // 2 + hold.CREEP < cap - MIB // 2 + 2 * MIB
    assert run(ALONE, near._replace(usages={"a": cap - MIB}), state=state)[1] == [Steps()], "not near"
    assert run(ALONE, near._replace(slow=()), state=state)[1] == [Steps()], "its faults wait at the cap"
    least = hold.kill_threshold(32 * MIB - 1) + hold.CREEP
    assert run(ALONE, near._replace(domains=node(least - 1)), state=state)[1] == [Steps()], "nothing is left for it"
    assert run(ALONE, near._replace(domains=node(least)), state=state)[1][0].recap
    across = state._replace(step=hold.ACROSS)
    assert run(BESIDE, near._replace(domains=node(LINE - MIB)), state=across)[1] == [Steps()], "it is to stop there"


def test_below_the_second_line_the_policy_decides_until_the_shortage_is_over() -> None:
    state, _ = run(ALONE, Look(2, node(31 * MIB // 4 + 1)), state=held())
    assert hold.is_in_the_way(state)
    state, _ = run(ALONE, Look(3, node(31 * MIB // 4)), state=state)
    assert (state.opened, hold.is_in_the_way(state)) == ("second_line", False)
    state, [steps] = run(ALONE, Look(4, node(20 * MIB), (B,)), state=state)
    assert (state.opened, steps.hold) == ("second_line", ()), "it is met still, and no other pod is held meanwhile"
    state, _ = run(ALONE, Look(5, node(33 * MIB)), state=state)
    assert (state.opened, state.uids) == ("", ("a",))


def test_a_min_reclaim_ends_later() -> None:
    domains = {"memory.available": Domain(LINE + 20 * MIB, LINE, LINE + 30 * MIB)}
    assert not any(one.end for one in run(ALONE, Look(2, domains), Look(S, domains), state=held())[1])


def test_at_the_time_limit_the_policy_decides_and_has_as_long_again() -> None:
    state, [steps] = run(ALONE, Look(1 + 120 * S, node(20 * MIB)), state=held())
    assert (state.opened, steps) == ("time_limit", Steps())
    state, [steps] = run(ALONE, Look(1 + 240 * S, node(20 * MIB)), state=state)
    assert steps.end == (("a", "time_limit"),)


def test_where_nobody_is_killed_the_brake_is_tightened_and_who_grows_next_is_held_too() -> None:
    state, [steps] = run(NEVER, Look(2, node(7 * MIB), usages={"a": 111 * MIB}), state=held(NEVER))
    assert [(pod.uid, pod.cap) for pod in steps.recap] == [("a", 111 * MIB)]
    state, [steps] = run(NEVER, Look(3, node(6 * MIB), (B,)), state=state)
    assert ([pod.uid for pod in steps.hold], steps.recap) == (["b"], ()), "tightened once"
    state, [steps] = run(NEVER, Look(1 + 120 * S, node(7 * MIB)), state=state)
    assert steps.end == (("a", "time_limit"),)


# beside a kubelet


def test_beside_a_kubelet_a_pod_is_held_above_its_line_until_its_figures_are_new_enough() -> None:
    state, [steps] = run(BESIDE, Look(1, node(LINE + 15 * MIB), (A,)))
    assert steps.hold[0].cap == A[1] + 15 * MIB // 2, "half of what is left to the line"
    assert (state.step, state.met_ns) == ("above", 0)
    usages = {"a": A[1] + 7 * MIB}
    state, [steps] = run(BESIDE, Look(2, node(LINE + 8 * MIB), usages=usages), state=state)
    assert steps == Steps()
    state, [steps] = run(BESIDE, Look(1 + NEW, node(LINE + 8 * MIB), usages=usages), state=state)
    assert state.step == "across"
    assert steps.recap[0].cap == usages["a"] + 8 * MIB + hold.BEYOND
    state, [steps] = run(BESIDE, Look(2 + NEW, node(LINE - MIB), usages={"a": A[1] + 16 * MIB}), state=state)
    assert (state.step, steps) == ("across", Steps()), "what others give back would make it clear again"
    deep = Look(3 + NEW, node(LINE - hold.DEPTH), usages={"a": A[1] + 19 * MIB})
    for look in (deep, deep._replace(now_ns=2 + NEW + hold.CROSSING_NS, domains=node(LINE - MIB))):
        stopped, [steps] = run(BESIDE, look, state=state)
        assert (stopped.step, len(steps.recap)) == ("", 1), "stopped again, beyond the line"
        assert steps.recap[0].cap <= A[1] + 19 * MIB + 16 * MIB


def test_a_line_that_is_clear_again_without_room_is_crossed_again() -> None:
    """Else the kubelet, which looks every 10 s, would not see it, and the hold would last until its time limit."""
    state, _ = run(BESIDE, Look(2, node(LINE - hold.DEPTH)), Look(3, node(LINE)), state=held(BESIDE))
    assert state.step == "", "its figures are not new enough"
    again, [steps] = run(BESIDE, Look(NEW + 4, node(LINE), usages={"a": A[1]}), state=state)
    assert (again.step, steps.recap[0].cap) == ("across", A[1] + hold.BEYOND)
    assert run(BESIDE, Look(NEW + 5, node(LINE + 12 * MIB), usages={"a": A[1]}), state=again)[1] == [Steps()], (
        "it comes there"
    )
    further, [steps] = run(BESIDE, Look(NEW + 5, node(LINE + 13 * MIB), usages={"a": A[1]}), state=again)
    assert (further.step, steps.recap[0].cap) == ("across", A[1] + 13 * MIB + hold.BEYOND), "others gave memory back"
    roomy = LINE + hold.MARGIN + hold.room(LINE)
    state, [steps, _] = run(BESIDE, *(Look(NEW + 4 + n * S, node(roomy)) for n in (0, 1)), state=state)
    assert (steps, state) == (Steps(), FREE), "it is released instead"
    assert run(ALONE, Look(NEW + 4, node(LINE)), state=held())[1] == [Steps()], "there is no kubelet to see it"


def test_a_kubelet_that_does_not_answer_within_two_loops() -> None:
    state, _ = run(BESIDE, Look(20 * S, node(20 * MIB)), state=held(BESIDE))
    assert state.opened == ""
    assert run(BESIDE, Look(1 + 20 * S, node(20 * MIB)), state=state)[0].opened == "unanswered"
    assert run(ALONE, Look(1 + 20 * S, node(20 * MIB)), state=held())[0].opened == "", "there is none"


def test_a_kubelet_that_evicts_the_next_of_the_order_has_answered_and_has_two_loops_again() -> None:
    """It evicts one pod, waits for its end, and looks again."""
    state, [steps, _] = run(
        BESIDE, Look(9 * S, node(20 * MIB), answered=True), Look(28 * S, node(20 * MIB)), state=held(BESIDE)
    )
    assert (steps, state.opened, hold.is_in_the_way(state)) == (Steps(), "", True)
    assert run(BESIDE, Look(29 * S, node(20 * MIB)), state=state)[0].opened == "unanswered"


# which pods grow


def test_who_took_an_eighth_of_what_grew_grows() -> None:
    assert who_grew({"a": 8 * MIB, "b": MIB, "c": 2 * MIB}, 16 * MIB, "cba") == ["c", "a"]
    assert who_grew({"a": MIB - 1}, 2 * MIB, "a") == [], "noise"
    assert who_grows_on({"a": 2 * MIB, "b": MIB}, 32 * MIB, "ba") == ["a"]


# laws

UIDS = ("a", "b", "c", "d")
_rules = st.builds(Rules, limit_ns=st.sampled_from([S, 120 * S]), kills=st.booleans(), kubelet=st.booleans())
_available = st.integers(0, 96 * MIB)
_steps = st.lists(
    st.tuples(
        st.sampled_from([MS, 25 * MS, 500 * MS, 10 * S, 60 * S]),
        _available,
        st.integers(0, 8 << 30),
        st.lists(st.sampled_from(UIDS), unique=True, max_size=4),
        st.sampled_from(["", *UIDS]),
        st.lists(st.sampled_from(UIDS), unique=True, max_size=1),
        st.sampled_from(["", "", "", "db"]),
    ),
    max_size=30,
)


def looks(steps: Sequence[tuple[int, int, int, list[str], str, list[str], str]]) -> list[Look]:
    now, found = 1, []
    for after, available, rate, growers, victim, gone, other in steps:
        now += after
        usages = dict.fromkeys(UIDS, 100 * MIB + now % MIB)
        grown = [(uid, usages[uid]) for uid in growers]
        about = (grown, (victim, usages.get(victim, 0)), victim, usages, gone, (), other)
        found.append(Look(now, node(available, rate=rate), *about))
    return found


@given(_rules, _steps)
def test_laws(rules: Rules, steps: list[tuple[int, int, int, list[str], str, list[str], str]]) -> None:
    state, since = FREE, dict[str, int]()
    for look in looks(steps):
        before = state
        state, done = advance(rules, before, look)
        offered = {uid for uid, _ in look.growers} | {look.victim[0]}
        assert {pod.uid for pod in done.hold} <= offered, "only pods that may be held are"
        assert len(state.uids) == len(set(state.uids))
        ended = {uid for uid, _ in done.end}
        assert set(state.uids) == (set(before.uids) | {pod.uid for pod in done.hold}) - ended
        assert ended <= set(before.uids)
        [domain] = look.domains.values()
        if done.hold:
            assert domain.available < hold.hold_line(rules, domain)
            spare = sum(max(0, pod.cap - look.usages[pod.uid]) for pod in state.pods)
            had = sum(max(0, pod.cap - look.usages[pod.uid]) for pod in before.pods)
            line = hold.kill_threshold(state.left.get("memory.available", domain.available), domain.rate)
            assert spare <= max(had, domain.available - line), "no pod gets what lies below the second line"
        since |= {pod.uid: look.now_ns for pod in done.hold}
        for uid in state.uids:
            most = 2 * rules.limit_ns if rules.kills else rules.limit_ns
            assert look.now_ns - since[uid] < most, "every hold ends"
        left = state.left.get("memory.available")
        if left:
            assert 0 < hold.kill_threshold(max(left, 4), domain.rate) < max(left, 4), (
                "the second line comes before the end"
            )
        if hold.is_in_the_way(state) and state.met_ns and left is not None:
            assert domain.available > hold.kill_threshold(left, domain.rate), "no pod waits below it"
        if not state.pods and not state.met_ns:
            assert state == FREE
        assert advance(rules, before, look) == (state, done)
