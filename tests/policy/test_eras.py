"""The policies of older releases, by the rules and examples of the guides that describe them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.pods.manifest_files import manifest
from monitor.policy.configuration import Source, in_force
from monitor.policy.eviction_pass import PassConfig, State
from monitor.policy.explain import why_class
from monitor.policy.kubelet_pass import admit, kubelet_pass
from monitor.policy.layout import SINGLE_DISK, DiskLayout
from monitor.policy.pods import Pod
from monitor.policy.qos import oom_score_adj
from monitor.policy.quantity import PolicyError
from monitor.policy.releases import CURRENT, ERAS, Era, era
from monitor.policy.signals import KUBELET_SIGNALS, MEMORY_PRESSURE
from monitor.policy.stats import Summary
from tests.policy.builders import GI, IMAGEFS, MI, container, pod, ranked, stats, summary

OLD, BLOG = era("kubelet-1.8"), era("kubelet-1.17")
S = 10**9
SAME = {"cpu": "1", "memory": "1Gi"}


def order(policy: Era, signal: str, pods: list[Pod], figures: list[Any], layout: DiskLayout = SINGLE_DISK) -> list[str]:
    return [r.pod.name for r in ranked(pods, figures, signal, layout, policy.name)]


best_effort = pod


def burstable(name: str, memory: str = "1Gi", **spec: Any) -> Pod:
    return pod(name, container(memory=memory), **spec)


def guaranteed(name: str, **spec: Any) -> Pod:
    return pod(name, container(limits=SAME, **SAME), **spec)


# ---- what 1.37 changed: each row of differences.md

ROWS = (Path(__file__).parents[2] / "docs/differences.md").read_text().partition("## Kubernetes 1.37 and 1.36")[2]


def over_its_limit(release: Era, restart: str) -> bool:
    """A sidecar. The pod's own limit counts too, so the other container has the rest of it."""
    names = {"side": ("1Mi", 2 << 20), "c": ("9Mi", 0)}
    side, other = (container(name, limits={"ephemeral-storage": names[name][0]}) for name in names)
    one = pod("a", other, initContainers=[{**side, "restartPolicy": restart}])
    figures = stats("a")
    figures["containers"] = [{"name": name, "rootfs": {"usedBytes": used}} for name, (_, used) in names.items()]
    config = PassConfig(release.parse_thresholds(None), 300 * S, local_storage=True, era=release)
    observed = Summary({"node": {}, "pods": [figures]})
    return bool(kubelet_pass(config, State(), [one], lambda: observed, 0, lambda _: None).evictions)


def classes(release: Era) -> set[Any]:
    """Of a Burstable pod with a `spec.resources` that names nothing which can be set for a whole pod."""
    named: list[Any] = [{}, {"requests": {}}, {"limits": {"pids": "5"}}]
    pods = [pod("a", container(memory="5Gi"), resources=resources) for resources in named]
    return {
        (
            release.qos_class(one),
            release.oom_score_adj(one, "c", 10 * GI),
            admit(one, [MEMORY_PRESSURE], release.qos_class).admitted,
            why_class(one, release).partition(":")[0],
            release.qos_class(replace(one, qos_class_status="Guaranteed")),
        )
        for one in pods
    }


def resized(release: Era) -> str:
    """A pod that asked for 3 of memory, as granted, and asks for 3 otherwise divided: 4 to the scheduler of 1.36."""
    asked = [{**container(name, memory=amount)} for name, amount in (("c", "1"), ("d", "2"))]
    granted = [{"name": name, "allocatedResources": {"memory": amount}} for name, amount in (("c", "2"), ("d", "1"))]
    kind = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    found = manifest("a", {**kind, "spec": {"containers": asked}, "status": {"containerStatuses": granted}})
    assert not isinstance(found, str)
    return str(release.request(found.pod, "memory"))


def volumes_used(**volume: Any) -> dict[str, int]:
    """What is read of a pod with a volume that has this too."""
    figures = {**stats("a"), "volume": [{"name": "v", "usedBytes": 3, **volume}]}
    return dict(Summary({"node": {}, "pods": [figures]}).pods["uid-a"].volumes_used())


