"""The watch of disks and process ids, on small real disks that are filled and cleared, with real processes."""

from __future__ import annotations

import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.daemon import channel, diskwatch
from monitor.daemon.config import RunConfig
from monitor.daemon.diskwatch import MOST, DiskWatch
from monitor.kernel import cgroupfs
from monitor.kernel.disks import Disks, file_system, find_disks
from monitor.pods.model import FoundPod
from monitor.pods.storage import Measured, Roots
from monitor.policy.layout import DELETE_CONTAINERS, DELETE_IMAGES
from monitor.policy.pods import Pod
from monitor.policy.signals import MEMORY_SIGNALS, PID, SIGNALS, Observation
from monitor.report.log import Log
from tests import live
from tests.filesystems import Mounts
from tests.policy.builders import container, pod

MI = 1 << 20
SIZE = 8 * MI
Message = dict[str, Any]


class Lines(Log):
    """A log to look into."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def __call__(self, level: str, message: str, /, **fields: Any) -> None:
        self.lines.append((level, message))


class Bench:
    """A watch on disks of 8 MiB, with pods that write logs on the node's."""

    def __init__(self, mounts: Mounts, image: bool = False, containers_apart: bool = False) -> None:
        self.node = mounts.tmpfs("node", size=SIZE)
        images = mounts.tmpfs("image", size=SIZE) if image else None
        self.disks: Disks = find_disks(self.node, images or self.node, self.node if containers_apart else None)
        self.roots = Roots(self.node / "log", self.node / "pods")
        self.pods: dict[str, FoundPod] = {}
        self.log = Lines()
        self.delivered: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.watch: DiskWatch | None = None

    def open(self, hard: Mapping[str, str], start: bool = True, **settings: Any) -> DiskWatch:
        config = RunConfig(
            eviction_hard=dict(hard),
            layout_image_fs=self.disks.layout_image_fs,
            layout_container_fs=self.disks.layout_container_fs,
            **settings,
        )
        self.watch = DiskWatch(
            config, self.disks, lambda: self.pods, lambda: self.delivered.put(None), self.log, self.roots
        )
        if start:
            self.watch.start()
        return self.watch

    def add(self, one: Pod, log_bytes: int = 0, cgroup: Path = Path("/nonexistent")) -> None:
        if log_bytes:
            self.write(one, log_bytes)
        self.pods = {**self.pods, one.uid: FoundPod(one, cgroup, {})}

    def remove(self, uid: str) -> None:
        self.pods = {other: found for other, found in self.pods.items() if other != uid}

    def write(self, one: Pod, size: int) -> None:
        path = self.roots.logs / f"{one.namespace}_{one.name}_{one.uid}" / "c" / "0.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))

    def next(self) -> Message:
        """Wait for the next message."""
        assert self.watch is not None
        while True:
            self.delivered.get(timeout=live.TIMEOUT_S)
            for message in self.watch.take():
                assert message["t"] == "disks"
                channel.encode(message)
                return message

    def until(self, check: Callable[[Message], object]) -> Message:
        """The first message of that kind."""
        for _ in range(60):
            message = self.next()
            if check(message):
                return message
        pytest.fail(f"no such message; the last: {message!r}")

    def look(self) -> None:
        """Have the disks looked at, to the end of the look."""
        assert self.watch is not None
        before = time.monotonic_ns()
        self.watch.pods_changed()
        watch = self.watch

        def twice() -> bool:
            # A look that began after this one's call is over once another one has stamped its observations.
            stamps = [seen.stamp_ns for seen in watch.observations.values()]
            if stamps and min(stamps) > before:
                return True
            watch.pods_changed()
            return False

        live.until(twice, "a look at the disks")


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    with Mounts(tmp_path) as found:
        yield found


@pytest.fixture
def bench(mounts: Mounts) -> Iterator[Bench]:
    found = Bench(mounts)
    yield found
    if found.watch is not None:
        found.watch.close()


def signals(message: Message) -> list[str]:
    return list(message["observations"])


# --- thresholds ----------------------------------------------------------------------------------------------------


