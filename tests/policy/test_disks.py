"""Limits of local storage."""

import pytest

from monitor.policy.layout import SINGLE_DISK
from monitor.policy.local_storage import storage_violation
from monitor.policy.resources import pod_limit
from monitor.policy.stats import PodStats
from tests.policy.builders import container, pod, stats


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
