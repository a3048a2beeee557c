"""Reading pods, their requests, and what follows from them: classes, scores, messages."""

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.pods import pod_from_object, stable_uid
from monitor.policy.quantity import PolicyError
from monitor.policy.resources import pod_limit, with_gate_off
from tests.policy.builders import container, pod


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
        ({"metadata": {"name": "p"}, "spec": {"priority": True}},
         "spec.priority: must be a whole number, not a boolean"),
        ({"metadata": {"name": "p"}, "spec": {"containers": {}}}, "spec.containers: must be a list, not a map"),
        ({"metadata": {"name": "p"}, "spec": {"initContainers": ["x"]}},
         "spec.initContainers[0]: must be a map, not text"),
        ({"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"requests": {"memory": "1Xi"}}}]}},
         "spec.containers[0].resources.requests.memory: quantities must match"),
        ({"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"limits": {"memory": [1]}}}]}},
         "spec.containers[0].resources.limits.memory: must be a quantity such as 100Mi, not a list"),
        ({"metadata": {"name": "p"}, "spec": {"overhead": {"memory": ""}}}, "spec.overhead.memory: quantities must"),
        ({"metadata": {"name": "p"}, "spec": {"overhead": {"memory": 10**5000}}}, "spec.overhead.memory: "),
        ({"metadata": {"name": "p"}, "spec": {"tolerations": [{"key": 1}]}}, "spec.tolerations[0].key: must be text"),
    ],
)  # fmt: skip
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
        with suppress(PolicyError):
            pod_from_object(given_object)


def test_the_limit_of_a_whole_pod_and_its_spelling() -> None:
    one = pod("a", container(limits={"ephemeral-storage": "1024Mi"}))
    assert (str(pod_limit(one, "ephemeral-storage")), pod_limit(pod("b"), "ephemeral-storage")) == ("1Gi", None)
    whole = pod("c", container(limits={"memory": "5"}), resources={"limits": {"memory": "9"}})
    assert [str(pod_limit(one, "memory")) for one in (whole, with_gate_off(whole))] == ["9", "5"]
