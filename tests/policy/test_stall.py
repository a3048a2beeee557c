"""Stalls: laws of the share, when a stall counts, and which pod is its cause. Figures are those of measured loads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.errors import PolicyError
from monitor.policy.stall import (
    CALM_NS,
    GREW,
    LONGEST_RELAXED_NS,
    OUTSIDE,
    OWN_LIMIT,
    POD,
    RELAXED_NS,
    SWAP,
    SWAPPED,
    THROTTLED,
    UNKNOWN,
    Cause,
    Lacks,
    Load,
    Rule,
    Stall,
    advance,
    cause,
    files_passed,
    goes_round,
    in_use,
    latest,
    most_swapped,
    parse_rule,
    relaxed,
    relaxed_for_ns,
    share,
    swaps,
    waited,
)

S, MIB = 10**9, 1 << 20
RULE = Rule(POD, 0.5, 10 * S)
counters = st.integers(0, 10**7)
pages = st.integers(0, 10**6) | st.none()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("pod>50%,grace=10s", RULE),
        ("pod>50%", RULE),
        (" machine > 40% , grace = 1m30s", Rule("machine", 0.4, 90 * S)),
        ("kubepods>0.5%,grace=1s", Rule("kubepods", 0.005, S)),
        ("pod>50%,grace=5s,evict", Rule(POD, 0.5, 5 * S, evict=True)),
        ("pod>50%,evict", RULE._replace(evict=True)),
        ("pod>50%,relax", RULE._replace(relax=True)),
        ("pod>50%,grace=10s,relax,evict", RULE._replace(evict=True, relax=True)),
        ("pod>50%,grace=10s,evict,relax", RULE._replace(evict=True, relax=True)),
        ("swap.used>90%,grace=10s", Rule(SWAP, 0.9, 10 * S)),
    ],
)
def test_a_rule_is_read_as_it_is_written(text: str, rule: Rule) -> None:
    found = parse_rule(text)
    assert found._replace(share=rule.share) == rule
    assert found.share == pytest.approx(rule.share)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not a rule like 'pod>50%,grace=10s'"),
        ("node>50%", "pod, kubepods, machine or swap.used"),
        ("pod<50%", "is not a rule"),
        ("pod>50", "is not a rule"),
        ("pod>100%", "less than 100%"),
        ("pod>0%", "more than 0%"),
        ("pod>50%,grace=10", "10"),
        ("pod>50%,grace=0s", "the grace is 1s to 1h"),
        ("pod>50%,grace=2h", "the grace is 1s to 1h"),
        ("pod>50%,grace=", "is not a rule"),
        ("pod>50%,kill", "is not a rule"),
        ("machine>50%,relax", "relax is for pods"),
        ("pod>50%,relaxed", "is not a rule"),
    ],
)
def test_what_is_no_rule_is_named(text: str, problem: str) -> None:
    with pytest.raises(PolicyError, match=problem):
        parse_rule(text)


@given(counters, counters, pages, pages, st.integers(1, 2_000_000))
def test_the_share_is_a_part_of_what_was_waited(memory: int, io: int, back: int, taken: int, took_us: int) -> None:
    before = Load(0, 0, 0, None if back is None else 0, None if taken is None else 0)
    now = Load(took_us * 1000, memory, io, back, taken)
    found = share(before, now)
    assert 0 <= found <= 1
    assert found <= waited(before, now) + 1e-9
    assert found >= min(1.0, memory / took_us) - 1e-9
    more = share(before, now._replace(refaults=(back or 0) + 1000) if back is not None else now)
    assert more >= found


@pytest.mark.parametrize(
    ("memory", "io", "refaults", "reclaimed", "expected"),
    [
        (0, 340_000, 1500, 1500, 0.34),  # refaults of file pages: memory pressure says nothing
        (0, 340_000, 750, 1500, 0.17),
        (0, 340_000, 0, 1500, 0.0),  # a backup reads once: what reclaim took was not needed again
        (970_000, 0, 0, 0, 0.97),  # memory.high: no reclaim, no refault
        (0, 800_000, 2000, 0, 0.8),  # reclaim on behalf of others
        (0, 800_000, 9, 0, 0.0),
        (100_000, 900_000, None, None, 0.1),  # not known: no guess
        (900_000, 900_000, 10, 10, 1.0),
    ],
)
def test_io_counts_as_far_as_refaults_explain_it(
    memory: int, io: int, refaults: int | None, reclaimed: int | None, expected: float
) -> None:
    known = None if refaults is None else 0
    assert share(Load(0, 0, 0, known, known), Load(S, memory, io, refaults, reclaimed)) == pytest.approx(expected)


def played(shares: list[float]) -> list[Stall | None]:
    """The stall after each second in which memory was waited for that share of the time."""
    waited_us = [int(each * 1_000_000) for each in shares]
    return advanced(RULE, [Load(k * S, sum(waited_us[:k]), 0) for k in range(len(shares) + 1)])


def advanced(rule: Rule, loads: list[Load]) -> list[Stall | None]:
    """The stall after each load but the first."""
    stalls = list[Stall | None]([None])
    for end in range(2, len(loads) + 1):
        stalls.append(advance(rule, stalls[-1], loads[:end]))
    return stalls[1:]


@pytest.mark.parametrize(
    ("back", "grew", "goes"),
    [(400, 0, True), (400, 199, True), (400, 200, False), (400, 400, False), (400, -200, True), (10, 0, False)],
)
def test_a_pod_that_only_reads_back_what_it_had_lost_needs_no_memory(back: int, grew: int, goes: bool) -> None:
    loads = [Load(0, 0, 0), Load(S, 0, 0, 5, 5, 0, 1000), Load(2 * S, 0, 0, 5 + back, 5, 0, 1000 + grew)]
    assert goes_round(loads) is goes
    assert not goes_round(loads[:2])


@pytest.mark.parametrize(
    ("passed", "refaults", "displace"),
    [
        pytest.param(10_945, 1_669, True, id="backup"),
        pytest.param(186, 51_563, False, id="neighbour"),
        pytest.param(5_001, 10_000, True, id="over-half"),
        pytest.param(5_000, 10_000, False, id="half"),
        pytest.param(1_000, 0, False, id="few"),
        pytest.param(-3_000, 0, False, id="files-removed"),
    ],
)
def test_files_that_pass_through_memory_displace_those_that_are_read_again(
    passed: int, refaults: int, displace: bool
) -> None:
    first, unknown = Load(0, 0, 0, 7, 0, 0, 0, 70), Load(S, 0, 0, 7 + refaults, 0)
    assert files_passed(first, unknown._replace(passed=70 + passed)) == passed * displace
    assert files_passed(first, unknown) == 0


@pytest.mark.parametrize(
    ("passed", "grew", "why"),
    [
        (10 * MIB, 20 * MIB, "files"),
        pytest.param(10 * MIB - 1, 20 * MIB, "grew", id="less-than-a-third"),
        pytest.param(49 * MIB, 100 * MIB, "grew", id="less-than-half-of-the-growth"),
        (0, 20 * MIB, "grew"),
    ],
)
def test_files_explain_a_stall_by_the_rule_for_growth(passed: int, grew: int, why: str) -> None:
    assert cause(Lacks("a", 30 * MIB, passed=passed), {"b": grew}, 0, ["b"]).why == why
    assert cause(Lacks("a", passed=passed), {"b": grew}, 0, ["b"]).why == "unknown"


@pytest.mark.parametrize(("from_swap", "of_all", "swapped"), [(6, 10, True), (5, 10, False), (0, 0, False)])
def test_a_stall_is_of_swap_if_most_of_what_is_read_again_comes_from_it(
    from_swap: int, of_all: int, swapped: bool
) -> None:
    assert swaps(Load(0, 0, 0, 7, 0, 7), Load(S, 0, 0, 7 + of_all, 0, 7 + from_swap)) is swapped
    assert not swaps(Load(0, 0, 0), Load(S, 0, 0, of_all, 0, from_swap)), "not known"


def test_a_stall_counts_when_its_grace_is_over() -> None:
    found = played([0.1] * 3 + [0.9] * 12)
    assert found[2] is None
    assert [stall is not None and stall.counts for stall in found] == [False] * 12 + [True] * 3
    last = found[-1]
    assert last is not None
    assert (last.since_ns, last.most) == (3 * S, pytest.approx(0.9))


def test_single_seconds_are_no_stall_and_end_none() -> None:
    """A writer of files waits for more than half of a second in 26 of 200; a reader that stalls has good seconds."""
    assert not any(stall and stall.counts for stall in played([0.84] + [0.05] * 3 + [0.84] + [0.1] * 4) * 5)
    assert not any(stall and stall.counts for stall in played(([0.84] + [0.05] * 3) * 20))
    stalls = played([0.95, 0.95, 0.95, 0.4] * 5)
    assert all(stall is not None for stall in stalls)
    assert stalls[-1] is not None
    assert stalls[-1].counts


def test_a_stall_is_over_when_the_pod_has_run_for_a_while() -> None:
    calm = CALM_NS // S
    found = played([0.9] * 12 + [0.2] * calm)
    assert [stall is None for stall in found] == [False] * (11 + calm) + [True]


def test_what_began_slowly_counts_by_its_last_grace() -> None:
    found = played([0.51, 0.1] * 5 + [0.95] * 20)
    assert [k for k, stall in enumerate(found, 1) if stall and stall.counts][:1] == [20]


@given(st.lists(st.floats(0, 0.5), max_size=40))
def test_no_stall_below_the_line(shares: list[float]) -> None:
    assert not any(stall is not None for stall in played(shares))


def test_without_samples_of_a_whole_window_nothing_is_known() -> None:
    assert latest([]) is None
    assert latest([Load(0, 0, 0)]) is None
    assert latest([Load(0, 0, 0), Load(S // 2, S, 0)]) is None
    quick = [Load(k * S // 4, k * 250_000 if k > 2 else 0, 0) for k in range(5)]
    assert latest(quick) == pytest.approx(0.5)  # by its parts
    assert advance(RULE, None, quick[:2]) is None


@pytest.mark.parametrize(
    ("lacks", "grew", "outside", "expected"),
    [
        (Lacks("reader", 33 * MIB), {"hog": 90 * MIB, "reader": 0, "probe": MIB}, 0, Cause("hog", GREW, 90 * MIB)),
        (Lacks("reader", 33 * MIB), {"first": 45 * MIB, "hog": 90 * MIB}, 0, Cause("first", GREW, 45 * MIB)),
        (Lacks("reader", 33 * MIB), {"first": 12 * MIB, "hog": 90 * MIB}, 0, Cause("hog", GREW, 90 * MIB)),
        (Lacks("reader", 2 * MIB), {"first": 3 * MIB}, 0, Cause("", UNKNOWN)),  # every pod grows by some pages
        (Lacks("reader", 33 * MIB), {"first": 10 * MIB, "hog": 90 * MIB}, 0, Cause("hog", GREW, 90 * MIB)),
        (Lacks("reader", 33 * MIB), {"hog": 10 * MIB}, 5 * MIB, Cause("", UNKNOWN)),
        (Lacks("reader", 33 * MIB), {"hog": 10 * MIB}, 50 * MIB, Cause("", OUTSIDE, 50 * MIB)),
        (Lacks("reader", 9 * MIB), {"hog": 5 * MIB}, 2048 * MIB, Cause("", OUTSIDE, 2048 * MIB)),
        (Lacks("reader", 33 * MIB), {"hog": -MIB, "reader": 40 * MIB}, 0, Cause("reader", GREW, 40 * MIB)),
        (Lacks("reader", 33 * MIB), {"hog": 40 * MIB, "reader": 90 * MIB}, 0, Cause("reader", GREW, 90 * MIB)),
        (Lacks("reader", 90 * MIB, limit=OWN_LIMIT), {"hog": 90 * MIB}, 0, Cause("reader", OWN_LIMIT)),
        (Lacks("reader", limit=THROTTLED), {"reader": -5}, 0, Cause("reader", THROTTLED)),
        (Lacks("reader", 0, 6 * MIB), {"hog": 5 * MIB}, 0, Cause("hog", GREW, 5 * MIB)),
        (Lacks("reader"), {"hog": 0}, 0, Cause("", UNKNOWN)),
        (Lacks("reader", 30 * MIB), {}, 0, Cause("", UNKNOWN)),
        (Lacks("", 0, 30 * MIB), {"reader": 0, "hog": 11 * MIB}, 0, Cause("hog", GREW, 11 * MIB)),
    ],
)
def test_the_cause_is_the_first_of_the_order_that_explains_a_third(
    lacks: Lacks, grew: dict[str, int], outside: int, expected: Cause
) -> None:
    assert cause(lacks, grew, outside, ["first", "hog", "probe", "reader"]) == expected


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(-MIB, 64 * MIB)), st.integers(0, 64 * MIB))
def test_no_pod_is_the_cause_that_did_not_grow_by_a_third(grew: dict[str, int], lost: int) -> None:
    found = cause(Lacks("a", lost), grew, 0, "abcd")
    if found.uid:
        assert grew[found.uid] >= lost // 3 > 0


def filled(shares: list[float]) -> list[Stall | None]:
    """The stall after each second in which this share of swap was in use."""
    loads = [in_use(None, 0, 1.0)]
    for k, each in enumerate(shares, 1):
        loads.append(in_use(loads[-1], k * S, each))
    return advanced(Rule(SWAP, 0.9, 10 * S), loads)


def test_swap_is_full_when_it_was_above_the_share_for_the_grace() -> None:
    found = filled([0.95] * 12 + [0.5] * 6)
    assert [stall is not None and stall.counts for stall in found[:12]] == [False] * 9 + [True] * 3
    assert found[11] is not None
    assert found[11].most == pytest.approx(0.95)
    assert found[-1] is None
    assert not any(stall and stall.counts for stall in filled([0.95, 0.8] * 20)), "below on average"


@given(st.lists(st.floats(0, 0.9), max_size=40))
def test_swap_below_its_share_is_never_full(shares: list[float]) -> None:
    assert not any(stall is not None and stall.counts for stall in filled(shares))


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 1000 * MIB)), st.integers(1, 1000 * MIB))
def test_the_cause_of_a_full_swap_has_most_of_it(swapped: dict[str, int], total: int) -> None:
    found = most_swapped(swapped, total)
    most = max(swapped.values(), default=0)
    if most * 20 < total:
        assert found == Cause("", UNKNOWN)
    elif found.uid:
        assert found == Cause(found.uid, SWAPPED, most)
        assert swapped[found.uid] == most


limits = st.integers(0, 1 << 45)


@given(limits, limits | st.none(), limits)
def test_memory_high_is_raised_by_an_eighth_at_most_and_not_past_what_there_is(
    high: int, most: int | None, free: int
) -> None:
    found = relaxed(high, most, free)
    assert found >= high
    if found > high:
        assert found - high <= min(high / 8, free / 2)
        assert most is None or found <= most
        assert found - high >= high // 64, "less lets nothing go on"


@pytest.mark.parametrize(
    ("high", "most", "free", "expected"),
    [
        (64 * MIB, None, 1 << 40, 72 * MIB),
        (64 * MIB, None, 8 * MIB, 68 * MIB),
        (64 * MIB, None, 2 * MIB, 65 * MIB),
        (64 * MIB, None, 2 * MIB - 4096, 64 * MIB),
        (64 * MIB, 70 * MIB, 1 << 40, 70 * MIB),
        (64 * MIB, 60 * MIB, 1 << 40, 64 * MIB),
        (64 * MIB, None, 0, 64 * MIB),
        (0, None, 1 << 40, 0),  # of a pod that is to get nothing
    ],
)
def test_what_memory_high_is_raised_to(high: int, most: int | None, free: int, expected: int) -> None:
    assert relaxed(high, most, free) == expected


def test_a_pod_that_stalls_again_keeps_its_raised_memory_high_for_twice_as_long() -> None:
    assert relaxed_for_ns(0, 10**15) == RELAXED_NS == 60 * S
    assert relaxed_for_ns(RELAXED_NS, 30 * S) == 120 * S
    assert relaxed_for_ns(120 * S, 121 * S) == RELAXED_NS, "that is another stall"
    assert relaxed_for_ns(LONGEST_RELAXED_NS, S) == LONGEST_RELAXED_NS