def test_far_from_every_threshold_nothing_is_said(bench: Bench) -> None:
    bench.add(pod("a"), MI)
    watch = bench.open({"nodefs.available": "10%", "memory.available": "100Mi"})
    bench.look()
    bench.look()
    assert watch.take() == []
    assert bench.delivered.empty()
    assert watch.pod_stats("uid-a") is None  # nor measured
    expected = [signal for signal in SIGNALS if signal not in MEMORY_SIGNALS]
    assert list(watch.observations) == expected
    assert watch.observations["nodefs.available"][:2] == (SIZE - MI, SIZE)
    assert watch.observations["containerfs.inodesFree"][:2] == (file_system(bench.node).inodes_free, 1000)
    assert watch.stalled_s() == 0


def test_a_full_disk_from_its_crossing_to_its_clearing(bench: Bench) -> None:
    for name, size in (("a", MI), ("b", 3 * MI), ("c", 0)):
        bench.add(pod(name), size)
    bench.add(pod("static", annotations={"kubernetes.io/config.source": "file"}), MI)
    watch = bench.open({"nodefs.available": "50%", "imagefs.inodesFree": "1"})
    message = bench.until(lambda m: m["orders"])
    # The container file system has the node's thresholds, and its numbers.
    both = ["nodefs.available", "containerfs.available"]
    assert signals(message) == [both[0], "imagefs.inodesFree", both[1]]
    assert message["observations"][both[0]][:2] == [3 * MI, SIZE]
    assert message["orders"] == {signal: ["uid-b", "uid-a", "uid-c"] for signal in both}
    assert message["violations"] == message["reclaimed"] == []
    stats = watch.pod_stats("uid-b")
    assert stats is not None
    assert stats.ephemeral_storage() == 3 * MI
    assert watch.pod_stats("uid-static") is None

    following = bench.next()  # of the next second
    assert following["observations"][both[0]][2] > message["observations"][both[0]][2]
    assert following["orders"] == message["orders"]
    bench.remove("uid-b")
    following = bench.until(lambda m: m["orders"] != message["orders"])
    assert following["orders"] == {signal: ["uid-a", "uid-c"] for signal in both}

    (bench.roots.logs / "ns_b_uid-b" / "c" / "0.log").unlink()
    last = bench.until(lambda m: not m["orders"])
    assert last["observations"][both[0]][:2] == [6 * MI, SIZE]
    watch.take()
    bench.look()
    bench.look()
    assert watch.take() == []


def test_what_is_to_be_reclaimed_keeps_a_threshold_met(bench: Bench) -> None:
    bench.add(pod("a"), 4 * MI)
    bench.open({"nodefs.available": "2Mi"}, eviction_minimum_reclaim={"nodefs.available": "3Mi"})
    assert bench.until(lambda m: m["orders"])["orders"]["nodefs.available"] == ["uid-a"]


def test_a_soft_threshold_is_told_from_its_first_second(bench: Bench) -> None:
    bench.add(pod("a"), 4 * MI)
    bench.open(
        {},
        eviction_soft={"nodefs.inodesFree": "100%", "nodefs.available": "6Mi"},
        eviction_soft_grace_period={"nodefs.inodesFree": "1h", "nodefs.available": "1h"},
    )
    assert "nodefs.available" in bench.until(lambda m: m["orders"])["orders"]


def test_inodes_are_ranked_by_inodes(bench: Bench) -> None:
    bench.add(pod("big"), MI)
    many = pod("many")
    bench.add(many, 4096)
    for i in range(50):
        (bench.roots.logs / "ns_many_uid-many" / "c" / f"{i}").touch()
    bench.open({"nodefs.inodesFree": "990", "nodefs.available": "7Mi"})
    orders = bench.until(lambda m: m["orders"])["orders"]
    assert orders["nodefs.inodesFree"] == ["uid-many", "uid-big"]
    assert orders["nodefs.available"] == ["uid-big", "uid-many"]


def layered(bench: Bench, name: str, layer: int, logs: int) -> None:
    path = bench.disks.containerfs / f"layer-{name}" / "file"
    path.parent.mkdir()
    path.write_bytes(bytes(layer))
    bench.add(pod(name, annotations={"outrace/rootfs.c": str(path.parent)}), logs)


