"""Episodes of a node whose thresholds are by outrace's own formulas, beside the line that a kubelet would have."""

from monitor.policy.eviction_pass import PassConfig
from monitor.policy.signals import RECLAIMABLE
from monitor.policy.thresholds import parse_thresholds
from monitor.race.episode import Episode
from monitor.race.verdict import verdict
from tests.race.builders import MI, S, clear, crossing, decided, gone, judged, one, ranked, sample, signalled
from tests.race.scenarios import OWN_LINES

OWN = PassConfig(parse_thresholds({RECLAIMABLE: "100Mi"}, own=True), 300 * S)


def flood() -> Episode:
    """The kubelet's line is crossed for 30 s by page cache: of 950 MiB in use 600 are active file pages."""
    samples = [sample(t, 950, active_file=600 * MI) for t in range(-2000, 30_001, 500)]
    return one(ranked(), *OWN_LINES, *samples[:4], crossing(0), *samples[4:], clear(30_100))


def test_only_the_kubelet_would_have_evicted() -> None:
    found = verdict(flood(), 0, OWN)
    assert (found.verdict, found.flags, found.evicted) == ("relieved", ("kubelet_only",), ())
    # 1000 MiB less the 350 that are no page cache.
    assert found.summary == (
        "Nothing was wrong: only the kubelet's formula was below its line of 100 MiB: by memory.reclaimable at least "
        "650 MiB were available, and nobody was OOM-killed."
    )
    (poll,) = found.counterfactual
    assert (poll.detected, poll.oom_ms) == (1.0, None), "its loop comes round within the 30 s"


def test_an_eviction_by_our_own_line_is_about_that_line() -> None:
    ours = {"signal": RECLAIMABLE}
    found = judged(
        ranked(), *OWN_LINES, crossing(-3000), crossing(0, **ours), decided(0.1, **ours), signalled(0.15), gone(8),
        clear(12, **ours), clear(13),
    )  # fmt: skip
    assert (found.verdict, found.flags) == ("eviction_won", ())
    assert "within 8.0 ms of the crossing" in found.summary, "of ours, not of the kubelet's 3 s before"
