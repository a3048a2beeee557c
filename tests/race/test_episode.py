"""When episodes begin and end, what belongs to them, and the wall clock that they have."""

import pytest

from monitor.race.episode import Bounds, State, feed, ongoing
from monitor.race.events import KMSG, Checked, Clock, Event, Exit, Kill, Lost, Mark, Ranked, Reclaim, Sample, Seen, Tick
from monitor.race.incident import timestamp
from monitor.race.verdict import verdict
from tests.race.builders import (
    KUBEPODS,
    S,
    clear,
    crossing,
    decided,
    died,
    episodes,
    gone,
    kill,
    mark,
    ms,
    one,
    ranked,
    sample,
    watched,
)

OWN = {"scope": "container", "oom_path": "/kubepods/hog/main"}


def spans(*events: Event) -> list[tuple[str, float, str]]:
    return [(e.domain, (e.end_ns - ms(0)) / 1e6, e.ended) for e in episodes(*events)]


SOFT = {"hard": False}
HOG = "/kubepods/hog/main"
END = Tick(ms(70_000))
#: name -> events before `END`, and the episodes: domain, end, why it ended
SPANS: dict[str, tuple[tuple[Event, ...], list[tuple[str, float, str]]]] = {
    "clear for the settle time": ((crossing(), clear(100), Tick(ms(2300))), [("node", 100, "quiet")]),
    "a threshold that is met keeps it open": ((crossing(),), [("node", 70_000, "record stops")]),
    "pressure is not cut": (
        (crossing(), *(Tick(ms(t)) for t in range(1000, 60_000, 1000))), [("node", 70_000, "record stops")],
    ),
    "crossed again within the settle time": (
        (crossing(), clear(100), crossing(1900), clear(2000)), [("node", 2000, "quiet")],
    ),
    "crossed again after it": (
        (crossing(), clear(100), crossing(2200), clear(2300)), [("node", 100, "quiet"), ("node", 2300, "quiet")],
    ),
    "node and kubepods are one pressure": (
        (crossing(), crossing(1, **KUBEPODS), clear(100), clear(100, **KUBEPODS)), [("node", 100, "quiet")],
    ),
    "named by where the OOM killer came": (
        (crossing(), crossing(1, **KUBEPODS), mark(3, scope="kubepods"), died(5), clear(100), clear(100, **KUBEPODS)),
        [("kubepods", 100, "quiet")],
    ),
    "the victim is waited for": ((crossing(), clear(100), mark(3), died(7000)), [("node", 7000, "quiet")]),
    "the evicted pod is waited for": ((crossing(), decided(1), clear(100), gone(7000)), [("node", 7000, "quiet")]),
    "but not forever": ((mark(3), Tick(ms(30_000)), Tick(ms(30_100))), [("node", 3, "quiet")]),
    "a limit of its own is beside the pressure": (
        (crossing(), mark(3, **OWN), died(5), clear(100)), [("node", 100, "quiet"), (HOG, 5, "quiet")],
    ),
    "a kernel kill alone": ((kill(3), died(5)), []),
    "a mark of what a user killed belongs to that": (
        (kill(0, pid=9, code=0), mark(1000, pid=9, exiting=True), died(1001, 9)), [(HOG, 1001, "quiet")],
    ),
    "seeing and sampling": (
        (
            crossing(), clear(100), *(Seen(ms(t), "node", "memory.available", 1) for t in range(100, 4000, 500)),
            *(sample(t, 5) for t in range(100, 4000, 500)),
        ),
        [("node", 100, "quiet")],
    ),
    "late by less than the slack": ((clear(30), crossing(), Tick(ms(100))), [("node", 30, "quiet")]),
    "the victim had ended before it was marked": ((kill(2.9), died(2.95), mark(3)), [("node", 3, "quiet")]),
    "its own kill does": ((crossing(), clear(100), kill(1500, ours=True, code=0)), [("node", 1500, "quiet")]),
    "a victim does": ((crossing(), clear(100), mark(1500), died(1501)), [("node", 1501, "quiet")]),
    "hard pressure is over though a soft threshold stays met": (
        (crossing(-1000, **SOFT), crossing(), clear(100), crossing(5000), clear(5100), clear(5200, **SOFT)),
        [("node", 100, "quiet"), ("node", 5100, "quiet")],
    ),
    "a soft threshold alone": ((crossing(**SOFT),), [("node", 70_000, "record stops")]),
    "a soft threshold that clears": ((crossing(**SOFT), clear(50_000, **SOFT)), [("node", 50_000, "quiet")]),
}  # fmt: skip


@pytest.mark.parametrize("name", SPANS)
def test_when_an_episode_ends(name: str) -> None:
    events, expected = SPANS[name]
    assert sorted(spans(*events, END)) == sorted(expected)


def test_a_fork_bomb_whose_victims_never_end_is_cut() -> None:
    bomb = [mark(k * 1000, pid=k + 1, **OWN) for k in range(61)]
    assert spans(*bomb, Tick(ms(61_000)))[0] == (HOG, 59_000, "crowded")


def test_too_many_limits_at_once_end_the_oldest() -> None:
    marks = [mark(k, pid=k, scope="container", oom_path=f"/kubepods/p{k}/main") for k in range(1, 6)]
    found = episodes(*marks, Tick(ms(1000)), bounds=Bounds(open=3))
    assert [(e.domain, e.ended) for e in found][:2] == [(f"/kubepods/p{k}/main", "crowded") for k in (1, 2)]
    assert len(found) == 5