def answers(release: Era) -> dict[str, Any]:
    """By row: what outrace does for this release."""
    (memory,) = release.parse_thresholds({"memory.available": "100Mi"})
    keys = {"memoryThrottlingFactor": 0.9, "memoryReservationPolicy": "TieredReservation"}
    given, plain = (in_force(Source("k", content), (), {}, release).thresholds(release) for content in (keys, {}))
    of_1_37 = {key: getattr(CURRENT, key) for key in ("name", "huge_pages_apart", "sidecar_storage", "qos_class")}
    return {
        "`memory.available`": [release.huge_pages_apart, memory.met(0, GI), memory.met(-1, GI)],
        "a sidecar's own limit of local storage (138371)": [over_its_limit(release, s) for s in ("Always", "Never")],
        "QoS class if `spec.resources` names nothing (135082)": classes(release),
        "MemoryQoS": given == plain,
        "request during a resize (140046)": resized(release),
        "`/stats/summary`": volumes_used(volumeHealthStats={"abnormal": True}) == volumes_used(),
        "anything else": replace(release, **of_1_37, oom_score_adj=CURRENT.oom_score_adj) == CURRENT,
    }


def test_what_1_37_changed_is_documented_and_done() -> None:
    rows = [line.strip("| ").split(" | ") for line in ROWS.partition("\n## ")[0].splitlines()[3:] if line]
    before, now = answers(era("kubelet-1.36")), answers(CURRENT)
    assert [row[0] for row in rows] == list(now)
    by_policy = [row[0] for row in rows if row[-1].startswith("by policy")]
    assert by_policy == [key for key in now if now[key] != before[key]]
    nothing = ("BestEffort", 1000, False, "no request or limit of cpu or memory", "Guaranteed")
    asked = ("Burstable", 500, True, "not Guaranteed", "Guaranteed")
    assert list(before.values()) == [[False, True, True], [False, False], {nothing}, True, "3", True, True]
    assert list(now.values()) == [[True, True, True], [True, False], {asked}, True, "3", True, True]
    assert [name for name in ERAS if over_its_limit(era(name), "Always") or era(name).huge_pages_apart] == [ERAS[0]]


# ---- order of eviction


def test_class_comes_first_in_the_old_one_and_nowhere_later() -> None:
    pods = [guaranteed("guaranteed"), burstable("burstable"), best_effort("best-effort", priority=1000)]
    figures = [stats("guaranteed", 3 * GI), stats("burstable", 2 * GI), stats("best-effort", MI)]
    assert order(OLD, "memory.available", pods, figures) == ["best-effort", "burstable", "guaranteed"]
    for later in (BLOG, CURRENT):
        assert order(later, "memory.available", pods, figures) == ["guaranteed", "burstable", "best-effort"]


def test_old_best_effort_pods_go_by_consumption() -> None:
    pods = [best_effort("a"), best_effort("b", priority=-100), best_effort("c")]
    figures = [stats("a", 3), stats("b", 1), stats("c", 2)]
    assert order(OLD, "memory.available", pods, figures) == ["a", "c", "b"]


def test_old_burstable_pods_go_by_excess_and_if_there_is_none_by_consumption() -> None:
    pods = [burstable("a", "1Gi"), burstable("b", "2Gi"), burstable("c", "100Mi"), burstable("d", "4Gi")]
    figures = [stats("a", 1025 * MI), stats("b", 1500 * MI), stats("c", 300 * MI), stats("d", 3 * GI)]
    assert order(OLD, "memory.available", pods, figures) == ["c", "a", "d", "b"]
    within = [stats("a", 900 * MI), stats("b", 1000 * MI), stats("c", 50 * MI), stats("d", 950 * MI)]
    assert order(OLD, "memory.available", pods, within) == ["b", "d", "a", "c"]
    # Today the one closest to its request goes before the largest.
    assert order(CURRENT, "memory.available", pods, within) == ["c", "a", "b", "d"]


def test_old_inodes_go_by_class_alone_and_disk_by_class_then_use() -> None:
    pods = [guaranteed("g"), burstable("b"), best_effort("x"), best_effort("y")]
    figures = [stats(name, rootfs=(size, size)) for name, size in (("g", 9), ("b", 8), ("x", 1), ("y", 2))]
    assert order(OLD, "nodefs.inodesFree", pods, figures) == ["x", "y", "b", "g"]
    assert order(OLD, "nodefs.available", pods, figures) == ["y", "x", "b", "g"]


