"""What operators wrote about services and containers, as a pod of the policy."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.explain import why_class, why_critical, why_request
from monitor.policy.pods import Pod
from monitor.policy.qos import MOST_PRIORITY, is_critical
from monitor.policy.releases import ERAS, era
from monitor.policy.services import GRACE, LABELS, NEVER, PRIORITY, REQUEST, Facts, service_pod

MI = 1 << 20
FACTS = Facts("u", "system", "batch.service", score=0)


def made(rules: dict[str, dict[str, Any]] | None = None, **facts: Any) -> Pod:
    return service_pod(replace(FACTS, **facts), rules or {})


def test_what_nobody_wrote_is_zero_and_may_go() -> None:
    pod = made()
    assert (pod.known_priority, pod.qos_class_status, is_critical(pod)) == (0, "BestEffort", False)
    assert why_request(pod) == "0: no MemoryMin=, MemoryLow=, reservation or label"
    assert why_class(pod) == "it has neither a memory request nor a limit"


@pytest.mark.parametrize("name", ERAS)
def test_the_request_counts_in_every_release(name: str) -> None:
    assert era(name).request(made(request=64 * MI), "memory").value == 64 * MI


@pytest.mark.parametrize(
    ("facts", "priority"),
    [
        ({"score": -500}, 500),
        ({"score": 300}, -300),
        ({"score": 200, "user": True}, 0),  # what systemd gives a user's units by itself
        ({"score": 500, "user": True}, -300),
        ({"score": -500, "preference": "avoid"}, MOST_PRIORITY),
        ({"score": 300, "labels": {PRIORITY: "7"}}, 7),
    ],
)
def test_priorities(facts: dict[str, Any], priority: int) -> None:
    assert made(**facts).priority == priority


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"score": -1000}, "OOMScoreAdjust=-1000"), ({"score": None}, "not known yet"), ({"labels": None}, "not known"),
        ({"labels": {NEVER: "true"}}, f"label {NEVER}"), ({"labels": {NEVER: "perhaps"}}, "is not true or false"),
        ({"labels": {PRIORITY: "high"}}, "no whole number"), ({"labels": {REQUEST: "lots"}}, "no quantity"),
        ({"labels": {GRACE: "soon"}}, "no duration of whole seconds"),
        ({"labels": {GRACE: "1e9h"}}, "no duration of whole seconds"),
        ({"labels": {GRACE: "0s" * 40 + "1s"}}, "no duration of whole seconds"),
        ({"preference": "omit"}, "ManagedOOMPreference=omit"),
        ({"protected": "the machine runs on it"}, "the machine runs on it"),
        ({"vital": "it holds process 1"}, "it holds process 1"),
    ],
)  # fmt: skip
def test_who_is_never_evicted_and_why(facts: dict[str, Any], why: str) -> None:
    pod = made(**facts)
    assert is_critical(pod)
    assert why in why_critical(pod)


def test_the_table_is_above_all_but_what_the_machine_runs_on() -> None:
    rules: dict[str, dict[str, Any]] = {
        "system/batch*": {"priority": -5, "request": MI, "never": False},
        "*": {"never": True},
    }
    pod = made(rules, score=-1000, protected="by its name", labels=None, request=9 * MI)
    assert (pod.priority, is_critical(pod)) == (-5, False)
    assert why_request(pod) == "1Mi: services: system/batch*"
    assert why_critical(made(rules, vital="it holds sshd")) == "it holds sshd"
    assert why_critical(made(rules, name="other.service")) == "services: *: never"


@pytest.mark.parametrize(
    ("rules", "labels", "grace"),
    [
        ({}, {}, "30 s: as for a pod that names none"),
        ({}, {GRACE: "2m"}, f"120 s: label {GRACE}"),
        ({"*": {"grace": 90}}, {GRACE: "2m"}, "90 s: services: *"),
    ],
)
def test_graces(rules: dict[str, dict[str, Any]], labels: dict[str, str], grace: str) -> None:
    pod = made(rules, labels=labels)
    assert pod.written["grace"] == grace
    assert f"{pod.grace_period_s} s" == grace.partition(":")[0]


def test_patterns_have_a_name_or_an_alias() -> None:
    rules = {"app-fire-fox*": {"priority": 1}, "user-1000/app-*": {"priority": 2}}
    facts = {"name": "app-fire\\x2dfox.scope", "aliases": ("app-fire-fox.scope",)}
    assert made(rules, **facts).priority == 1
    # A user's unit is named by the user: a pattern without the user's name does not match it.
    assert made(rules, namespace="user-1000", user=True, **facts).priority == 2


@given(st.sampled_from(LABELS), st.text(max_size=30))
def test_any_label_has_a_meaning_or_forbids_it(name: str, value: str) -> None:
    pod = made(labels={name: value})
    if not is_critical(pod):
        assert value == "false" if name == NEVER else f"label {name}" in pod.written[name.removeprefix("outrace/")]
    assert pod.priority <= MOST_PRIORITY
