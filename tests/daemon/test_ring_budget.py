"""A share of the time, for what has to stand back."""

from monitor.hot.ring_budget import SAVED_NS, SHARE, Ration

MS = 1_000_000


def test_more_than_the_share_makes_a_rest_that_pays_for_it() -> None:
    now = [0]
    ration = Ration(lambda: now[0])
    spent = 0
    while not ration.until_ns:  # all the time, from a full purse on
        began, now[0] = now[0], now[0] + MS
        spent += MS
        ration.spend(began)
    assert SAVED_NS < spent < 2 * SAVED_NS
    assert not ration.is_over(ration.until_ns - 1)
    now[0] = ration.until_ns
    assert ration.is_over(now[0])
    assert not ration.is_over(now[0])  # it ended before
    assert spent - SAVED_NS <= now[0] / SHARE + MS


def test_less_than_the_share_never_rests() -> None:
    now = [0]
    ration = Ration(lambda: now[0])
    for _ in range(1000):
        now[0] += 5 * MS
        assert ration.spend(now[0] - MS + 1)


def test_over_a_long_time_it_is_the_share() -> None:
    now, spent = [0], 0
    ration = Ration(lambda: now[0])
    while now[0] < 10_000 * MS:
        if ration.until_ns:
            now[0] = ration.until_ns
            assert ration.is_over(now[0])
        began, now[0] = now[0], now[0] + 300_000
        spent += 300_000
        ration.spend(began)
    assert spent <= now[0] / SHARE + SAVED_NS + 300_000
    assert spent >= now[0] / (2 * SHARE)
