"""Why a pod has its class and its request, in words."""

from dataclasses import replace

from monitor.policy.explain import why_class, why_request
from monitor.policy.releases import era
from monitor.policy.resources import containers_request
from tests.policy.builders import container, pod


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
    cases = [
        (pod("a", small), "64Mi: containers 64Mi"),
        (
            pod("a", small, initContainers=[side], overhead=overhead),
            "73Mi: containers 64Mi + sidecars 8Mi + overhead 1Mi",
        ),
        (
            pod("a", small, initContainers=[side, first]),
            "108Mi: 108Mi at a step of the init containers, more than the 72Mi of the running ones",
        ),
        (pod("a", small, resources={"requests": {"memory": "9Mi"}}), "9Mi: 9Mi for the pod"),
        (
            pod("a", small, resources={"limits": {"cpu": "1"}}),
            "0: spec.resources names none, which hides the containers'",
        ),
        (pod("a", overhead=overhead), "0: containers 0"),
    ]
    assert [why_request(one) for one, _ in cases] == [text for _, text in cases]
    blog = era("kubelet-1.17")
    assert why_request(cases[2][0], blog).startswith("100Mi: the largest init container's (kubelet-1.17 ")
    assert why_request(cases[1][0], blog).startswith("64Mi: the containers' together")
