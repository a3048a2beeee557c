"""Incidents are in Unix time by the wall clock as it was when they began."""

from monitor.race.episode import State, feed, ongoing
from monitor.race.events import Clock, End
from monitor.race.incident import timestamp
from monitor.race.verdict import verdict
from tests.race.builders import S, clear, crossing, died, episodes, mark, ms

AT = 1_800_000_000 * S


def wall(t: float, wall_s: float = 0) -> Clock:
    """The wall clock, ``wall_s`` seconds ahead, from ``t`` on."""
    return Clock(ms(t), AT - ms(0) + round(wall_s * S))


def test_an_episode_has_the_clock_of_its_start_to_its_end() -> None:
    step = wall(1_000, 3600)
    first, second = episodes(wall(-500), crossing(), clear(1_500), step, crossing(9_000), clear(9_500), End(ms(20_000)))
    assert (verdict(first).start, verdict(first).end) == (timestamp(AT), timestamp(AT + 1_500_000_000))
    assert verdict(second).start == timestamp(AT + 3609 * S)


def test_what_is_heard_late_has_the_clock_of_its_own_time() -> None:
    found = episodes(wall(-500), wall(2_000, -60), mark(-1), died(5), End(ms(20_000)))
    assert [verdict(e).start for e in found] == [timestamp(AT - 1_000_000)]


def test_the_id_does_not_change_while_it_goes_on() -> None:
    state = State()
    for event in (wall(-500), crossing(), mark(3)):
        state, _ = feed(state, event)
    (before,) = ongoing(state)
    for event in (wall(1_000, 86_400), died(1_100), clear(1_200)):
        state, _ = feed(state, event)
    (after,) = feed(state, End(ms(20_000)))[1]
    assert verdict(before).id == verdict(after).id
