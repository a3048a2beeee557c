"""Evictions that page cache was behind: the formula counts active pages as used, the kernel can give them back."""

from monitor.race.verdict import verdict
from tests.race.builders import MI, clear, crossing, decided, gone, growing, one, ranked, sample, signalled, watched


def advice_with(active_mi: float, before_mi: float = 0) -> str:
    episode = one(
        watched(), ranked(), sample(-1100, 700, active_file=round(before_mi * MI)), *growing(-1000, -100, 700, 100),
        sample(0, 900.25, active_file=round(active_mi * MI)), crossing(0), decided(1), signalled(1), gone(5),
        sample(6, 400), clear(6),
    )  # fmt: skip
    found = verdict(episode)
    assert found.verdict == "eviction_won"
    return found.advice


def test_active_cache_that_would_have_been_enough_is_named() -> None:
    assert "Page cache was behind it: 300 MiB were active" in advice_with(300)
    assert "256 KiB were short" in advice_with(300)


def test_too_little_active_cache_is_not() -> None:
    assert "Page cache" not in advice_with(0.1)


def test_cache_that_was_active_all_the_time_is_not() -> None:
    assert "Page cache" not in advice_with(300, before_mi=280)