def test_the_kernels_sigkill_before_the_mark_is_part_of_it() -> None:
    found = one(kill(2.998), kill(2.9, "cart", pid=9), mark(3), died(5))
    assert [type(e) for e in found.events] == [Kill, Kill, Mark, Exit]
    own = one(kill(2.998), kill(2.9, "cart", pid=9), mark(3, **OWN), died(5))
    assert [e.victim_pid for e in own.events if isinstance(e, Kill)] == [4242]
    assert own.start_ns == ms(3)


def test_what_was_recorded_before_comes_along_for_a_while() -> None:
    before = [sample(-40_000, 1), sample(-29_000, 2), Reclaim(ms(-10), "/node"), Lost(ms(-5), ms(-6), "sample", 1)]
    found = one(*before, Tick(ms(-1)), crossing(), clear(1), Tick(ms(5000)))
    kinds = [type(e) for e in found.events[:3]]
    assert kinds == [Sample, Reclaim, Lost]
    assert found.events[0].ts_ns == ms(-29_000)


def test_an_alert_need_not_wait_for_the_end() -> None:
    state = State()
    for event in (watched(), crossing(), mark(3)):
        state, done = feed(state, event)
        assert done == ()
    now = ongoing(state)
    assert [(e.ended, len(e.events)) for e in now] == [("open", 2)]
    assert ongoing(state) == now


def test_a_flood_keeps_the_beginning_and_the_end() -> None:
    flips = [e for k in range(50) for e in (crossing(k), clear(k + 0.5))]
    found = episodes(*flips, Tick(ms(9000)), bounds=Bounds(events=10))[0]
    assert [e.ts_ns for e in found.events[:2]] == [ms(0), ms(0.5)]
    assert found.events[-1].ts_ns == ms(49.5)
    assert len(found.events) == 10


def test_samples_are_thinned_out_and_keep_their_span() -> None:
    many = [sample(t, 5) for t in range(1, 200)]
    found = episodes(crossing(), *many, clear(300), Tick(ms(9000)), bounds=Bounds(samples=16))[0]
    kept = [e.ts_ns for e in found.events if isinstance(e, Sample)]
    assert len(kept) <= 16
    assert kept[-1] == ms(199)
    assert kept[0] <= ms(20)


def test_a_mark_reported_late_finds_the_end_of_its_victim() -> None:
    """A reader that was stopped reads one ring after the other: the end came, and time went on, before the mark."""
    late = (crossing(), clear(1), kill(2.9), died(5), sample(500, 100), mark(3), Tick(ms(2700)), Tick(ms(2800)))
    state, done = State(), []
    for event in late:
        state, over = feed(state, event)
        done += over
    assert [(e.domain, e.ended, [type(x) for x in e.events if isinstance(x, Exit)]) for e in done] == [
        ("node", "quiet", [Exit])
    ]


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_the_line_of_the_kernels_log_about_a_kill_comes_before_its_mark_or_after(opens: bool, is_first: bool) -> None:
    """One of some seconds ago is of another process of that number."""
    line, old = (Checked(ms(t), KMSG, 4242, True, "Killed process") for t in (4, -2000))
    before = () if opens else (crossing(-3000), old)
    witnesses = (line, sample(500, 100), mark(3)) if is_first else (mark(3), sample(500, 100), line)
    found = one(*before, *witnesses, died(600), clear(700), Tick(ms(3000)))
    assert [e for e in found.events if isinstance(e, Checked)] == [line]


def test_a_user_kill_of_some_seconds_ago_is_not_reported_again() -> None:
    first, second = episodes(kill(0, "cart", pid=9, code=0), died(1, 9), crossing(5000), clear(5100), Tick(ms(9000)))
    assert [type(e) for e in first.events] == [Kill]
    assert not [e for e in second.events if isinstance(e, Kill)]


def test_only_where_somebody_was_killed_since_is_judged_again() -> None:
    state = State()
    for k in range(30):
        state, _ = feed(state, mark(k * 10, f"p{k}", pid=k + 1, scope="container", oom_path=f"/kubepods/p{k}/main"))
    assert len(ongoing(state)) == len(ongoing(state, 0)) == 30
    for t in (500, 550):
        state, _ = feed(state, Tick(ms(t)))
    since = state.latest_ns
    state, _ = feed(state, mark(600, "p7", pid=99, scope="container", oom_path="/kubepods/p7/main"))
    assert [e.domain for e in ongoing(state, since)] == ["/kubepods/p7/main"]
    # One that is reported late is not left out: it is taken after what came before it.
    for t in (680, 700):
        state, _ = feed(state, Tick(ms(t)))
    since = state.latest_ns
    state, _ = feed(state, mark(660, "p3", pid=98, scope="container", oom_path="/kubepods/p3/main"))
    assert "/kubepods/p3/main" in [e.domain for e in ongoing(state, since)]


def test_an_episode_has_the_ranking_of_each_of_its_kills_and_not_of_those_elsewhere() -> None:
    other = {"scope": "container", "oom_path": "/kubepods/cart/main"}
    elsewhere = [e for k in range(1, 50) for e in (ranked(k), mark(k, "cart", k, **other))]
    own = episodes(ranked(0), mark(0, pid=1, **OWN), *elsewhere, ranked(60), mark(60, pid=2, **OWN))
    found = next(e for e in own if e.domain == HOG)
    assert [e.ts_ns for e in found.events if isinstance(e, Ranked)] == [ms(0), ms(60)]


AT = 1_800_000_000 * S


def wall(t: float, wall_s: float = 0) -> Clock:
    """The wall clock, ``wall_s`` seconds ahead, from ``t`` on."""
    return Clock(ms(t), AT - ms(0) + round(wall_s * S))


def test_what_is_heard_late_has_the_clock_of_its_own_time() -> None:
    found = episodes(wall(-500), wall(2_000, -60), mark(-1), died(5), Tick(ms(20_000)))
    assert [verdict(e).start for e in found] == [timestamp(AT - 1_000_000)]
