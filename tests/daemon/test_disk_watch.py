"""The disk watch over real file systems: thresholds, orders, and what measuring takes."""

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from monitor.errors import MonitorError
from monitor.kernel.disks import file_system
from monitor.pods import storage
from monitor.pods.model import FoundPod
from monitor.pods.storage import Measured, Roots
from monitor.policy.signals import KUBELET_SIGNALS, MEMORY_SIGNALS
from monitor.side import disk_watch
from monitor.side.disk_watch import MOST
from tests import live
from tests.daemon.disk_bench import MI, SIZE, Bench
from tests.daemon.disk_bench import bench as bench
from tests.policy.builders import container, pod


# --- thresholds ----------------------------------------------------------------------------------------------------
def test_far_from_every_threshold_nothing_is_reported(bench: Bench) -> None:
    bench.add(pod("a"), MI)
    watch = bench.open({"nodefs.available": "10%", "memory.available": "100Mi"})
    bench.look()
    bench.look()
    assert bench.delivered.empty()
    assert watch.pod_stats("uid-a") is None  # nor measured
    expected = [signal for signal in KUBELET_SIGNALS if signal not in MEMORY_SIGNALS]
    assert list(watch.observations) == expected
    assert watch.observations["nodefs.available"][:2] == (SIZE - MI, SIZE)
    assert watch.observations["containerfs.inodesFree"][:2] == (file_system(bench.node).inodes_free, 1000)
    assert watch.stalled_s() == 0


def test_a_full_disk_from_its_crossing_to_its_clearing(bench: Bench) -> None:
    for name, size in (("a", MI), ("b", 3 * MI), ("c", 0)):
        bench.add(pod(name), size)
    bench.add(pod("static", annotations={"kubernetes.io/config.source": "file"}), MI)
    watch = bench.open({"nodefs.available": "50%", "imagefs.inodesFree": "1"})
    message = bench.until(lambda m: m.orders)
    # The container file system has the node's thresholds, and its numbers.
    both = ["nodefs.available", "containerfs.available"]
    assert list(message.observations) == [both[0], "imagefs.inodesFree", both[1]]
    assert message.observations[both[0]][:2] == [3 * MI, SIZE]
    assert message.orders == {signal: ["uid-b", "uid-a", "uid-c"] for signal in both}
    assert (message.violations, message.cleaned) == ({}, False)
    stats = watch.pod_stats("uid-b")
    assert stats.ephemeral_storage() == 3 * MI
    assert watch.pod_stats("uid-static") is None

    following = bench.next()  # of the next second
    assert following.observations[both[0]][2] > message.observations[both[0]][2]
    assert following.orders == message.orders
    bench.remove("uid-b")
    following = bench.until(lambda m: m.orders != message.orders)
    assert following.orders == {signal: ["uid-a", "uid-c"] for signal in both}

    (bench.roots.logs / "ns_b_uid-b" / "c" / "0.log").unlink()
    last = bench.until(lambda m: not m.orders)
    assert last.observations[both[0]][:2] == [6 * MI, SIZE]
    bench.drop()
    bench.look()
    bench.look()
    assert bench.delivered.empty()


SOFT = {
    "eviction_soft": {"nodefs.inodesFree": "100%", "nodefs.available": "6Mi"},
    "eviction_soft_grace_period": {"nodefs.inodesFree": "1h", "nodefs.available": "1h"},
}


@pytest.mark.parametrize(
    ("hard", "settings"),
    [({"nodefs.available": "2Mi"}, {"eviction_minimum_reclaim": {"nodefs.available": "3Mi"}}), ({}, SOFT)],
    ids=["to be reclaimed", "soft, in its grace"],
)
def test_what_else_is_met(bench: Bench, hard: dict[str, str], settings: dict[str, Any]) -> None:
    bench.add(pod("a"), 4 * MI)
    bench.open(hard, **settings)
    assert bench.until(lambda m: m.orders).orders["nodefs.available"] == ["uid-a"]


def test_inodes_are_ranked_by_inodes(bench: Bench) -> None:
    bench.add(pod("big"), MI)
    many = pod("many")
    bench.add(many, 4096)
    for i in range(50):
        (bench.roots.logs / "ns_many_uid-many" / "c" / f"{i}").touch()
    bench.open({"nodefs.inodesFree": "990", "nodefs.available": "7Mi"})
    orders = bench.until(lambda m: m.orders).orders
    assert orders["nodefs.inodesFree"] == ["uid-many", "uid-big"]
    assert orders["nodefs.available"] == ["uid-big", "uid-many"]


def layered(bench: Bench, name: str, layer: int, logs: int) -> None:
    path = bench.disks.imagefs / f"layer-{name}" / "file"
    path.parent.mkdir()
    path.write_bytes(bytes(layer))
    bench.add(one := pod(name), logs)
    bench.pods[one.uid] = replace(bench.pods[one.uid], containers={"c": path.parent})