@pytest.mark.parametrize("policy", [OLD, BLOG])
def test_which_disk_use_counts(policy: Era) -> None:
    """With an imagefs: volumes and logs on nodefs, writable layers on imagefs. Without: all of it."""
    pods = [best_effort("layer"), best_effort("logs")]
    figures = [stats("layer", rootfs=(5, 5), logs=(1, 1)), stats("logs", rootfs=(2, 2), logs=(3, 3))]
    assert order(policy, "nodefs.available", pods, figures) == ["layer", "logs"]
    assert order(policy, "nodefs.available", pods, figures, IMAGEFS) == ["logs", "layer"]
    assert order(policy, "imagefs.available", pods, figures, IMAGEFS) == ["layer", "logs"]
    # A split disk was unknown: the containers were where the images are.
    assert order(policy, "nodefs.available", pods, figures, DiskLayout(True, True)) == ["logs", "layer"]


def test_the_blogs_release_knows_excess_priority_and_amount_but_not_process_counts() -> None:
    pods = [burstable("a", "1Gi", priority=5), burstable("b", "1Gi"), burstable("c", "1Gi"), burstable("d", "4Gi")]
    used = (("a", 3 * GI), ("b", 2 * GI), ("c", 2 * GI + 1), ("d", 3 * GI))
    figures = [stats(name, memory, processes=memory) for name, memory in used]
    assert order(BLOG, "memory.available", pods, figures) == ["c", "b", "a", "d"]
    assert order(BLOG, "pid.available", pods, figures) == ["b", "c", "d", "a"]
    assert order(CURRENT, "pid.available", pods, figures) == ["d", "c", "b", "a"]


def test_the_blogs_release_knows_neither_overhead_nor_sidecars_nor_pod_level_requests() -> None:
    side = [{**container("side", memory="1Gi"), "restartPolicy": "Always"}]
    pods = [
        burstable("overhead", overhead={"memory": "1Gi"}),
        burstable("sidecar", initContainers=side),
        burstable("pod-level", resources={"requests": {"memory": "2Gi"}}),
    ]
    figures = [stats(one.name, GI + 1) for one in pods]
    for policy, group in ((BLOG, 1), (CURRENT, 2)):
        assert {r.key[0] for r in ranked(pods, figures, name=policy.name)} == {group}


# ---- thresholds


@pytest.mark.parametrize("threshold", ["10%", "1Gi"])
@pytest.mark.parametrize("name", ERAS)
def test_ten_percent_of_ten_gibibytes_is_a_gibibyte(name: str, threshold: str) -> None:
    (memory,) = era(name).parse_thresholds({"memory.available": threshold})
    assert abs(memory.quantity(10 * GI) - GI) <= 16  # a percentage is rounded to 32 bits
    assert memory.met(GI - 1, 10 * GI)
    assert not memory.met(GI + 16, 10 * GI)


def test_defaults_and_signals_of_each_era() -> None:
    assert [str(t) for t in OLD.parse_thresholds(None)] == ["memory.available<100Mi"]
    assert [str(t) for t in BLOG.parse_thresholds(None)] == [
        "memory.available<100Mi",
        "nodefs.available<10%",
        "nodefs.inodesFree<5%",
        "imagefs.available<15%",
    ]
    assert len(CURRENT.parse_thresholds(None)) == 5
    assert set(KUBELET_SIGNALS) - set(BLOG.signals) == {"containerfs.available", "containerfs.inodesFree"}
    with pytest.raises(PolicyError, match=r"pid\.available: kubelet-1\.8 does not know it"):
        OLD.parse_thresholds({"pid.available": "10%"})
    with pytest.raises(PolicyError, match=r"containerfs\.available: kubelet-1\.17"):
        BLOG.parse_thresholds({}, {"containerfs.available": "10%"}, {"containerfs.available": "1s"})
    with pytest.raises(PolicyError, match="grace period must be specified"):
        OLD.parse_thresholds({}, {"memory.available": "1.5Gi"})


# ---- passes


