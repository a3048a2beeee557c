"""Episodes in which a pod was held, for `tests.race.scenarios`: verdict and flags -> name -> events after `START`."""

from monitor.race.events import End, Event
from tests.race.builders import (
    OWN,
    clear,
    crossing,
    decided,
    died,
    gone,
    growing,
    hold,
    hold_end,
    kill,
    mark,
    ms,
    reported,
    signalled,
)

GROWTH = tuple(growing(-1000, -100, 800, 100))
OVER = (End(ms(9000)),)

CASES: dict[tuple[str, ...], dict[str, tuple[Event, ...]]] = {
    ("relieved", "held"): {
        "held until there was room": (*GROWTH, crossing(), hold(0.5), hold_end(900, "clear"), clear(890), *OVER),
    },
    ("eviction_won", "held"): {
        "held, then killed at the second line": (
            *GROWTH, crossing(), hold(0.5), hold_end(50, "second_line"), decided(50), signalled(50.1), gone(60),
            clear(61), *OVER,
        ),
    },
    ("eviction_won", "held", "held_then_evicted"): {
        "held, then the kubelet evicted it": (
            *GROWTH, crossing(), hold(0.5), kill(8000, pid=1, code=0, sender_comm="runc"), gone(8100, by="kubelet"),
            hold_end(8100, "gone"), clear(8105), reported(9000), End(ms(20_000)),
        ),
    },
    ("eviction_won", "held", "hold_unanswered"): {
        "held, and the kubelet took another pod": (
            *GROWTH, crossing(), hold(0.5), kill(8000, "db", pid=1, code=0, sender_comm="runc"),
            gone(8100, "db", by="kubelet"), hold_end(8200, "other_pod", instead="shop/db"), decided(8200),
            signalled(8200.1), gone(8210), clear(8211), End(ms(20_000)),
        ),
    },
    ("own_limit", "held"): {
        "killed at the cap of its hold": (mark(3, **OWN, held=True), died(9), End(ms(5000))),
    },
}  # fmt: skip
