"""Kills that were only counted: nobody saw who was killed, or at whose limit."""

from monitor.race.events import Lost
from tests.race.builders import START, judged, mark, ms, sample


def test_a_counted_kill_claims_nothing() -> None:
    """The daemon reports "global" where it knows of no cgroup, which is not the same as the machine having run out."""
    lost = [Lost(ms(0), ms(0) - 1, what, 1) for what in ("oom", "exit", "decision", "cross")]
    counted = mark(0, "cart", pid=0, victim_comm="", scope="global", oom_path=None, oom_usage=None, oom_limit=None)
    found = judged(*START, sample(-10, 500), *lost, counted)
    assert (found.verdict, found.flags) == ("undetermined", ("lost_events",))
    seen = mark(0, "cart", scope="global", oom_path=None, oom_usage=None, oom_limit=None)
    assert {"global", "wrong_victim"} <= set(judged(*START, sample(-10, 500), seen).flags)
