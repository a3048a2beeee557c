"""The second witness of a kill."""

import time

from monitor.kernel.kmsg import LoggedKill
from monitor.kernel.wire import OomEvent
from monitor.race.events import KMSG_BY_HAND, Checked
from monitor.side.oom_events import LOGGED_NS, KillConfirmation
from tests.race.builders import mark


def test_the_log_says_which_kill_sysrq_asked_for() -> None:
    """Its line may come before the mark of the kill, or after."""
    checked: list[Checked] = []
    confirmation, now = KillConfirmation(checked.append), time.monotonic_ns()
    for pid, by_hand in ((5, True), (6, False)):
        kill = LoggedKill(OomEvent("mark", now, victim_pid=pid), None, "Killed process", by_hand)
        steps = [lambda kill=kill: confirmation.logged(kill), lambda pid=pid: confirmation.marked(mark(0, pid=pid))]
        for take in steps if by_hand else steps[::-1]:
            assert [one for one in checked if one.victim_pid == pid] == []
            take()
    assert [(c.source, c.victim_pid) for c in checked] == [("kmsg", 5), (KMSG_BY_HAND, 5), ("kmsg", 6)]
    confirmation.marked(mark(0, pid=7, ts_ns=now))
    confirmation.turn(now + LOGGED_NS + 1)
    confirmation.logged(kill._replace(event=kill.event._replace(victim_pid=7)))
    assert len(checked) == 3, "another process of that number"
