"""Reading pods, their requests, and what follows from them: classes, scores, messages."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.oom_score import oom_score_adj
from monitor.policy.pods import Pod, pod_from_object, stable_uid
from monitor.policy.qos import is_critical, qos_class
from monitor.policy.quantity import PolicyError, Quantity

GI = 2**30


def make(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **spec: Any) -> Pod:
    spec |= {"containers": list(containers), "initContainers": list(init)}
    return pod_from_object({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec})


def asks(name: str, memory: object = None, limit: object = None, **more: Any) -> dict[str, Any]:
    requests = {} if memory is None else {"memory": memory}
    return {
        "name": name,
        "resources": {"requests": requests, "limits": {} if limit is None else {"memory": limit}},
        **more,
    }


def test_a_bare_pod() -> None:
    pod = pod_from_object({"metadata": {"name": "p"}})
    assert (pod.namespace, pod.containers, pod.resources, pod.priority) == ("default", (), None, None)
    assert pod.uid == stable_uid("default", "p")
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", pod.uid)


def test_stable_uids_differ_and_last() -> None:
    assert stable_uid("a", "b") == "c14cddc0-33f6-4b9d-ea80-ea675cf280a0"  # SHA-256 of "a/b"
    assert len({stable_uid(ns, name) for ns in ("a", "b", "ab") for name in ("a", "b", "c", "bc")}) == 12


def test_every_name_of_a_cgroup_has_a_uid_of_its_own() -> None:
    """Names are bytes there: what is no UTF-8 comes as half of a surrogate pair (os.fsdecode)."""
    names = ["\x1b", "\\x1b", "\xff", "\udcff", "\\xff", "\udcc3\udcbf", "\ud83d\ude00", "\U0001f600"]
    assert len({stable_uid("user-1000", name) for name in names}) == len(names)


def test_numbers_and_spaces_are_quantities_too() -> None:
    pod = make(asks("a", 1073741824), asks("b", " 1Gi "), asks("c", 0.5), asks("d", None))
    assert [c.requests.get("memory") for c in pod.containers] == [
        Quantity.of_bytes(GI),
        Quantity.of_bytes(GI),
        Quantity.parse("500m"),
        None,
    ]


@pytest.mark.parametrize(
    ("obj", "key"),
    [
        ([], "a Pod is a map of keys, not a list"),
        ({"kind": "Deployment"}, "kind: 'Deployment' is not a Pod"),
        ({}, "metadata.name: missing"),
        ({"metadata": "x"}, "metadata: must be a map, not text"),
        ({"metadata": {"name": 5}}, "metadata.name: must be text (put it in quotes), not a number"),
        ({"metadata": {"name": "p", "annotations": {"a": 1}}}, "metadata.annotations.a: must be text"),
        ({"metadata": {"name": "p"}, "spec": {"priority": "high"}}, "spec.priority: must be a whole number, not text"),
        (
            {"metadata": {"name": "p"}, "spec": {"priority": True}},
            "spec.priority: must be a whole number, not a boolean",
        ),
        ({"metadata": {"name": "p"}, "spec": {"containers": {}}}, "spec.containers: must be a list, not a map"),
        (
            {"metadata": {"name": "p"}, "spec": {"initContainers": ["x"]}},
            "spec.initContainers[0]: must be a map, not text",
        ),
        (
            {"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"requests": {"memory": "1Xi"}}}]}},
            "spec.containers[0].resources.requests.memory: quantities must match",
        ),
        (
            {"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"limits": {"memory": [1]}}}]}},
            "spec.containers[0].resources.limits.memory: must be a quantity such as 100Mi, not a list",
        ),
        ({"metadata": {"name": "p"}, "spec": {"overhead": {"memory": ""}}}, "spec.overhead.memory: quantities must"),
        ({"metadata": {"name": "p"}, "spec": {"overhead": {"memory": 10**5000}}}, "spec.overhead.memory: "),
        ({"metadata": {"name": "p"}, "spec": {"tolerations": [{"key": 1}]}}, "spec.tolerations[0].key: must be text"),
    ],
)
def test_refusals_name_the_key(obj: Any, key: str) -> None:
    with pytest.raises(PolicyError) as caught:
        pod_from_object(obj)
    assert str(caught.value).startswith(key)


KEYS = [
    *("metadata", "spec", "status", "name", "uid", "annotations", "containers", "initContainers"),
    *("tolerations", "key", "priority", "resources", "requests", "limits", "memory", "overhead"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, JSON)
def test_nothing_but_policy_error_on_arbitrary_objects(obj: Any, spec: Any) -> None:
    for given_object in (obj, {"metadata": {"name": "p"}, "spec": spec}):
        try:
            pod_from_object(given_object)
        except PolicyError:
            pass


def both(cpu: str, memory: str) -> dict[str, Any]:
    return {"cpu": cpu, "memory": memory}


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"requests": both("0", "0")}, "BestEffort"),
        ({"requests": {"ephemeral-storage": "1Gi"}, "limits": {"vendor/gpu": "1"}}, "BestEffort"),
        ({"requests": {"memory": "1"}}, "Burstable"),
        ({"limits": both("1", "1Gi")}, "Burstable"),  # the kubelet does not fill in requests
        ({"requests": both("1", "1Gi"), "limits": both("1", "1024Mi")}, "Guaranteed"),
        ({"requests": both("1", "1Gi"), "limits": both("2", "1Gi")}, "Burstable"),
        ({"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}, "Burstable"),
    ],
)
def test_qos_class(resources: dict[str, Any], quality: str) -> None:
    assert qos_class(make({"name": "a", "resources": resources})) == quality
    assert qos_class(make({"name": "a"}, resources=resources)) == quality  # the same at pod level


def test_critical_pods() -> None:
    def pod(annotations: dict[str, str], **spec: Any) -> Pod:
        return pod_from_object({"metadata": {"name": "p", "annotations": annotations}, "spec": spec})

    assert not is_critical(pod({}, priority=1_999_999_999, priorityClassName="system-node-critical"))
    assert is_critical(pod({}, priority=2_000_000_000))
    assert is_critical(pod({"kubernetes.io/config.source": ""}))
    assert not is_critical(pod({"kubernetes.io/config.source": "api"}))
    assert is_critical(pod({"kubernetes.io/config.mirror": ""}))


def test_oom_scores() -> None:
    capacity = 10 * GI
    assert oom_score_adj(make(asks("a", "4Gi")), "a", capacity) == 600
    assert oom_score_adj(make(asks("a", "1")), "a", capacity) == 999
    assert oom_score_adj(make(asks("a", "10Gi")), "a", capacity) == 3
    assert oom_score_adj(make(asks("a")), "a", capacity) == 1000
    critical = {"priority": 2_000_001_000, "priorityClassName": "system-node-critical"}
    assert oom_score_adj(make(asks("a", "1"), **critical), "a", capacity) == -997  # whatever its class
    assert oom_score_adj(make(asks("a", "1"), **critical | {"priority": 1}), "a", capacity) == 999
    with pytest.raises(PolicyError, match="pod ns/p has no container 'x'"):
        oom_score_adj(make(asks("a")), "x", capacity)


@given(st.integers(0, 2**40), st.integers(1, 2**40), st.integers(0, 2**40))
def test_a_sidecar_is_never_killed_before_what_it_serves(side: int, request: int, capacity: int) -> None:
    pod = make(asks("a", request), init=(asks("s", side, restartPolicy="Always"),))
    assert oom_score_adj(pod, "s", capacity + 1) <= oom_score_adj(pod, "a", capacity + 1)
    assert 3 <= oom_score_adj(pod, "a", capacity + 1) <= 999
