"""Layouts of disks: the overlay for the container file system; limits of local storage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.layout import SINGLE_DISK, DiskLayout, overlay_containerfs, reclaim_actions
from monitor.policy.local_storage import storage_violation
from monitor.policy.resources import pod_limit
from monitor.policy.signals import SIGNALS
from monitor.policy.stats import PodStats
from monitor.policy.thresholds import Threshold, parse_thresholds
from tests.policy.builders import container, pod, stats

IMAGEFS, SPLIT, ODD = DiskLayout(True), DiskLayout(True, True), DiskLayout(False, True)


def written(thresholds: tuple[Threshold, ...]) -> list[str]:
    """What is in force for the container file system."""
    return sorted(str(t) for t in thresholds if t.signal.startswith("containerfs") and t.operator)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (SINGLE_DISK, ["containerfs.available<10%", "containerfs.available<2Gi for 60s"]),
        (SPLIT, ["containerfs.available<10%", "containerfs.available<2Gi for 60s"]),
        (IMAGEFS, ["containerfs.available<15%", "containerfs.inodesFree<5%"]),
        (ODD, []),
    ],
)
def test_the_container_file_system_gets_the_thresholds_of_the_disk_it_is_on(
    layout: DiskLayout, expected: list[str]
) -> None:
    hard = {"nodefs.available": "10%", "imagefs.available": "15%", "imagefs.inodesFree": "5%"}
    thresholds = parse_thresholds(
        hard, {"nodefs.available": "2Gi"}, {"nodefs.available": "1m"}, {"nodefs.available": "1Gi"}
    )
    overlay = overlay_containerfs(thresholds, layout)
    assert written(overlay.thresholds) == expected
    assert (overlay.in_place, overlay.conflicts) == (thresholds, ())
    copies = [t for t in overlay.thresholds if t.signal == "containerfs.available" and t.min_reclaim is not None]
    assert len(copies) == (2 if layout in (SINGLE_DISK, SPLIT) else 0)
    assert len(overlay.thresholds) == len(thresholds) + (0 if layout == ODD else 4)


def test_a_users_own_container_file_system_thresholds_are_replaced_where_they_stand() -> None:
    thresholds = parse_thresholds(
        {"containerfs.available": "1Gi", "imagefs.available": "15%"},
        {"containerfs.inodesFree": "5%"},
        {"containerfs.inodesFree": "1m"},
    )
    overlay = overlay_containerfs(thresholds, IMAGEFS)
    assert written(overlay.thresholds) == written(overlay.in_place) == ["containerfs.available<15%"]
    assert overlay.conflicts == (
        "found containerfs.available for hard eviction. ignoring",
        "found containerfs.inodesFree for soft eviction. ignoring",
    )
    assert len(overlay.in_place) == len(thresholds)
    kept = overlay_containerfs(thresholds, ODD)
    assert kept.thresholds == thresholds
    assert len(kept.conflicts) == 2


@given(st.sampled_from(SIGNALS), st.sampled_from([SINGLE_DISK, IMAGEFS, SPLIT, ODD]))
def test_memory_and_process_ids_have_nothing_to_clean_up(signal: str, layout: DiskLayout) -> None:
    assert not reclaim_actions(signal, layout) or "fs" in signal
    assert reclaim_actions(signal, ODD) == reclaim_actions(signal, SINGLE_DISK)


@pytest.mark.parametrize(
    ("limit", "used", "message"),
    [
        ("10Mi", 10 * 2**20, None),
        ("10Mi", 10 * 2**20 + 1, 'Usage of EmptyDir volume "v" exceeds the limit "10Mi". '),
        ("0", 1, None),
        ("-1", 1, None),
        (None, 1, None),
        ("1500m", 2, 'Usage of EmptyDir volume "v" exceeds the limit "1500m". '),
    ],
)
def test_an_empty_dir_over_its_limit(limit: str | None, used: int, message: str | None) -> None:
    empty_dir = {"medium": "Memory"} | ({"sizeLimit": limit} if limit is not None else {})
    one = pod("a", volumes=[{"name": "v", "emptyDir": empty_dir}])
    assert storage_violation(one, PodStats(stats("a", volumes={"v": (used, 0)})), SINGLE_DISK) == message


def test_an_empty_dir_without_figures_keeps_its_limit() -> None:
    one = pod("a", volumes=[{"name": "v", "emptyDir": {"sizeLimit": "1"}}])
    assert storage_violation(one, PodStats(stats("a")), SINGLE_DISK) is None
    assert storage_violation(one, PodStats({"volume": [{"name": "v"}]}), SINGLE_DISK) is None


def test_the_pods_own_limit_is_the_sum_of_its_containers() -> None:
    limit = {"ephemeral-storage": "1Gi"}
    one = pod("a", container("x", limits=limit), container("y", limits=limit), overhead={"ephemeral-storage": "1Mi"})
    figures = [PodStats(stats("a", ephemeral=2 * 2**30 + 2**20 + over)) for over in (0, 1)]
    assert [storage_violation(one, own, SINGLE_DISK) for own in figures] == [
        None,
        "Pod ephemeral local storage usage exceeds the total limit of containers 2049Mi. ",
    ]


def test_a_limit_of_zero_for_the_pod_is_a_limit() -> None:
    one = pod("a", container(limits={"ephemeral-storage": "0"}), overhead={"ephemeral-storage": "5"})
    assert storage_violation(one, PodStats(stats("a", ephemeral=0)), SINGLE_DISK) is None
    message = storage_violation(one, PodStats(stats("a", ephemeral=1)), SINGLE_DISK)
    assert message == "Pod ephemeral local storage usage exceeds the total limit of containers 0. "


@pytest.mark.parametrize(
    ("layout", "logs", "rootfs", "over"),
    [(SINGLE_DISK, 5, 5, False), (SINGLE_DISK, 5, 6, True), (IMAGEFS, 10, 99, False), (SPLIT, 11, 0, True)],
)
def test_a_containers_limit(layout: DiskLayout, logs: int, rootfs: int, over: bool) -> None:
    one = pod("a", container(limits={"ephemeral-storage": "10"}))
    own = PodStats(stats("a", logs=(logs, 0), rootfs=(rootfs, 0)))
    message = 'Container c exceeded its local ephemeral storage limit "10". '
    assert storage_violation(one, own, layout) == (message if over else None)


def test_limits_of_a_pod_over_its_life() -> None:
    def limited(name: str, amount: str, **more: str) -> dict[str, object]:
        return {**container(name, limits={"ephemeral-storage": amount}), **more}

    one = pod(
        "a",
        limited("c", "5"),
        initContainers=[
            limited("first", "20"),
            limited("side", "7", restartPolicy="Always"),
            limited("second", "10"),
            container("none"),
        ],
    )
    assert str(pod_limit(one, "ephemeral-storage")) == "20"
    later = pod(
        "b", limited("c", "5"), initContainers=[limited("side", "7", restartPolicy="Always"), limited("i", "14")]
    )
    assert str(pod_limit(later, "ephemeral-storage")) == "21"
    assert str(pod_limit(pod("d", limited("c", "1024Mi")), "ephemeral-storage")) == "1Gi"
    assert pod_limit(pod("e"), "ephemeral-storage") is None
    whole = pod("f", container(limits={"memory": "5"}), resources={"limits": {"memory": "9"}})
    assert (str(pod_limit(whole, "memory")), str(pod_limit(whole, "memory", pod_level=False))) == ("9", "5")
