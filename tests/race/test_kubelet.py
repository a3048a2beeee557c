"""A kubelet's evictions, known only by what its runtime does to a pod: SIGKILL under pressure, then no process left."""

from typing import Any

import pytest

from monitor.race.events import RUNTIMES, End, Event, Kill
from monitor.race.verdict import verdict
from tests.race.builders import START, clear, crossing, died, episodes, gone, judged, kill, mark, ms, one, reported
from tests.race.scenarios import EVICTED

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


SOFT = {"hard": False, "quantity": 200 << 20}
OOM = (kill(500, "cart", pid=9), mark(500.01, "cart", pid=9), died(501, 9))
OUTGROWN = (crossing(), clear(6000), stop(6400), left(6450), crossing(7000), reported(7300), stop(9000, "cart"))
#: Name -> events, verdict, whose evictions they are, of which pods with which rank, words of the summary.
EVICTIONS: dict[str, tuple[tuple[Event, ...], str, str | None, dict[str, int], str]] = {
    "before the crossing": ((stop(-3), crossing(), left(5), clear(12)), "relieved", None, {}, ""),
    "after it was clear": ((crossing(), clear(12), stop(20), left(25)), "relieved", None, {}, ""),
    "the pod goes on: a probe that took too long": ((crossing(), stop(3), clear(12)), "relieved", None, {}, ""),
    "critical": ((crossing(), stop(3, "agent"), left(5, "agent"), clear(12)), "relieved", None, {}, ""),
    "not in the ranking": ((crossing(), stop(3, "unknown"), left(5, "unknown"), clear(12)), "relieved", None, {}, ""),
    "by a soft threshold, and not the first": (
        (crossing(0, 199, **SOFT), stop(400, "cart"), left(430, "cart"), clear(440, hard=False)),
        "eviction_won", "kubelet", {"shop/cart": 2}, "",
    ),
    "the OOM killer comes while it dies": (
        (crossing(), stop(400), *OOM, left(530), clear(540)), "oom_during_grace", "kubelet", {"shop/hog": 1}, "",
    ),
    "the OOM killer comes after it": (
        (crossing(), stop(400), left(430), *OOM, clear(540)), "oom_after_eviction", "kubelet", {"shop/hog": 1}, "",
    ),
    # Measured beside a kubelet 1.36: the threshold is clear before its sandbox gets SIGKILL.
    "reported, and it obeys SIGTERM": (
        (crossing(), clear(6000), stop(6400), left(6450), reported(7300)), "eviction_won", "kubelet", {"shop/hog": 1},
        "Eviction won: the kubelet evicted shop/hog within 6.0 s of the crossing",
    ),
    "reported when the threshold is crossed again: others outgrow it at once": (
        (*OUTGROWN, left(9050, "cart"), reported(9100, "cart"), clear(9060)),
        "eviction_won", "kubelet", {"shop/hog": 1, "shop/cart": 1}, "",
    ),
    "reported, without a runtime and a rank": (
        (crossing(), clear(6000), reported(7300, "unknown")), "eviction_won", "kubelet", {"shop/unknown": 0}, "",
    ),
    "reported: the wrong pod on old figures": (
        (crossing(), stop(400, "db"), left(430, "db"), reported(900, "db"), clear(440)), "eviction_won", "kubelet",
        {"shop/db": 3}, "the kubelet took shop/db, number 3 in the order of eviction",
    ),
    "reported, and OOM-killed: the incident has both": (
        (crossing(), mark(300), died(310), stop(400), clear(440), reported(900)), "oom_before_decision", None, {},
        "the API has shop/hog as Evicted by the kubelet, but the OOM killer took it",
    ),
    "reported, and outrace evicted it": (
        (crossing(), *EVICTED, clear(12), reported(900)), "eviction_won", "outrace",
        {"shop/hog": 1}, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EVICTIONS)
def test_what_is_an_eviction_by_a_kubelet(name: str) -> None:
    events, expected, by, evicted, said = EVICTIONS[name]
    found = judged(*START, *events, END)
    assert (found.verdict, found.by, {e.pod: e.rank for e in found.evicted}) == (expected, by, evicted)
    assert said in found.summary
    assert expected.startswith("oom_") or found.flags == ()
    assert bool(found.reported_evicted) == name.startswith("reported")
    assert any(step["what"] == "reported_evicted" for step in found.steps) == name.startswith("reported")


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
