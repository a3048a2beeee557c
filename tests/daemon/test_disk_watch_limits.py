"""The disk watch: process ids, limits of local storage, clean-up, and what goes wrong."""

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.actions.reclaim import DONE, FAILED
from monitor.kernel import cgroupfs
from monitor.kernel.disks import find_disks
from monitor.link.messages import DiskFigures
from monitor.pods.storage import Roots
from monitor.policy.layout import DELETE_IMAGES
from monitor.policy.signals import PID, Observation
from monitor.side import disk_watch, worker
from monitor.side.export.metrics import reclaim_metrics
from tests import live
from tests.daemon.disk_bench import MI, SIZE, Bench
from tests.daemon.disk_bench import bench as bench
from tests.policy.builders import container, pod


# --- process ids ---------------------------------------------------------------------------------------------------
@pytest.mark.kernel
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
    assert message.orders == {PID: ["uid-low", "uid-two", "uid-one"]}
    available, capacity, _ = message.observations[PID]
    assert 0 < available < capacity <= most
    assert all(watch.pod_stats(uid) is None for uid in bench.pods)


# --- limits of local storage ---------------------------------------------------------------------------------------
LIMIT = {"ephemeral-storage": "1Mi"}
OVER = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "


def test_a_pod_over_its_limit_is_reported_although_there_is_no_threshold(bench: Bench) -> None:
    watch = bench.open({"memory.available": "100Mi"})
    for name, size in (("over", 2 * MI), ("under", MI // 2)):
        bench.add(pod(name, container(limits=LIMIT)), size)
    bench.add(pod("critical", container(limits=LIMIT), priority=2_000_000_000), 2 * MI)
    bench.add(pod("unlimited"), MI)
    watch.pods_changed()
    assert bench.next() == DiskFigures({}, {}, {"uid-over": OVER}, False)
    live.until(lambda: watch.pod_stats("uid-under"), "the other pod")
    assert watch.pod_stats("uid-critical") is None
    assert watch.pod_stats("uid-unlimited") is None
    assert watch.observations == {}


def test_limits_do_not_count_where_isolation_is_switched_off(bench: Bench) -> None:
    bench.add(pod("over", container(limits=LIMIT)), 2 * MI)
    bench.open({"nodefs.available": "7Mi"}, local_storage=False)
    assert bench.until(lambda m: m.orders).violations == {}


def test_violations_not_taken_yet_are_not_lost_and_pods_gone_are(bench: Bench) -> None:
    watch = bench.open({}, start=False)
    bench.takes = False
    for name in ("a", "b", "c"):
        bench.add(pod(name, container(limits=LIMIT)), 3 * MI // 2)
    for _ in range(2):
        watch._measure_next()
        assert watch._turn() == disk_watch.PERIOD_S  # it tries again
    watch._measure_next()
    bench.remove("uid-c")
    bench.takes = True
    watch._turn()
    assert list(bench.next().violations) == ["uid-a", "uid-b"]
    assert watch._turn() is None
    assert bench.delivered.empty()


# --- nothing to do -------------------------------------------------------------------------------------------------
def test_without_thresholds_and_limits_no_thread_wakes(bench: Bench) -> None:
    bench.add(pod("a"), MI)
    watch = bench.open({"memory.available": "100Mi"}, start=False)
    assert watch._turn() is None  # until it is woken
    assert watch._measure_next() is None
    assert watch.observations == {}
    watch.config = replace(watch.config, local_storage=False)
    before = set(threading.enumerate())
    watch.start()
    assert not {thread.name for thread in set(threading.enumerate()) - before} & {"disks", "storage"}
    watch.close()


# --- clean-up ------------------------------------------------------------------------------------------------------
def cleaned_up(watch: disk_watch.DiskWatch) -> dict[tuple[str, ...], float]:
    """The metrics that are not 0."""
    samples = (one for metric in reclaim_metrics(watch) for one in metric.samples if one.value)
    return {(one.name.removeprefix("outrace_reclaim_"), *one.labels.values()): one.value for one in samples}


def test_a_clean_up_is_reported_with_the_disks_after_it(bench: Bench) -> None:
    junk = bench.node / "junk"
    junk.write_bytes(bytes(4 * MI))
    watch = bench.open({"nodefs.available": "6Mi"}, enforce=True, reclaim_images=("rm", str(junk)))
    before = bench.next()
    assert before.observations["nodefs.available"][:2] == [4 * MI, SIZE]
    watch.reclaim()
    message = bench.until(lambda m: m.cleaned)
    assert message.observations["nodefs.available"][:2] == [SIZE, SIZE]
    assert message.observations["nodefs.available"][2] > before.observations["nodefs.available"][2]
    assert [text for _, text, _ in bench.log.lines] == ["clean-up done"]
    once = {("runs_total", DELETE_IMAGES, DONE): 1.0}
    assert cleaned_up(watch) == once
    watch.reclaim()  # now there is nothing to remove
    live.until(lambda: watch.cleanups[FAILED], "the next one")
    assert cleaned_up(watch) == {**once, ("runs_total", DELETE_IMAGES, FAILED): 1.0}


@pytest.mark.parametrize("command", [("touch", "/nonexistent"), ()])
def test_observing_and_without_a_command_nothing_is_cleaned_up(bench: Bench, command: tuple[str, ...]) -> None:
    watch = bench.open({}, start=False, enforce=not command, reclaim_images=command)
    watch.reclaim()
    assert watch._cleaner is None


def test_closing_kills_a_clean_up(bench: Bench, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    watch = bench.open({}, enforce=True, reclaim_images=(sys.executable, "-c", code, str(pids)))
    watch.reclaim()
    pid = int(live.until(lambda: pids.exists() and pids.read_text(), "the command"))
    watch.close(live.TIMEOUT_S)
    assert not live.alive(pid)


# --- trouble -------------------------------------------------------------------------------------------------------
def test_a_disk_that_cannot_be_read_is_reported_once_and_again_when_it_can(bench: Bench) -> None:
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
    logged = [line for line in bench.log.lines if "imagefs" in line[1] or "images" in line[1] or "again" in line[1]]
    assert [level for level, *_ in logged] == ["error", "error", "info", "info"]  # imagefs, and containerfs on it
    assert all("cannot measure the file system of" in text for level, text, _ in logged if level == "error")


def test_what_a_thread_dies_of_is_reported(bench: Bench) -> None:
    watch = bench.open({"nodefs.available": "1Mi"}, start=False)
    bench.pods = None
    watch.start()
    live.until(lambda: "NoneType" in str(bench.failure), "the failure")


def test_a_call_that_hangs_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "STALLED_S", 0.0)
    # No file system here can be made to hang at will: the call into it waits before it is made.
    gate, entered = threading.Event(), threading.Event()
    real = disk_watch.file_system

    def hang(path: Path) -> Any:
        entered.set()
        assert gate.wait(live.TIMEOUT_S)
        return real(path)

    monkeypatch.setattr(disk_watch, "file_system", hang)
    watch = bench.open({"nodefs.available": "1Mi"})
    assert entered.wait(live.TIMEOUT_S)
    assert 0 < watch.stalled_s() < live.TIMEOUT_S
    assert bench.delivered.empty()
    gate.set()
    live.until(lambda: watch.stalled_s() == 0, "the end of the call")
    assert isinstance(watch.observations["nodefs.available"], Observation)


def test_the_kubelet_s_pods_are_found_below_its_directory(bench: Bench) -> None:
    assert Roots.of(bench.disks) == Roots()
    (bench.node / "pods").mkdir()
    assert Roots.of(bench.disks) == Roots(pods=bench.node / "pods")