@pytest.mark.parametrize(
    ("containers_apart", "node_order", "image_order"),
    [(False, ["uid-b", "uid-a"], ["uid-a", "uid-b"]), (True, ["uid-a", "uid-b"], ["uid-a", "uid-b"])],
)
def test_two_disks(mounts: Mounts, containers_apart: bool, node_order: list[str], image_order: list[str]) -> None:
    bench = Bench(mounts, image=True, containers_apart=containers_apart)
    assert (bench.disks.layout_image_fs, bench.disks.layout_container_fs) == (True, containers_apart)
    layered(bench, "a", 3 * MI, MI // 2)
    layered(bench, "b", MI, MI)
    try:
        bench.open({"nodefs.available": "100Mi", "imagefs.available": "100Mi"})
        orders = bench.until(lambda m: m["orders"])["orders"]
    finally:
        assert bench.watch is not None
        bench.watch.close()
    assert orders["nodefs.available"] == node_order
    # Apart, images belong to nobody: the order is that of equals.
    assert orders["imagefs.available"] == image_order
    assert orders["containerfs.available"] == ["uid-a", "uid-b"]


def test_another_era_ranks_in_its_own_way(bench: Bench) -> None:
    bench.add(pod("a", container(memory="1Mi", cpu="1", limits={"memory": "1Mi", "cpu": "1"})), 3 * MI)
    bench.add(pod("b"), MI)
    bench.open({"nodefs.available": "6Mi"}, policy="kubelet-1.8")
    # A guaranteed pod comes last there, whatever it uses.
    assert bench.until(lambda m: m["orders"])["orders"]["nodefs.available"] == ["uid-b", "uid-a"]


def test_an_order_is_no_longer_than_a_pass_can_need(bench: Bench) -> None:
    for i in range(60):
        bench.add(pod(f"pod-{i:02}"), 4096 * (i + 1))
    bench.open({"nodefs.available": "8Mi", "imagefs.available": "8Mi"})
    orders = bench.until(lambda m: m["orders"])["orders"]
    assert len(orders) == 3
    for order in orders.values():
        assert len(order) == MOST
        assert order[0].endswith("-59")
        assert order[-1].endswith("-10")


# --- measuring takes its time --------------------------------------------------------------------------------------


class Gate:
    """Lets measurements of named pods through when it is told to; they are real, only later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.closed = set(names)
        self.open = threading.Event()
        self.waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        real = diskwatch.measure

        def measure(found: FoundPod, roots: Roots | None, stop: Callable[[], bool]) -> Measured:
            if found.pod.name in self.closed:
                self.waiting.put(found.pod.name)
                assert self.open.wait(live.TIMEOUT_S)
            return real(found, roots, stop)

        monkeypatch.setattr(diskwatch, "measure", measure)


def test_there_is_no_order_before_every_pod_was_measured(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "b", "late")
    bench.add(pod("a"), MI)
    bench.add(pod("b"), 2 * MI)
    watch = bench.open({"nodefs.available": "6Mi"})
    assert gate.waiting.get(timeout=live.TIMEOUT_S) == "b"
    watch.take()
    message = bench.next()
    assert message["orders"] == {}
    assert message["observations"]["nodefs.available"][:2] == [5 * MI, SIZE]
    gate.open.set()
    message = bench.until(lambda m: m["orders"])
    assert message["orders"]["nodefs.available"] == ["uid-b", "uid-a"]

    # One that appears meanwhile does not take the order away, nor come first for not having been measured.
    gate.open.clear()
    bench.add(pod("late"), MI // 2)
    watch.pods_changed()
    assert gate.waiting.get(timeout=live.TIMEOUT_S) == "late"
    watch.take()
    assert bench.next()["orders"]["nodefs.available"] == ["uid-b", "uid-a"]
    gate.open.set()
    message = bench.until(lambda m: len(m["orders"]["nodefs.available"]) == 3)
    assert message["orders"]["nodefs.available"] == ["uid-b", "uid-a", "uid-late"]


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
    assert not {thread.name for thread in threading.enumerate()} & {"disks", "storage"}


def test_a_pod_is_measured_again_when_it_is_due_and_not_before(bench: Bench) -> None:
    bench.add(pod("a"), 2 * MI)
    watch = bench.open({"nodefs.available": "7Mi"}, start=False)
    assert watch._turn() == diskwatch.PERIOD_S
    assert watch._measure_next() == 0
    wait = watch._measure_next()
    assert wait is not None
    assert 0 < wait <= 10
    first = watch._measured["uid-a"]
    watch._measured = {"uid-a": replace(first, at_s=first.at_s - 11)}
    bench.write(bench.pods["uid-a"].pod, 3 * MI)
    rest = watch._measure_next()
    assert watch._measured["uid-a"].stats.ephemeral_storage() == 3 * MI
    assert rest == watch._measured["uid-a"].took_s  # as long as it worked: never more than half of a CPU
    # A pod that is gone is forgotten.
    bench.remove("uid-a")
    assert watch._measure_next() is None
    assert watch.pod_stats("uid-a") is None


def test_problems_of_a_pod_are_told_once(bench: Bench) -> None:
    bench.add(pod("a", annotations={"outrace/rootfs.c": "relative"}), 2 * MI)
    watch = bench.open({"nodefs.available": "7Mi"}, start=False)
    watch._turn()
    for _ in range(2):
        watch._measure_next()
        found = watch._measured["uid-a"]
        watch._measured = {"uid-a": replace(found, at_s=found.at_s - 100)}
    assert [level for level, _ in bench.log.lines] == ["warning"]
    assert "'relative' is not an absolute path" in bench.log.lines[0][1]


# --- process ids ---------------------------------------------------------------------------------------------------


def test_process_ids_are_ranked_by_processes_without_walking_any_disk(bench: Bench) -> None:
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    with live.cgroup("pids") as parent:
        one, two = (cgroupfs.make(parent / name) for name in ("one", "two"))
        with live.Puppet(one), live.Puppet(two), live.Puppet(two):
            bench.add(pod("one"), MI, one)
            bench.add(pod("two"), 0, two)
            bench.add(pod("low", priority=-1), 0, parent / "none")
            watch = bench.open({"pid.available": str(most), "nodefs.available": "1Mi"})
            message = bench.next()
    assert message["orders"] == {PID: ["uid-low", "uid-two", "uid-one"]}
    available, capacity, _ = message["observations"][PID]
    assert 0 < available < capacity <= most
    assert all(watch.pod_stats(uid) is None for uid in bench.pods)


# --- limits of local storage ---------------------------------------------------------------------------------------

LIMIT = {"ephemeral-storage": "1Mi"}
OVER = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "


def test_a_pod_over_its_limit_is_told_although_there_is_no_threshold(bench: Bench) -> None:
    watch = bench.open({"memory.available": "100Mi"})
    for name, size in (("over", 2 * MI), ("under", MI // 2)):
        bench.add(pod(name, container(limits=LIMIT)), size)
    bench.add(pod("critical", container(limits=LIMIT), priority=2_000_000_000), 2 * MI)
    bench.add(pod("unlimited"), MI)
    watch.pods_changed()
    assert bench.next() == {
        "t": "disks",
        "observations": {},
        "orders": {},
        "violations": [{"uid": "uid-over", "message": OVER}],
        "reclaimed": [],
    }
    live.until(lambda: watch.pod_stats("uid-under"), "the other pod")
    assert watch.pod_stats("uid-critical") is None
    assert watch.pod_stats("uid-unlimited") is None
    assert watch.observations == {}


def test_limits_do_not_count_where_isolation_is_switched_off(bench: Bench) -> None:
    bench.add(pod("over", container(limits=LIMIT)), 2 * MI)
    watch = bench.open({"nodefs.available": "7Mi"}, local_storage=False)
    message = bench.until(lambda m: m["orders"])
    assert message["violations"] == []
    assert watch.pod_stats("uid-over") is not None


def test_violations_not_taken_yet_are_not_lost_and_pods_gone_are(bench: Bench) -> None:
    watch = bench.open({}, start=False)
    for name in ("a", "b", "c"):
        bench.add(pod(name, container(limits=LIMIT)), 3 * MI // 2)
    for _ in range(2):
        watch._measure_next()
        watch._turn()
    watch._measure_next()
    bench.remove("uid-c")
    watch._turn()
    [message] = watch.take()
    assert [item["uid"] for item in message["violations"]] == ["uid-a", "uid-b"]
    assert watch.take() == []


# --- nothing to do -------------------------------------------------------------------------------------------------


def test_without_thresholds_and_limits_no_thread_wakes(bench: Bench) -> None:
    bench.add(pod("a"), MI)
    watch = bench.open({"memory.available": "100Mi"}, start=False)
    assert watch._turn() is None  # until it is woken
    assert watch._measure_next() is None
    assert watch.observations == {}
    watch._config = replace(watch._config, local_storage=False)
    watch.start()
    assert not {thread.name for thread in threading.enumerate()} & {"disks", "storage"}
    watch.close()


# --- clean-up ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("enforce", [True, False])
def test_a_clean_up_is_told_with_the_disks_after_it(bench: Bench, enforce: bool) -> None:
    junk = bench.node / "junk"
    junk.write_bytes(bytes(4 * MI))
    watch = bench.open({"nodefs.available": "6Mi"}, enforce=enforce, reclaim_images=("rm", str(junk)))
    before = bench.next()
    assert before["observations"]["nodefs.available"][:2] == [4 * MI, SIZE]
    watch.reclaim([DELETE_CONTAINERS, DELETE_IMAGES])
    message = bench.until(lambda m: m["reclaimed"])
    assert message["reclaimed"] == [DELETE_CONTAINERS, DELETE_IMAGES]
    assert message["observations"]["nodefs.available"][:2] == [SIZE if enforce else 4 * MI, SIZE]
    assert message["observations"]["nodefs.available"][2] > before["observations"]["nodefs.available"][2]
    assert junk.exists() != enforce
    assert [text for _, text in bench.log.lines] == (["clean-up done"] if enforce else [])


# --- trouble -------------------------------------------------------------------------------------------------------


def test_a_disk_that_cannot_be_read_is_told_once_and_again_when_it_can(bench: Bench) -> None:
    images = bench.node / "images"
    images.mkdir()
    bench.disks = find_disks(bench.node, images)
    watch = bench.open({"imagefs.available": "1Mi"})
    bench.look()
    images.rmdir()
    live.until(lambda: "imagefs.available" not in watch.observations, "the loss of the disk")
    bench.look()
    assert watch.observations["nodefs.available"][1] == SIZE
    images.mkdir()
    live.until(lambda: "imagefs.available" in watch.observations, "the return of the disk")
    told = [line for line in bench.log.lines if "imagefs" in line[1] or "images" in line[1] or "again" in line[1]]
    assert [level for level, _ in told] == ["error", "error", "info", "info"]  # imagefs, and containerfs on it
    assert all("cannot measure the file system of" in text for level, text in told if level == "error")


def test_what_a_thread_dies_of_is_raised_by_take(bench: Bench) -> None:
    watch = bench.open({"nodefs.available": "1Mi"}, start=False)
    bench.pods = None  # type: ignore[assignment]
    watch.start()
    bench.delivered.get(timeout=live.TIMEOUT_S)
    with pytest.raises(Exception, match="NoneType"):
        watch.take()


def test_a_call_that_hangs_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diskwatch, "STALLED_S", 0.0)
    # No file system here can be made to hang at will: the call into it waits before it is made.
    gate, entered = threading.Event(), threading.Event()
    real = diskwatch.file_system

    def hang(path: Path) -> Any:
        entered.set()
        assert gate.wait(live.TIMEOUT_S)
        return real(path)

    monkeypatch.setattr(diskwatch, "file_system", hang)
    watch = bench.open({"nodefs.available": "1Mi"})
    assert entered.wait(live.TIMEOUT_S)
    assert 0 < watch.stalled_s() < live.TIMEOUT_S
    assert watch.take() == []
    gate.set()
    live.until(lambda: watch.stalled_s() == 0, "the end of the call")
    assert isinstance(watch.observations["nodefs.available"], Observation)


def test_the_kubelet_s_pods_are_found_below_its_directory(bench: Bench, tmp_path: Path) -> None:
    assert Roots.of(bench.disks) == Roots()
    (bench.node / "pods").mkdir()
    assert Roots.of(bench.disks) == Roots(pods=bench.node / "pods")
    shutil.rmtree(bench.node / "pods")
