"""In words: what decides between two pods, and why a pod has its class and its request."""

from dataclasses import replace
from typing import Any

import pytest

from monitor.policy.explain import comparisons, contrast, why_class, why_request
from monitor.policy.layout import SINGLE_DISK
from monitor.policy.pods import Pod
from monitor.policy.releases import era
from monitor.policy.resources import containers_request
from monitor.policy.victims import Ranked
from tests.policy.builders import MEMORY, MI, container, pod, ranked, stats


def words(one: Pod, figures: dict[str, Any] | None, name: str = "kubelet-1.36") -> list[str]:
    (alone,) = ranked([one], [] if figures is None else [figures], MEMORY, SINGLE_DISK, name)
    return [f"{part}: {verdict}" for part, verdict in comparisons(alone, era(name)).items()]


def test_memory_in_words() -> None:
    one = pod("a", container(memory="100Mi"), priority=5)
    assert words(one, stats("a", 300 * MI)) == [
        "usage: 300Mi (working set), requested 100Mi: above its request",
        "priority: 5: lower ones go first",
        "excess: 200Mi above its request",
    ]
    assert words(one, stats("a", 100 * MI))[::2] == [
        "usage: 100Mi (working set), requested 100Mi: within its request",
        "excess: 0 below its request",
    ]
    assert words(one, None) == ["usage: no stats: goes first", "priority: 5: lower ones go first"]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"priority": 2 * 10**9}, "priority 2000000000"),
        ({"annotations": {"kubernetes.io/config.source": "file"}}, "static pod"),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, "mirror pod"),
    ],
)
def test_why_a_pod_is_never_evicted(spec: dict[str, Any], reason: str) -> None:
    assert words(pod("a", **spec), None)[-1] == f"critical: {reason}: never evicted"


def test_the_old_one_speaks_of_classes() -> None:
    one = pod("a", container(memory="1Mi"), priority=9)
    assert words(one, stats("a", 2 * MI), name="kubelet-1.8") == [
        "QoS class: Burstable: BestEffort goes first, Guaranteed last",
        "usage: 2Mi (working set), requested 1Mi: above its request",
    ]
    marked = {"scheduler.alpha.kubernetes.io/critical-pod": ""}
    critical = pod("a", namespace="kube-system", annotations=marked)
    assert words(critical, None, name="kubelet-1.8")[-1] == ("critical: marked by annotation: never evicted")


def decided(one: Ranked, other: Ranked) -> list[str]:
    found = contrast(one, other, era("kubelet-1.36"))
    return [f"{c['name']}: {c['one']} | {c['other']}" for c in found if c["decides"]]


@pytest.mark.parametrize(
    ("one", "other", "name", "mine", "its"),
    [
        ((50, "1", 0), (40, "1Mi", 0), "usage", "50 (working set), requested 1: above its request",
         "40 (working set), requested 1Mi: within its request"),
        ((50, "1", -1), (90, "1", 3), "priority", "-1: lower ones go first", "3: lower ones go first"),
        ((90, "1", 0), (50, "1", 0), "excess", "89 above its request", "49 above its request"),
        ((50, "1", 0), (50, "1", 0), "name", "ns/a", "ns/b"),
    ],
)  # fmt: skip
def test_what_decides_between_two_pods_for_memory(
    one: tuple[int, str, int], other: tuple[int, str, int], name: str, mine: str, its: str
) -> None:
    pods = [pod(n, container(memory=asked), priority=p) for n, (_, asked, p) in (("a", one), ("b", other))]
    first, second = ranked(pods, [stats("a", one[0]), stats("b", other[0])])
    assert first.pod.name == "a"
    assert decided(first, second) == [f"{name}: {mine} | {its}"]
    assert decided(second, first) == [f"{name}: {its} | {mine}"]


def test_the_reason_of_a_class() -> None:
    whole = {"cpu": "1", "memory": "1"}
    pods = [pod("a"), pod("b", container("c", whole, **whole)), pod("c", container("c", {"cpu": "1"}, **whole))]
    assert [why_class(one).partition(":")[0] for one in pods] == [
        "no request or limit of cpu or memory",
        "requests and limits of cpu and memory are the same",
        "not Guaranteed",
    ]
    assert why_class(replace(pods[0], qos_class_status="Burstable")) == "as its status says (status.qosClass)"


def test_a_request_below_zero_is_none() -> None:
    """No API server looks at a manifest on disk, and the pod would use more than its request by that much."""
    assert containers_request(pod("a", container(memory="-1Gi")), "memory").is_zero


def test_how_the_request_came_about() -> None:
    side = {**container("side", memory="8Mi"), "restartPolicy": "Always"}
    first = container("first", memory="100Mi")
    small, overhead = container(memory="64Mi"), {"memory": "1Mi"}
    with_side = pod("a", small, initContainers=[side], overhead=overhead)
    with_steps = pod("a", small, initContainers=[side, first])
    steps = "108Mi at a step of the init containers, more than the 72Mi of the running ones"
    named, unnamed = {"requests": {"memory": "9Mi"}}, {"limits": {"cpu": "1"}}
    cases = [
        (pod("a", small), "64Mi: containers 64Mi"),
        (with_side, "73Mi: containers 64Mi + sidecars 8Mi + overhead 1Mi"),
        (with_steps, f"108Mi: {steps}"),
        (pod("a", small, resources=named), "9Mi: 9Mi for the pod"),
        (pod("a", small, resources=unnamed), "0: spec.resources names none, which hides the containers'"),
        (pod("a", overhead=overhead), "0: containers 0"),
    ]
    assert [why_request(one) for one, _ in cases] == [text for _, text in cases]
    blog = era("kubelet-1.17")
    assert why_request(with_steps, blog).startswith("100Mi: the largest init container's (kubelet-1.17 ")
    assert why_request(with_side, blog).startswith("64Mi: the containers' together")
