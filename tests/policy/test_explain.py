"""The comparisons in words: two pods, and what decides between them."""

from typing import Any

import pytest

from monitor.policy.explain import comparisons, contrast
from monitor.policy.layout import SINGLE_DISK
from monitor.policy.pods import Pod
from monitor.policy.releases import era
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
    ("one", "other", "expected"),
    [
        (
            (50, "1", 0),
            (40, "1Mi", 0),
            "usage: 50 (working set), requested 1: above its request | "
            "40 (working set), requested 1Mi: within its request",
        ),
        ((50, "1", -1), (90, "1", 3), "priority: -1: lower ones go first | 3: lower ones go first"),
        ((90, "1", 0), (50, "1", 0), "excess: 89 above its request | 49 above its request"),
        ((50, "1", 0), (50, "1", 0), "name: ns/a | ns/b"),
    ],
)
def test_what_decides_between_two_pods_for_memory(
    one: tuple[int, str, int], other: tuple[int, str, int], expected: str
) -> None:
    pods = [pod(n, container(memory=asked), priority=p) for n, (_, asked, p) in (("a", one), ("b", other))]
    first, second = ranked(pods, [stats("a", one[0]), stats("b", other[0])])
    assert first.pod.name == "a"
    assert decided(first, second) == [expected]
    swapped = " | ".join(reversed(expected.partition(": ")[2].split(" | ")))
    assert decided(second, first) == [f"{expected.partition(': ')[0]}: {swapped}"]
