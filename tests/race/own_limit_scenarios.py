"""Kills at a limit of a pod's own, for `tests.race.scenarios`: verdict and flags -> name -> events after `START`."""

from monitor.race.events import End, Event
from tests.race.builders import OWN, OWN_POD, died, kill, mark, ms

CASES: dict[tuple[str, ...], dict[str, tuple[Event, ...]]] = {
    ("own_limit",): {
        "a container at its own limit": (kill(3), mark(3.002, **OWN), died(9), End(ms(5000))),
        "an evicted pod at the limit outrace gave it": (
            kill(3), mark(3.002, capped=True, **OWN_POD), died(9), End(ms(5000)),
        ),
        "a pod at its own limit": (
            mark(3, **{**OWN, "scope": "pod", "oom_path": "/kubepods/hog"}), died(9), End(ms(5000)),
        ),
        "a service outside every pod at its limit": (
            mark(3, name=None, **{**OWN, "scope": "outside", "oom_path": "/system/cron"}), died(9),
        ),
        "two processes of one invoker long apart are no group": (
            mark(3, **OWN), mark(30, pid=4243, **OWN), died(9), died(39, 4243),
        ),
        "two processes of one invoker that are known to be no group": (
            mark(3, **OWN, group=False), mark(4, pid=4243, **OWN, group=False), died(9), died(39, 4243),
        ),
        "what the runtime kills after an OOM is no user kill": (
            mark(3, **OWN), died(9), kill(20, pid=5, code=0), End(ms(5000)),
        ),
    },
    ("own_limit", "group_kill"): {
        "group kill": (mark(3, **OWN, group=True), mark(3.1, pid=4243, **OWN, group=True), died(9), died(9, 4243)),
        "a group whose kills are printed on a slow console": (
            mark(3, **OWN, group=True), mark(180, pid=4243, **OWN, group=True), died(9), died(189, 4243),
        ),
    },
}  # fmt: skip
