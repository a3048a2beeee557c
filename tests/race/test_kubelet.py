"""A kubelet's evictions, known only by what its runtime does to a pod: SIGKILL under pressure, then no process left."""

from typing import Any

import pytest

from monitor.race.events import RUNTIMES, End, Kill
from monitor.race.verdict import verdict
from tests.race.builders import (
    START,
    clear,
    crossing,
    decided,
    died,
    episodes,
    gone,
    judged,
    kill,
    mark,
    ms,
    one,
    reported,
    signalled,
)

END = End(ms(60_000))


def stop(t: float, name: str | None = "hog", pid: int = 10, comm: str = "containerd-shim", **more: Any) -> Kill:
    """SIGKILL by a container runtime."""
    return kill(t, name, pid, code=0, sender_comm=comm, **more)


def left(t: float, name: str = "hog") -> Any:
    return gone(t, name, None, by="kubelet")


@pytest.mark.parametrize("comm", sorted(RUNTIMES))
def test_a_pod_stopped_without_pressure_is_no_incident(comm: str) -> None:
    assert episodes(*START, stop(3, comm=comm), stop(3, pid=11, comm=comm), left(5), END) == []


def test_systemd_is_believed_as_process_1_only() -> None:
    assert episodes(*START, stop(3, comm="systemd", sender_pid=1), END) == []
    assert judged(*START, stop(3, comm="systemd", sender_pid=77), END).flags == ("user_kill",)


def test_also_for_a_soft_threshold_and_of_a_pod_that_is_not_the_first() -> None:
    soft = {"hard": False, "quantity": 200 << 20}
    found = judged(*START, crossing(0, 200, **soft), stop(400, "cart"), left(430, "cart"), clear(440, hard=False), END)
    assert (found.verdict, found.by, found.evicted[0].rank) == ("eviction_won", "kubelet", 2)


def test_the_oom_killer_may_come_while_it_dies_or_after_it() -> None:
    oom = (kill(500, "cart", pid=9), mark(500.01, "cart", pid=9), died(501, 9))
    during = judged(*START, crossing(), stop(400), *oom, left(530), clear(540), END)
    assert (during.verdict, during.by) == ("oom_during_grace", "kubelet")
    after = judged(*START, crossing(), stop(400), left(430), *oom, clear(540), END)
    assert (after.verdict, after.by) == ("oom_after_eviction", "kubelet")


@pytest.mark.parametrize(
    "events",
    [
        (stop(-3), crossing(), left(5), clear(12)),  # before the crossing
        (crossing(), clear(12), stop(20), left(25)),  # after it was clear
        (crossing(), stop(3), clear(12)),  # the pod goes on: a probe that took too long
        (crossing(), stop(3, "agent"), left(5, "agent"), clear(12)),  # critical: never evicted
        (crossing(), stop(3, "unknown"), left(5, "unknown"), clear(12)),  # not in the ranking
    ],
    ids=["before", "clear", "stays", "critical", "unranked"],
)
def test_else_it_is_an_ordinary_stop(events: tuple[Any, ...]) -> None:
    found = judged(*START, *events, END)
    assert (found.verdict, found.evicted, found.by, found.flags) == ("relieved", (), None, ())


def test_the_pods_end_is_waited_for() -> None:
    """The threshold clears as soon as the first container is gone; the cgroup is empty only seconds later."""
    found = one(*START, crossing(), stop(400), clear(401), left(9_000), END)
    assert found.end_ns == ms(9_000)
    assert verdict(found).by == "kubelet"


@pytest.mark.parametrize("comm", [*sorted(RUNTIMES), "systemd"])
def test_a_process_of_a_pod_is_no_runtime_whatever_it_calls_itself(comm: str) -> None:
    """By its name alone a pod that killed another's processes was the kubelet, and no alert was sent."""
    found = judged(*START, stop(3, comm=comm, sender_pid=1, sender_in_pod=True), END)
    assert (found.verdict, found.flags) == ("relieved", ("user_kill",))


# what the API server reports of it


def test_a_pod_that_obeys_sigterm_was_evicted_all_the_same() -> None:
    """Measured beside a kubelet 1.36: the threshold is clear before its sandbox gets SIGKILL."""
    found = judged(*START, crossing(), clear(6000), stop(6400), left(6450), reported(7300), END)
    assert (found.verdict, found.by, [e.pod for e in found.evicted]) == ("eviction_won", "kubelet", ["shop/hog"])
    assert found.summary.startswith("Eviction won: the kubelet evicted shop/hog within 6.0 s of the crossing")
    assert found.flags == ()
    assert {"reported_evicted", "sigkill", "gone"} <= {step["what"] for step in found.steps}


def test_one_that_others_outgrow_at_once_was_needed_too() -> None:
    """It is reported when the threshold is crossed again."""
    again = (crossing(7000), stop(9000, "cart"), left(9050, "cart"), reported(9100, "cart"), clear(9060))
    found = judged(*START, crossing(), clear(6000), stop(6400), left(6450), *again[:1], reported(7300), *again[1:], END)
    assert (found.verdict, found.flags) == ("eviction_won", ())
    assert [e.pod for e in found.evicted] == ["shop/hog", "shop/cart"]


def test_what_the_api_reports_needs_no_runtime_and_no_rank() -> None:
    found = judged(*START, crossing(), clear(6000), reported(7300, "unknown"), END)
    assert (found.verdict, found.by, found.evicted[0].pod, found.evicted[0].rank) == (
        "eviction_won",
        "kubelet",
        "shop/unknown",
        0,
    )


def test_the_wrong_pod_on_old_figures() -> None:
    found = judged(*START, crossing(), stop(400, "db"), left(430, "db"), reported(900, "db"), clear(440), END)
    assert "the kubelet took shop/db, number 3 in the order of eviction" in found.summary


def test_oom_killed_and_called_evicted_the_incident_has_both() -> None:
    found = judged(*START, crossing(), mark(300), died(310), stop(400), clear(440), reported(900), END)
    assert (found.verdict, found.oom_victims[0].pod) == ("oom_before_decision", "shop/hog")
    assert "the API has shop/hog as Evicted by the kubelet, but the OOM killer took it" in found.summary


def test_what_outrace_evicted_is_no_eviction_by_the_kubelet() -> None:
    found = judged(*START, crossing(), decided(1), signalled(1), gone(9), clear(12), reported(900), END)
    assert (found.verdict, found.by, len(found.evicted)) == ("eviction_won", "outrace", 1)
