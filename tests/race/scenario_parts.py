"""What the scenarios are made of, and those whose record has gaps or in which outrace only observed."""

from monitor.race.events import End, Event, Lost
from tests.race.builders import MI, START, clear, crossing, decided, died, gone, growing, kill, mark, ms, signalled

GROWTH = tuple(growing(-1000, -100, 800, 100))
MARKED = (kill(3, pid=4242), mark(3.002), died(10))
UNSEEN = (kill(3), mark(3.002, oom_inactive_file=400 * MI), died(10))
EVICTED = (decided(0.1), signalled(0.15), gone(8))
CLEAR = (clear(12), End(ms(5000)))
KUBELET = {"by": "kubelet"}

#: name -> events, verdict, flags
GAPS: dict[str, tuple[tuple[Event, ...], str, set[str]]] = {
    "lost samples do not matter": ((*START, Lost(ms(1), ms(-1), "sample", 5), crossing(), *CLEAR), "relieved", set()),
    "lost marks do": ((*START, crossing(), Lost(ms(1), ms(-1), "oom", 5), *CLEAR), "undetermined", {"lost_events"}),
    "lost marks beside a mark do not": (
        (*START, crossing(), Lost(ms(1), ms(-1), "oom", 5), *MARKED, *CLEAR),
        "oom_before_decision",
        {"lost_events"},
    ),
    "a lost crossing": (
        (*START, Lost(ms(1), ms(-1), "cross", 5), *UNSEEN, End(ms(5000))),
        "undetermined",
        {"lost_events"},
    ),
    "the record stops": ((*START, crossing(), End(ms(1000))), "undetermined", set()),
    "the record stops before the pod is gone": (
        (*START, crossing(), *EVICTED[:2], End(ms(1000))),
        "undetermined",
        set(),
    ),
    "observed, in time": (
        (
            *START,
            *GROWTH,
            crossing(),
            decided(0.1, observed=True, working_set=7 * MI),
            mark(30),
            died(40),
            clear(41),
            End(ms(5000)),
        ),
        "eviction_won",
        set(),
    ),
    "observed, too late": (
        (*START, crossing(), decided(2.9, observed=True), *MARKED, *CLEAR),
        "oom_during_grace",
        set(),
    ),
    "observed, and nobody died": ((*START, crossing(), decided(1, observed=True), *CLEAR), "relieved", set()),
    "an eviction by a kubelet": (
        (
            *START,
            crossing(-5900),
            decided(0, **KUBELET),
            signalled(1, signal=15, by="kubelet"),
            gone(2100, by="kubelet"),
            clear(2200),
            End(ms(9000)),
        ),
        "eviction_won",
        set(),
    ),
}
