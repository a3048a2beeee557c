"""The order of eviction in plain words, and settings with their origins."""

from __future__ import annotations

from typing import Any

import pytest

from monitor.policy.configuration import Source, effective_settings
from monitor.policy.eras import era
from monitor.policy.explain import comparisons
from monitor.policy.layout import SINGLE_DISK, DiskLayout
from monitor.policy.pods import Pod
from monitor.policy.quantity import PolicyError
from monitor.policy.stats import PodStats
from monitor.policy.victims import rank_pods
from tests.policy.builders import MI, container, pod, stats

IMAGEFS, SPLIT = DiskLayout(True), DiskLayout(True, True)


def words(
    one: Pod, figures: dict[str, Any] | None, signal: str, layout: DiskLayout = SINGLE_DISK, name: str = "kubelet-1.36"
) -> list[str]:
    known = {} if figures is None else {one.uid: PodStats(figures)}
    (ranked,) = rank_pods(signal, [one], known, layout, ranker=era(name).ranker)
    return [f"{c.name}: {c.verdict}" for c in comparisons(ranked, signal, layout, era(name))]


def test_memory_in_words() -> None:
    one = pod("a", container(memory="100Mi"), priority=5)
    assert words(one, stats("a", 300 * MI), "memory.available") == [
        "usage: 300Mi (working set), requested 100Mi: above its request",
        "priority: 5: lower ones go first",
        "excess: 200Mi above its request",
    ]
    assert words(one, stats("a", 100 * MI), "memory.available")[::2] == [
        "usage: 100Mi (working set), requested 100Mi: within its request",
        "excess: 0 below its request",
    ]
    assert words(one, None, "memory.available") == [
        "usage: no stats: goes first",
        "priority: 5: lower ones go first",
    ]


def test_disk_in_words() -> None:
    one = pod("a", container(ephemeral_storage="1Mi"))
    used = stats("a", rootfs=(MI, 7), logs=(2 * MI, 1))
    assert words(one, used, "nodefs.available", IMAGEFS)[0] == (
        "usage: 2Mi (logs, local volumes), requested 1Mi: above its request"
    )
    assert words(one, used, "imagefs.available", SPLIT)[0] == (
        "usage: 0 (nothing is counted for this disk), requested 1Mi: within its request"
    )
    assert words(one, used, "nodefs.inodesFree") == [
        "usage: 8 (writable layers, logs, local volumes), requested 0: above its request",
        "priority: 0: lower ones go first",
        "excess: 8 inodes less a request of 1048576 bytes: -1048568",
    ]


def test_process_ids_in_words() -> None:
    one = pod("a", priority=-1)
    assert words(one, stats("a", processes=12), "pid.available") == [
        "priority: -1: lower ones go first",
        "processes: 12",
    ]
    assert words(one, None, "pid.available")[1] == "processes: no stats: goes first"
    assert len(words(one, None, "pid.available", name="kubelet-1.17")) == 1


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"priority": 2 * 10**9}, "priority 2000000000"),
        ({"annotations": {"kubernetes.io/config.source": "file"}}, "static pod"),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, "mirror pod"),
    ],
)
def test_why_a_pod_is_never_evicted(spec: dict[str, Any], reason: str) -> None:
    assert words(pod("a", **spec), None, "memory.available")[-1] == f"critical: {reason}: never evicted"


def test_the_old_one_speaks_of_classes() -> None:
    one = pod("a", container(memory="1Mi"), priority=9)
    used = stats("a", 2 * MI, rootfs=(5, 5))
    assert words(one, used, "memory.available", name="kubelet-1.8") == [
        "QoS class: Burstable: BestEffort goes first, Guaranteed last",
        "usage: 2Mi (working set), requested 1Mi: above its request",
    ]
    assert words(one, used, "nodefs.available", name="kubelet-1.8")[1].endswith(": more goes first")
    assert len(words(one, used, "nodefs.inodesFree", name="kubelet-1.8")) == 1
    marked = {"scheduler.alpha.kubernetes.io/critical-pod": ""}
    critical = pod("a", namespace="kube-system", annotations=marked)
    assert words(critical, None, "memory.available", name="kubelet-1.8")[-1] == (
        "critical: marked by annotation: never evicted"
    )


# ---- settings


def shown(*sources: Source, flags: dict[str, str] | None = None, layout: DiskLayout | None = None) -> list[str]:
    file, *drop_ins = sources or (None,)
    return [f"{t}: {origin}" for t, origin in effective_settings(file, drop_ins, flags).thresholds(layout)]


def config(name: str = "file", **content: Any) -> Source:
    content.setdefault("enforceNodeAllocatable", [])
    return Source(name, content)


