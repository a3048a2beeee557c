"""Limits of local storage."""

from monitor.policy.resources import pod_limit
from tests.policy.builders import container, pod


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
