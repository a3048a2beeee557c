"""A pod of more containers than are kept one by one asks for the same as before."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.actions.oomadj import pod_scores
from monitor.pods import pod_objects
from monitor.pods.feed import known
from monitor.pods.manifest_files import Manifest
from monitor.pods.many_containers import MOST_CONTAINERS, summed
from monitor.pods.model import FoundPod
from monitor.policy.pods import Pod, pod_from_object
from monitor.policy.qos import qos_class
from monitor.policy.resources import pod_limit, pod_request
from tests.pods.cluster import a_pod

Object = dict[str, Any]
RESOURCES = ("memory", "cpu", "ephemeral-storage")
AMOUNT = st.sampled_from(["0", "1", "100m", "64Mi", "1500", "1.5Gi", "3G", "1n", "9223372036854775807", "7Ei"])
AMOUNTS = st.dictionaries(st.sampled_from(RESOURCES), AMOUNT)
RESOURCE_PAIRS = st.fixed_dictionaries({"requests": AMOUNTS, "limits": AMOUNTS})
CONTAINERS = st.lists(st.fixed_dictionaries({"resources": RESOURCE_PAIRS}), max_size=6)
INIT = st.lists(
    st.fixed_dictionaries({"resources": RESOURCE_PAIRS}, optional={"restartPolicy": st.just("Always")}), max_size=8
)


def named(containers: list[Object], prefix: str) -> list[Object]:
    return [{"name": f"{prefix}{i}", **one} for i, one in enumerate(containers)]


def a_large_pod(containers: list[Object], init: list[Object], **spec: Any) -> Object:
    obj = a_pod("large", "u1")
    obj["spec"] |= {"containers": named(containers, "c"), "initContainers": named(init, "i"), **spec}
    obj["status"] = {"phase": "Running"}
    return obj


def figures(pod: Pod) -> list[Any]:
    requests = [pod_request(pod, name, level).nanos for name in RESOURCES for level in (True, False)]
    limits = [pod_limit(pod, name, level) for name in RESOURCES for level in (True, False)]
    return [qos_class(pod), requests, [None if one is None else one.nanos for one in limits]]


def read(obj: Object) -> Manifest:
    found = known("test", obj)
    assert found is not None
    assert found.manifest is not None, found.problem
    again = known("test", json.loads(json.dumps(found.object)))  # as it comes from the cache
    assert again == found
    return found.manifest


@settings(max_examples=300)
@given(CONTAINERS, INIT, st.none() | RESOURCE_PAIRS, AMOUNTS)
def test_sums_ask_for_the_same(containers: list[Object], init: list[Object], own: Object | None, over: Object) -> None:
    obj = a_large_pod(containers, init, overhead=over, **({} if own is None else {"resources": own}))
    few = summed(obj)
    assert few is not None
    assert figures(pod_from_object(few)) == figures(pod_from_object(obj))


@pytest.mark.parametrize("count", [MOST_CONTAINERS + 1, 20_000])
def test_a_pod_of_very_many_containers_takes_the_room_of_a_few(count: int) -> None:
    one = {"resources": {"requests": {"memory": "1Mi"}}}
    obj = a_large_pod([one] * (count - 2), [{**one, "restartPolicy": "Always"}, one])
    obj["status"]["containerStatuses"] = [
        {"name": f"c{i}", "containerID": f"containerd://{i:064x}", "allocatedResources": {"memory": "2Mi"}}
        for i in range(count - 2)
    ]
    found = read(obj)
    assert pod_request(found.pod, "memory").value >> 20 == 2 * (count - 2) + 1  # as they were granted
    assert (qos_class(found.pod), found.is_starting) == ("Burstable", False)
    assert len(json.dumps(pod_objects.kept(obj))) < 2000


def test_up_to_the_limit_each_is_kept() -> None:
    found = read(a_large_pod([{}] * (MOST_CONTAINERS - 1), [{}]))
    assert len(found.pod.containers) + len(found.pod.init_containers) == MOST_CONTAINERS
    assert not found.pod.containers_summed


def test_no_process_is_given_the_score_of_a_sum(tmp_path: Any) -> None:
    """It would be spared by the kernel's OOM killer more than any of them."""
    found = read(a_large_pod([{"resources": {"requests": {"memory": "1Mi"}}}] * 1000, []))
    assert pod_scores(FoundPod(found.pod, tmp_path, {}), 1 << 30) == {}