DEFAULTS = [
    "memory.available<100Mi: default",
    "nodefs.available<10%: default",
    "nodefs.inodesFree<5%: default",
    "imagefs.available<15%: default",
    "imagefs.inodesFree<5%: default",
]


def test_all_or_none_of_the_defaults() -> None:
    assert shown(config()) == shown(config(evictionHard=None)) == DEFAULTS
    assert shown(config(evictionHard={})) == []
    assert shown(config(evictionHard={"memory.available": "1Gi"})) == ["memory.available<1Gi: file"]
    assert shown() == []  # no file, no defaults
    assert shown(
        flags={"eviction-soft": "memory.available<2Gi", "eviction-soft-grace-period": "memory.available=1m"}
    ) == ["memory.available<2Gi for 60s: --eviction-soft"]


def test_merged_defaults() -> None:
    merged = shown(
        config(evictionHard={"memory.available": "1Gi", "imagefs.available": "0%"}, mergeDefaultEvictionSettings=True)
    )
    assert merged == ["memory.available<1Gi: file", DEFAULTS[1], DEFAULTS[2], DEFAULTS[4]]


def test_drop_ins_come_after_the_defaults() -> None:
    drop_in = config("10.conf", evictionHard={"memory.available": "1Gi", "nodefs.available": None})
    assert shown(config(), drop_in) == [*DEFAULTS[2:], "memory.available<1Gi: 10.conf"]
    assert shown(config(), config("20.conf", evictionHard=None)) == []
    assert shown(drop_in) == ["memory.available<1Gi: 10.conf"]


def test_a_flag_replaces_its_map() -> None:
    assert shown(config(), flags={"eviction-hard": "pid.available<5%"}) == ["pid.available<5%: --eviction-hard"]
    assert shown(config(), flags={"eviction-hard": ""}) == []


def test_copies_name_what_they_are_copies_of() -> None:
    both = config(evictionHard={"memory.available": "1Gi", "imagefs.available": "15%"}, enforceNodeAllocatable=["pods"])
    assert shown(both, layout=IMAGEFS) == [
        "memory.available<1Gi: file",
        "imagefs.available<15%: file",
        "allocatableMemory.available<1Gi: copy of memory.available (file)",
        "containerfs.available<15%: copy of imagefs.available (file)",
    ]
    assert len(shown(both, layout=SPLIT)) == 3
    own = config(evictionHard={"containerfs.available": "1%", "nodefs.available": "10%"})
    assert shown(own, layout=SINGLE_DISK) == [
        "containerfs.available<10%: copy of nodefs.available (file)",
        "nodefs.available<10%: file",
    ]
    implied = Source("file", {"evictionHard": {"memory.available": "1Gi"}})
    assert len(effective_settings(implied).thresholds()) == 2


def test_plain_settings() -> None:
    settings = effective_settings(config(evictionPressureTransitionPeriod="0s", evictionMaxPodGracePeriod=60))
    assert (settings.transition_period_ns, settings.max_pod_grace_s) == (300 * 10**9, 60)
    later = config("d", evictionPressureTransitionPeriod="1m", evictionMaxPodGracePeriod=None)
    settings = effective_settings(config(evictionMaxPodGracePeriod=60), [later])
    assert (settings.transition_period_ns, settings.max_pod_grace_s) == (60 * 10**9, 0)
    flags = {"eviction-pressure-transition-period": "10s", "eviction-max-pod-grace-period": "-1"}
    settings = effective_settings(config(), [later], flags)
    assert (settings.transition_period_ns, settings.max_pod_grace_s) == (10 * 10**9, -1)
    assert effective_settings(None).transition_period_ns == 300 * 10**9


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"evictionHard": ["memory.available<1Gi"]}, "file: evictionHard: must be a map"),
        ({"evictionHard": {"memory.available": 5}}, r"file: evictionHard: memory\.available: must be text"),
        ({"evictionPressureTransitionPeriod": "5"}, "file: evictionPressureTransitionPeriod: time: missing unit"),
        ({"evictionMaxPodGracePeriod": "x"}, "file: evictionMaxPodGracePeriod: 'x' is not a whole number"),
        ({"enforceNodeAllocatable": "pods"}, "file: enforceNodeAllocatable: must be a list"),
    ],
)
def test_wrong_settings_are_named(content: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PolicyError, match=complaint):
        effective_settings(Source("file", content))


def test_thresholds_that_do_not_parse() -> None:
    with pytest.raises(PolicyError, match="grace period must be specified"):
        shown(config(evictionSoft={"memory.available": "1Gi"}))