@pytest.mark.parametrize("bench", [True], indirect=True)
def test_two_disks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "upper_directory", lambda cgroup: cgroup)
    assert bench.disks.layout_image_fs
    layered(bench, "a", 3 * MI, MI // 2)
    layered(bench, "b", MI, MI)
    bench.open({"nodefs.available": "100Mi", "imagefs.available": "100Mi"})
    orders = bench.until(lambda m: m.orders).orders
    assert orders["nodefs.available"] == ["uid-b", "uid-a"]
    assert orders["imagefs.available"] == orders["containerfs.available"] == ["uid-a", "uid-b"]


def test_another_era_ranks_in_its_own_way(bench: Bench) -> None:
    bench.add(pod("a", container(memory="1Mi", cpu="1", limits={"memory": "1Mi", "cpu": "1"})), 3 * MI)
    bench.add(pod("b"), MI)
    bench.open({"nodefs.available": "6Mi"}, policy="kubelet-1.8")
    # A guaranteed pod comes last there, whatever it uses.
    assert bench.until(lambda m: m.orders).orders["nodefs.available"] == ["uid-b", "uid-a"]


def test_an_order_is_no_longer_than_a_pass_can_need(bench: Bench) -> None:
    for i in range(60):
        bench.add(pod(f"pod-{i:02}"), 4096 * (i + 1))
    bench.open({"nodefs.available": "8Mi", "imagefs.available": "8Mi"})
    orders = bench.until(lambda m: m.orders).orders
    assert len(orders) == 3
    for order in orders.values():
        assert len(order) == MOST
        assert order[0].endswith("-59")
        assert order[-1].endswith("-10")


# --- measuring takes its time --------------------------------------------------------------------------------------
class Gate:
    """Lets measurements of named pods through when the test says so; they are real, only later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.closed = set(names)
        self.open = threading.Event()
        self.waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        real = disk_watch.measure

        def measure(found: FoundPod, roots: Roots | None, stop: Callable[[], bool]) -> Measured:
            if found.pod.name in self.closed:
                self.waiting.put(found.pod.name)
                assert self.open.wait(live.TIMEOUT_S)
            return real(found, roots, stop)

        monkeypatch.setattr(disk_watch, "measure", measure)


def test_there_is_no_order_before_every_pod_was_measured(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "b", "late")
    bench.add(pod("a"), MI)
    bench.add(pod("b"), 2 * MI)
    watch = bench.open({"nodefs.available": "6Mi"})
    assert gate.waiting.get(timeout=live.TIMEOUT_S) == "b"
    gate.closed.remove("b")  # which is due again after 10 s
    bench.drop()
    message = bench.next()
    assert (message.orders, message.observations["nodefs.available"][:2]) == ({}, [5 * MI, SIZE])
    gate.open.set()
    message = bench.until(lambda m: m.orders)
    assert message.orders["nodefs.available"] == ["uid-b", "uid-a"]

    # One that appears meanwhile does not take the order away, nor come first for not having been measured.
    gate.open.clear()
    bench.add(pod("late"), MI // 2)
    watch.pods_changed()
    assert gate.waiting.get(timeout=live.TIMEOUT_S) == "late"
    bench.drop()
    assert bench.next().orders["nodefs.available"] == ["uid-b", "uid-a"]
    gate.open.set()
    message = bench.until(lambda m: len(m.orders["nodefs.available"]) == 3)
    assert message.orders["nodefs.available"] == ["uid-b", "uid-a", "uid-late"]


def test_closing_ends_a_walk_and_forgets_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "a")
    bench.add(pod("a"), 2 * MI)
    for i in range(600):
        (bench.roots.logs / "ns_a_uid-a" / "c" / f"{i}").touch()
    watch = bench.open({"nodefs.available": "7Mi"})
    assert gate.waiting.get(timeout=live.TIMEOUT_S) == "a"
    watch.close(timeout_s=0.01)
    gate.open.set()
    watch.close()
    assert watch.pod_stats("uid-a") is None
    assert bench.log.lines == []
    live.until(lambda: not {thread.name for thread in threading.enumerate()} & {"disks", "storage"}, "their end")


def test_a_pod_is_measured_again_when_it_is_due_and_not_before(bench: Bench) -> None:
    bench.add(pod("a"), 2 * MI)
    watch = bench.open({"nodefs.available": "7Mi"}, start=False)
    assert (watch._turn(), watch._measure_next()) == (disk_watch.PERIOD_S, 0)
    first = replace(watch._measured["uid-a"], took_s=0.01)  # however long it had no CPU
    watch._measured = {"uid-a": first}
    wait = watch._measure_next()
    assert 0 < wait <= 10
    watch._measured = {"uid-a": replace(first, at_s=first.at_s - 11)}
    bench.write(bench.pods["uid-a"].pod, 3 * MI)
    rest = watch._measure_next()
    assert watch._measured["uid-a"].stats.ephemeral_storage() == 3 * MI
    assert rest == watch._measured["uid-a"].took_s  # as long as it worked: never more than half of a CPU
    # A pod that is gone is forgotten.
    bench.remove("uid-a")
    assert watch._measure_next() is None
    assert watch.pod_stats("uid-a") is None


def test_problems_of_a_pod_are_reported_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_: FoundPod) -> int:
        raise MonitorError("no permission")

    monkeypatch.setattr("monitor.pods.storage.process_count", unreadable)
    bench.add(pod("a"), 2 * MI)
    watch = bench.open({"nodefs.available": "7Mi"}, start=False)
    watch._turn()
    for _ in range(2):
        watch._measure_next()
        found = watch._measured["uid-a"]
        watch._measured = {"uid-a": replace(found, at_s=found.at_s - 100)}
    assert [level for level, *_ in bench.log.lines] == ["warning"]
    assert "pod ns/a: no permission" in bench.log.lines[0][1]
