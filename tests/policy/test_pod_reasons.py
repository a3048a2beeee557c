"""Why a pod has its class and its request, in words."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.explain import why_class, why_request
from monitor.policy.pods import Pod
from monitor.policy.qos import BEST_EFFORT, BURSTABLE, GUARANTEED
from monitor.policy.releases import CURRENT, ERAS, era
from monitor.policy.resources import containers_request
from tests.policy.builders import container, pod

AMOUNT = st.sampled_from(["0", "1", "1500m", "2", "4"])


@st.composite
def crowds(draw: st.DrawFn) -> list[Pod]:
    """Pods with sidecars, overhead, requests of the whole pod and limits."""
    pods = []
    for name in draw(st.lists(st.sampled_from("abcde"), unique=True, min_size=2, max_size=4)):
        containers = []
        for c in ("c", "d")[: draw(st.integers(1, 2))]:
            asked = draw(st.none() | AMOUNT)
            limit = draw(st.sampled_from([None, asked, "5"]))  # never below the request: no API server admits that
            memory = {} if asked is None else {"memory": asked, "cpu": "1", "ephemeral_storage": draw(AMOUNT)}
            containers.append(container(c, {} if limit is None else {"memory": limit, "cpu": "1"}, **memory))
        spec: dict[str, Any] = {"priority": draw(st.sampled_from([None, -1, 0, 1, 10**9, 2 * 10**9]))}
        if draw(st.booleans()):
            spec["initContainers"] = [container("i", memory=draw(AMOUNT))]
            spec["initContainers"][0]["restartPolicy"] = draw(st.sampled_from([None, "Always"]))
        if draw(st.booleans()):
            spec["overhead"] = {"memory": draw(AMOUNT)}
        if draw(st.integers(0, 3)) == 0:
            spec["resources"] = draw(st.sampled_from([{}, {"requests": {"memory": "2"}}, {"limits": {"memory": "3"}}]))
        pods.append(pod(name, *containers, **spec))
    return pods


@given(crowds(), st.sampled_from(ERAS))
def test_the_reason_fits_the_class(crowd: list[Pod], name: str) -> None:
    beginnings = {BEST_EFFORT: "no request", GUARANTEED: "requests", BURSTABLE: "not Guaranteed: "}
    for one in crowd:
        assert why_class(one, era(name)).startswith(beginnings[era(name).qos_class(one)])
        assert why_class(replace(one, qos_class_status="Burstable")) == "as its status says (status.qosClass)"


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


@given(crowds())
def test_the_reason_begins_with_the_request_that_is_compared(crowd: list[Pod]) -> None:
    for one in crowd:
        assert why_request(one).startswith(f"{CURRENT.request(one, 'memory')}: ")