def one_pass(policy: Era, hard: dict[str, str], layout: DiskLayout, **figures: int) -> Any:
    settings = PassConfig(policy.parse_thresholds(hard), 300 * S, layout=layout, local_storage=False, era=policy)
    answer = Summary(summary(stats("a", MI), **figures))
    return kubelet_pass(settings, State(), [best_effort("a")], lambda: answer, 0, lambda _: answer)


@pytest.mark.parametrize(
    ("policy", "nodefs", "imagefs"),
    [
        (OLD, ("DeleteAllUnusedContainers",), ("DeleteUnusedImages",)),
        (BLOG, (), ("DeleteAllUnusedContainers", "DeleteUnusedImages")),
    ],
)
def test_what_is_cleaned_up_first(policy: Era, nodefs: tuple[str, ...], imagefs: tuple[str, ...]) -> None:
    both = ("DeleteAllUnusedContainers", "DeleteUnusedImages")
    hard = {"nodefs.available": "1Gi"}
    assert one_pass(policy, hard, SINGLE_DISK, nodefs=0).reclaimed == both
    assert one_pass(policy, hard, IMAGEFS, nodefs=0).reclaimed == nodefs
    assert one_pass(policy, {"imagefs.available": "1Gi"}, IMAGEFS, imagefs=0).reclaimed == imagefs
    assert one_pass(policy, {"memory.available": "1Gi"}, SINGLE_DISK, memory=0).reclaimed == ()


@pytest.mark.parametrize(("policy", "grace"), [(OLD, 0), (BLOG, 0), (CURRENT, 1)])
def test_grace_of_a_hard_eviction(policy: Era, grace: int) -> None:
    (eviction,) = one_pass(policy, {"memory.available": "1Gi"}, SINGLE_DISK, memory=0).evictions
    assert eviction.grace_s == grace


def test_old_eras_guard_no_container_file_system() -> None:
    assert all("containerfs" not in t.signal for t in PassConfig(OLD.parse_thresholds(None), 0, era=OLD).overlaid())
    assert len(PassConfig(CURRENT.parse_thresholds(None), 0).overlaid()) == 9


# ---- critical pods and oom_score_adj


def test_who_is_critical() -> None:
    marked = {"scheduler.alpha.kubernetes.io/critical-pod": ""}
    by_annotation = pod("a", namespace="kube-system", annotations=marked)
    other_namespace = pod("b", annotations=marked)
    pods = [by_annotation, other_namespace, pod("c", priority=2 * 10**9)]
    assert [one.name for one in pods if OLD.is_critical(one)] == ["a"]
    assert [one.name for one in pods if BLOG.is_critical(one)] == ["c"]
    assert [r.pod.name for r in ranked(pods, [], name=OLD.name) if r.candidate.critical] == ["a"]


@pytest.mark.parametrize(
    ("request_", "old", "today"),
    [("1Gi", 900, 900), ("10Gi", 2, 3), ("9.99Gi", 2, 3), ("1", 999, 999), ("5Gi", 500, 500)],
)
def test_burstable_scores_on_ten_gibibytes(request_: str, old: int, today: int) -> None:
    one = burstable("a", request_)
    assert OLD.oom_score_adj(one, "c", 10 * GI) == BLOG.oom_score_adj(one, "c", 10 * GI) == old
    assert CURRENT.oom_score_adj(one, "c", 10 * GI) == oom_score_adj(one, "c", 10 * GI) == today


def test_scores_of_the_other_classes() -> None:
    assert [p.oom_score_adj(guaranteed("a"), "c", GI) for p in (OLD, BLOG, CURRENT)] == [-998, -998, -997]
    assert [p.oom_score_adj(best_effort("a"), "c", GI) for p in (OLD, BLOG, CURRENT)] == [1000, 1000, 1000]
    critical = burstable("a", priority=2 * 10**9, priorityClassName="system-cluster-critical")
    assert [p.oom_score_adj(critical, "c", 10 * GI) for p in (OLD, BLOG, CURRENT)] == [900, -998, 900]
    for policy in (OLD, BLOG):
        with pytest.raises(PolicyError, match="no container 'x'"):
            policy.oom_score_adj(burstable("a"), "x", GI)
        with pytest.raises(PolicyError, match="capacity 0"):
            policy.oom_score_adj(burstable("a"), "c", 0)
