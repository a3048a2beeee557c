"""From messages about held pods, and what a cluster reports meanwhile, to events."""

from dataclasses import astuple
from pathlib import Path

from monitor.link.hold_messages import HoldEnded
from monitor.race.events import Hold, HoldEnd, KubeletEvicted, Ranked
from monitor.side.kubelet_holds import FOR_MEMORY
from tests.daemon import harness
from tests.daemon.test_event_builder import MIB, Heard
from tests.race.builders import pod
from tests.side.test_holds import HELD

ENDED = HoldEnded(id=1, pod="u", name="ns/hog", ts_ns=9, held_ns=4, why="other_pod", grew=0, usage=MIB, available=MIB)


def test_who_a_kubelet_would_take_is_known_while_a_pod_is_held(tmp_path: Path) -> None:
    """Nobody decides, so that no decision has the order."""
    heard = Heard(tmp_path)
    order = (pod("hog", 60 * MIB), pod("db", 80 * MIB, priority=5))
    heard.event_builder.handle(HELD._replace(ts_ns=5, order=[list(astuple(one)) for one in order]))
    (ranked,) = heard.of(Ranked)
    assert (ranked.ts_ns, ranked.order) == (5, order)
    assert [one.pod_name for one in heard.of(Hold)] == ["ns/hog"]


def test_a_pod_that_outrace_evicted_is_no_answer_of_the_kubelets(tmp_path: Path) -> None:
    """The API server reports it as Evicted, with the kubelet's message: outrace wrote that."""
    heard = Heard(tmp_path)
    heard.event_builder.handle(harness.DECISION._replace(pod="mine", observed=False))
    heard.event_builder.on_kubelet_eviction("mine", "ns/mine", FOR_MEMORY)
    assert (heard.passed_on, heard.of(KubeletEvicted)) == ([], [])
    heard.event_builder.on_kubelet_eviction("other", "ns/other", FOR_MEMORY)
    assert heard.passed_on == [("other", FOR_MEMORY)]
    assert [one.pod_name for one in heard.of(KubeletEvicted)] == ["ns/other"]


def test_the_pod_that_the_kubelet_took_instead_is_named(tmp_path: Path) -> None:
    """It is no pod of the node any more when the hold for it ends."""
    heard = Heard(tmp_path)
    heard.event_builder.on_kubelet_eviction("v", "ns/other", FOR_MEMORY)
    heard.event_builder.handle(ENDED._replace(other="v"))
    heard.event_builder.handle(ENDED._replace(other="w"))
    assert [one.instead for one in heard.of(HoldEnd)] == ["ns/other", "w"]
