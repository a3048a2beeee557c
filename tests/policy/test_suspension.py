"""The brake on evictions that do not help: laws, and the cases that the rule was chosen by."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.signals import ALLOCATABLE_MEMORY, MEMORY, Observation
from monitor.policy.suspension import (
    DYING_NS,
    GO,
    IN_VAIN,
    NO_GAIN,
    NOISE,
    NOT_COVERED,
    OUTGROWN,
    WAIT,
    Answer,
    Figures,
    Growth,
    answer,
    grown,
    judge,
    missing,
    was_in_vain,
)
from monitor.policy.thresholds import parse_thresholds
from monitor.race.codec import decode

MIB = 1 << 20
S = 10**9
sizes = st.integers(0, 1 << 40)
growths = st.builds(
    Growth, span_ns=st.integers(5_000_000, 20 * S), inside=st.integers(-(1 << 34), 1 << 34),
    outside=st.integers(-(1 << 34), 1 << 34), first=st.integers(-(1 << 34), 1 << 34),
)  # fmt: skip
figures = st.builds(
    Figures,
    left=st.integers(-(1 << 30), 1 << 40),
    lasts_ns=st.integers(0, 20 * S) | st.none(),
    first=sizes | st.none(),
    pods=sizes,
    unknown=st.integers(0, 3),
    in_vain=st.integers(0, 4),
    growth=growths | st.none(),
    unseen=st.booleans(),
)
lines = st.integers(1, 1 << 38)


def outside(rate_mib: float, seconds: float = 0.1, inside_mib: float = 0) -> Growth:
    return Growth(int(seconds * S), int(inside_mib * MIB), int(rate_mib * seconds * MIB))


#: Five pods of 3.3 MiB, a threshold of 32 MiB that was just crossed.
SMALL = Figures(
    left=32 * MIB, lasts_ns=320_000_000, first=3 * MIB, pods=17 * MIB, unknown=0, in_vain=0, growth=outside(100)
)


@pytest.mark.parametrize(
    ("mib_missing", "known", "expected"),
    [
        (0.25, SMALL, Answer(False, OUTGROWN)),
        (20, SMALL._replace(left=12 * MIB), Answer(False, NOT_COVERED)),
        (25, SMALL._replace(left=7 * MIB), Answer(False, NOT_COVERED)),  # critical, and no eviction can buy time
        (0.25, SMALL._replace(growth=outside(4000)), Answer(False, OUTGROWN)),  # at full speed as well
        (0.25, SMALL._replace(growth=outside(0.01, 10)), GO),  # a leak that they outlast by far
        (17.5, SMALL._replace(growth=outside(0, 10)), Answer(False, NOT_COVERED)),  # stands still, and they do not
        (0.25, SMALL._replace(growth=None), GO),  # not measured: a guess suspends no eviction
        (20, SMALL._replace(growth=None), Answer(False, NOT_COVERED)),
        (0.25, SMALL._replace(growth=None, unseen=True), WAIT),  # what grows will be known
        (10, SMALL._replace(growth=Growth(S // 10, 0, MIB // 2), unseen=True), WAIT),
        (10, SMALL._replace(growth=Growth(S // 10, MIB, 0), unseen=True), GO),
        (10, SMALL._replace(growth=outside(10), unseen=True), Answer(False, OUTGROWN)),
        (10, SMALL._replace(left=3 * MIB, growth=None, unseen=True), GO),  # it would be used up before
        (20, SMALL._replace(growth=Growth(S, 10 * MIB, 30 * MIB)), GO),  # a quarter of it is
        (20, SMALL._replace(growth=Growth(S, 3 * MIB, 30 * MIB)), Answer(False, NOT_COVERED)),  # they breathe
        (20, SMALL._replace(growth=Growth(S, 3 * MIB, 30 * MIB, 17 * MIB)), GO),  # the first, and others give back
        (20, SMALL._replace(growth=Growth(S, 3 * MIB, 30 * MIB, 16 * MIB)), Answer(False, NOT_COVERED)),
        (20, SMALL._replace(growth=Growth(S, 0, 3 * MIB, MIB)), Answer(False, NOT_COVERED)),  # it breathes
        (1, SMALL._replace(growth=None, in_vain=IN_VAIN), Answer(False, NO_GAIN)),
        # Memory is about to be used up, and the first covers what is missing while it dies.
        (25, SMALL._replace(left=7 * MIB, first=40 * MIB, pods=50 * MIB), Answer(True, OUTGROWN)),
        (1, SMALL._replace(lasts_ns=200_000_000, first=40 * MIB, pods=50 * MIB), Answer(True, OUTGROWN)),
        (1, SMALL._replace(first=40 * MIB, pods=50 * MIB), Answer(False, OUTGROWN)),  # there is time
        # ... but one was evicted in vain already.
        (25, SMALL._replace(left=7 * MIB, first=40 * MIB, pods=50 * MIB, in_vain=1), Answer(False, OUTGROWN)),
        # They do not cover a large threshold, and yet last for hours: one goes where memory is about to be used up.
        (9500, Figures(500 * MIB, 500 * S, 10 * MIB, 8 << 30, 0, 0, outside(1, 10)), Answer(True, NOT_COVERED)),
        (7500, Figures(2500 * MIB, 2500 * S, 10 * MIB, 7 << 30, 0, 0, outside(1, 10)), Answer(False, NOT_COVERED)),
    ],
)  # fmt: skip
def test_the_cases_the_rule_was_chosen_by(mib_missing: float, known: Figures, expected: Answer) -> None:
    short = int(mib_missing * MIB)
    assert answer(short, known.left + short, known) == expected


@given(known=figures, short=st.integers(-(1 << 30), 1 << 40), line=lines, more=sizes)
def test_growth_in_pods_is_never_held(known: Figures, short: int, line: int, more: int) -> None:
    inside = NOISE + more
    for rest in (0, inside, 3 * inside):
        grew = known._replace(growth=Growth(S, inside, rest))
        assert answer(short, line, grew) == GO


@given(known=figures, short=st.integers(-(1 << 30), 1 << 40), line=lines)
def test_who_stands_still_is_held_only_where_evictions_cannot_end_the_shortage(
    known: Figures, short: int, line: int
) -> None:
    still = known._replace(growth=Growth(10 * S, 0, 0), unknown=0, unseen=False, eases=False)
    found = answer(short, line, still)
    assert found.go == (still.pods >= short and still.in_vain < IN_VAIN)
    assert answer(short, line, still._replace(growth=None)) == found


@given(known=figures, short=st.integers(-(1 << 30), 1 << 40), line=lines, more=sizes)
def test_more_to_give_back_never_holds_anybody(known: Figures, short: int, line: int, more: int) -> None:
    if answer(short, line, known).go:
        assert answer(short, line, known._replace(pods=known.pods + more)).go


@given(known=figures, short=st.integers(-(1 << 30), 1 << 40), line=lines)
def test_unknown_is_not_zero(known: Figures, short: int, line: int) -> None:
    found = answer(short, line, known._replace(unknown=1, in_vain=0, unseen=False, eases=False))
    assert found == GO


@given(known=figures, short=st.integers(-(1 << 30), 1 << 40), line=lines)
def test_a_shortage_that_was_there_is_observed_and_nothing_else_changes(known: Figures, short: int, line: int) -> None:
    for field in ("unseen", "eases"):
        seen, waits = (answer(short, line, known._replace(**{field: each})) for each in (False, True))
        assert waits == seen or (waits == WAIT and seen == GO and known.left >= 4 * MIB)


@given(known=figures, short=st.integers(-(1 << 30), 1 << 40), line=lines)
def test_one_goes_while_evictions_are_held_only_where_it_grows_and_little_is_left(
    known: Figures, short: int, line: int
) -> None:
    found = answer(short, line, known)
    if found.go and found.reason:
        growth = known.growth
        assert growth.grew >= NOISE
        assert 4 * known.left < line or (known.lasts_ns is not None and known.lasts_ns < S // 4)
        lasts = known.pods * growth.span_ns >= growth.outside * 60 * S or growth.outside < NOISE
        covers = known.first is not None and known.first >= short + growth.grew * DYING_NS // growth.span_ns
        assert known.in_vain < IN_VAIN
        assert lasts or (covers and not known.in_vain)


uids = st.text("abc", min_size=1, max_size=2)
usages = st.dictionaries(uids, st.integers(0, 1 << 34))


@given(before=usages, now=usages, candidates=st.sets(uids))
def test_what_pods_grew_by(before: Mapping[str, int], now: Mapping[str, int], candidates: set[str]) -> None:
    inside, everywhere = grown(before, now, candidates)
    assert everywhere == sum(now.values()) - sum(before.values())
    ending = {uid for uid in now if 2 * now[uid] < before.get(uid, 0)}
    assert inside == sum(now[uid] - before.get(uid, 0) for uid in now if uid in candidates and uid not in ending)


def test_what_is_missing_ends_at_the_threshold_and_only_then_at_the_min_reclaim() -> None:
    (plain,) = parse_thresholds({"memory.available": "100Mi"})
    assert (missing(plain, 90 * MIB, 1 << 30), missing(plain, 120 * MIB, 1 << 30)) == (10 * MIB, -20 * MIB)
    (widened,) = parse_thresholds({"memory.available": "100Mi"}, min_reclaim={"memory.available": "50Mi"})
    assert missing(widened, 90 * MIB, 1 << 30) == 10 * MIB
    assert missing(widened, 120 * MIB, 1 << 30) == 30 * MIB


HARD = parse_thresholds({"memory.available": "32Mi"}, enforce_node_allocatable=("pods",))


def test_one_threshold_that_evictions_help_is_enough() -> None:
    assert {t.signal for t in HARD} == {MEMORY, ALLOCATABLE_MEMORY}
    seen = {MEMORY: Observation(31 * MIB, 128 * MIB, 1), ALLOCATABLE_MEMORY: Observation(31 * MIB, 100 * MIB, 1)}
    fine = SMALL._replace(growth=Growth(S, 10 * MIB, 0))
    assert judge(HARD, seen, {MEMORY: SMALL, ALLOCATABLE_MEMORY: SMALL}) == Answer(False, OUTGROWN)
    assert judge(HARD, seen, {MEMORY: SMALL, ALLOCATABLE_MEMORY: fine}) == GO
    assert (judge(HARD, seen, {MEMORY: fine}), judge(HARD, seen, {})) == (GO, GO)
    assert judge((), seen, {MEMORY: SMALL}) == GO


@pytest.mark.parametrize(
    ("freed", "claimed", "rest", "expected"),
    [
        (50 * MIB, 50 * MIB, 0, False),
        (50 * MIB, 50 * MIB, 40 * MIB, True),  # growth outside took it
        (50 * MIB, 50 * MIB, 20 * MIB, False),
        (5 * MIB, 50 * MIB, 0, True),  # a tmpfs that outlives its pod
        (0, 100, 0, False),  # it had nothing: nothing follows
    ],
)
def test_an_eviction_in_vain(freed: int, claimed: int, rest: int, expected: bool) -> None:
    assert was_in_vain(freed, claimed, rest) is expected


@given(known=figures)
def test_a_recording_keeps_the_figures(known: Figures) -> None:
    assert decode(Figures, json.loads(json.dumps(known))) == known


def test_nobody_goes_while_memory_is_given_back() -> None:
    """Unless what grows is in pods, or nothing would be left before it is over."""
    eases = SMALL._replace(growth=Growth(S, 0, -20 * MIB), eases=True)
    assert (answer(MIB, 32 * MIB, eases), answer(MIB, 32 * MIB, eases._replace(eases=False))) == (WAIT, GO)
    assert answer(MIB, 32 * MIB, eases._replace(growth=outside(0, inside_mib=4))) == GO
    assert answer(MIB, 32 * MIB, eases._replace(left=MIB)) == GO
