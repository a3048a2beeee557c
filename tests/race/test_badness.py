"""The kernel's arithmetic, with numbers worked out by hand from mm/oom_kill.c."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from monitor.race.badness import Process, badness, likely_victim
from tests.race.builders import MI

GIB_PAGES = 262_144


def process(pid: int, rss_mi: int = 100, adj: int = 0, name: str | None = "hog", **more: Any) -> Process:
    given: dict[str, Any] = {"swap": 0, "pgtables": 0, "pod": f"uid-{name}" if name else None}
    given |= {"pod_name": f"shop/{name}" if name else None, "cgroup": f"/kubepods/{name}/main" if name else "/cron"}
    return Process(**{"pid": pid, "comm": "x", "rss": rss_mi * MI, "oom_score_adj": adj, **given, **more})


def test_points_are_pages_and_thousandths_of_the_limit() -> None:
    # 100 MiB + 8 MiB of swap + 3 pages of page tables; 262144 // 1000 = 262 pages for each point of adj.
    p = process(1, 100, 500, swap=8 * MI, pgtables=3 * 4096 + 4095)
    assert badness(p, GIB_PAGES) == 25_600 + 2048 + 3 + 500 * 262
    assert badness(process(1, 1, -997), GIB_PAGES) == 256 - 997 * 262


def test_the_protected_are_never_chosen() -> None:
    assert badness(process(1, adj=-1000), GIB_PAGES) is None
    assert badness(process(1, skip=True), GIB_PAGES) is None
    assert likely_victim([process(1, adj=-1000), process(2, skip=True)], GIB_PAGES) is None


def test_the_biggest_is_chosen_unless_oom_score_adj_decides() -> None:
    found = likely_victim([process(1, 300), process(2, 100, 999)], GIB_PAGES)
    assert found.process.pid == 2


def test_of_equals_the_last_met_is_chosen() -> None:
    found = likely_victim([process(1), process(2), process(3, 50)], GIB_PAGES)
    assert found.process.pid == 2


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(-1000, 1000)), max_size=20), st.integers(1, 10**7))
def test_nobody_has_more_points_than_the_victim(facts: list[tuple[int, int]], totalpages: int) -> None:
    crowd = [process(i, rss, adj) for i, (rss, adj) in enumerate(facts)]
    found = likely_victim(crowd, totalpages)
    points = [p for p in (badness(c, totalpages) for c in crowd) if p is not None]
    assert (found is None) == (not points)
    if found is not None:
        assert found.points == max(points)
