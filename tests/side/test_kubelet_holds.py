"""What the hot process is sent about the kubelet while pods are held: its own figures, and who is evicted."""

import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.errors import MonitorError
from monitor.link.hold_messages import KubeletEviction, KubeletFigures
from monitor.side.kubelet_holds import FOR_MEMORY, KubeletHolds, figures
from tests.waiting import until

SUMMARY = {
    "pods": [
        {"podRef": {"uid": "held"}, "memory": {"time": "2027-01-15T08:00:00Z", "workingSetBytes": 7}},
        {"podRef": {"uid": "other"}, "memory": {"time": "2027-01-15T08:00:00.25Z", "workingSetBytes": 9}},
        {"podRef": {"uid": "new"}},  # of which the kubelet has no figures yet
    ]
}
WITHOUT_A_TIME = {"podRef": {"uid": "held"}, "memory": {"time": "soon", "workingSetBytes": 1}}
AT = 1_800_000_000.0  # 2027-01-15T08:00:00Z


#: The hold of each pod.
NOW = {"held": SimpleNamespace(id=1), "new": SimpleNamespace(id=2)}


def made(held: bool, answer: Any = SUMMARY) -> tuple[KubeletHolds, list[Any], list[str]]:
    sent: list[Any] = []
    lines: list[str] = []
    log = SimpleNamespace(warning=lambda text, **_: lines.append(text))
    view: Any = SimpleNamespace(
        holds=SimpleNamespace(now=dict(NOW) if held else {}), ending_early=deque[str](), send=sent.append, log=log
    )
    found = KubeletHolds(view, None)

    def summary() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    found._summary = summary
    return found, sent, lines


def test_figures_of_held_pods_alone_by_our_clock() -> None:
    assert figures(SUMMARY, frozenset({"held", "new"}), AT + 12.5, 100 * 10**9) == {"held": (7, 87_500_000_000)}
    assert figures(SUMMARY, frozenset({"other"}), AT + 1, 10**9) == {"other": (9, 250_000_000)}


def test_they_are_passed_on() -> None:
    found, sent, lines = made(held=True)
    assert found.look()
    (message,) = sent
    assert isinstance(message, KubeletFigures)
    size, ns = message.pods["held"]
    assert (size, lines) == (7, [])
    assert ns == pytest.approx(time.monotonic_ns() - (time.time() - AT) * 1e9, abs=10**10)


@pytest.mark.parametrize(
    "answer",
    [MonitorError("it is away"), {}, {"pods": [{}]}, {"pods": [WITHOUT_A_TIME]}],
)
def test_what_cannot_be_read_is_said_once_and_nothing_is_sent(answer: Any) -> None:
    found, sent, lines = made(held=True, answer=answer)
    assert not found.look()
    assert not found.look()
    assert (sent, len(lines)) == ([], 1)


def test_evictions_are_passed_on_also_before_the_pod_is_held() -> None:
    found, sent, _ = made(held=True)
    found.evicted("held", f"{FOR_MEMORY} Threshold quantity: 100Mi")
    found.evicted("other", "")
    assert sent == [KubeletEviction("held", True), KubeletEviction("other", False)]
    found, sent, _ = made(held=False)
    found.evicted("later", "")
    assert sent == [KubeletEviction("later", False)], "one that flushes as it is asked to end grows"


def test_a_pod_that_is_held_after_it_was_asked_to_end_is_passed_on_once_in_each_hold() -> None:
    """A hot process that was started again learns of its pods later than the side of who is asked to end."""
    found, sent, _ = made(held=False)
    found.evicted("later", FOR_MEMORY)
    sent.clear()
    for number in (1, 1, 2, 2):
        found.held("other", number)
        found.held("later", number)
    assert sent == [KubeletEviction("later", False)] * 2
    found, sent, _ = made(held=True)
    found.evicted("held", "")
    found.held("held", 1)  # its brake changed
    assert sent == [KubeletEviction("held", False)]
    found, sent, _ = made(held=False)
    found._view.ending_early.append("early")  # before this was made
    found.held("early", 1)
    assert sent == [KubeletEviction("early", False)] * 2, "the first may have come before its pod was known"


def test_it_asks_while_pods_are_held_and_ends() -> None:
    found, sent, _ = made(held=True)
    again = KubeletHolds(found._view, found._summary)
    again.held("held", 1)
    until(lambda: bool(sent), "a question")
    again.close()
