"""The admission policies of deploy/: what a node's token may write, by evaluating their CEL as an API server would.

Those of the base; test_kubernetes.py has that the chart makes the same ones.
"""

from typing import Any

import pytest

from tests.deploy.test_kubernetes import base, by_name, chart, rights

celpy = pytest.importorskip("celpy", reason="no CEL here: pip install cel-python")

ACCOUNT = "system:serviceaccount:outrace:outrace"
NODE_NAME = "authentication.kubernetes.io/node-name"
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
Object = dict[str, Any]


def evaluate(expression: str, given: Object) -> bool | str:
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression))
    return program.evaluate({key: celpy.json_to_cel(value) for key, value in given.items()})


def matches(policy: Object, resource: str) -> bool:
    return any(resource in rule["resources"] for rule in policy["matchConstraints"]["resourceRules"])


def denied(objects: list[Object], request: Object, params: list[Object] | None = None, **given: Any) -> list[str]:
    """The messages of the validations that fail, as an API server evaluates each policy that a binding has."""
    found = by_name(objects)
    messages = list[str]()
    resource = "/".join(filter(None, (request["resource"]["resource"], request["subResource"])))
    for (kind, _), binding in found.items():
        if kind != BINDING:
            continue
        policy = found[POLICY, binding["spec"]["policyName"]]["spec"]
        assert (policy["failurePolicy"], binding["spec"]["validationActions"]) == ("Fail", ["Deny"])
        every: Object = {"object": None, "oldObject": None, **given, "request": request}
        if not matches(policy, resource) or not all(
            evaluate(c["expression"], every) for c in policy["matchConditions"]
        ):
            continue
        for param in (params or [None]) if "paramKind" in policy else [None]:
            for_this = {**every, "params": param}
            made: Object = {}
            for one in policy.get("variables", ()):
                value = evaluate(one["expression"], {**for_this, "variables": made})
                made[one["name"]] = value
            messages += [
                one["message"]
                for one in policy["validations"]
                if not evaluate(one["expression"], {**for_this, "variables": made})
            ]
    return messages


def asked(resource: str, name: str = "", node: str | None = "a", username: str = ACCOUNT) -> Object:
    plural, _, sub = resource.partition("/")
    user: Object = {"username": username}
    if node is not None:
        user["extra"] = {NODE_NAME: [node]}
    return {"resource": {"resource": plural}, "subResource": sub, "name": name, "userInfo": user}


def on(node: str | None, name: str = "web") -> Object:
    return {"metadata": {"name": name}, "spec": {"nodeName": node} if node else {"x": 1}}


@pytest.mark.parametrize(
    ("resource", "name", "given"),
    [
        ("pods/status", "web", lambda node: {"oldObject": on(node), "object": on("a")}),
        ("nodes/status", "", lambda _: {}),
        ("nodes", "", lambda _: {}),
        ("events", "web.1", lambda node: {"object": {"source": {"component": "outrace", "host": node}}}),
        ("pods/eviction", "web", lambda node: {"params": [on("a", "db"), on(node)]}),
    ],
)
def test_a_token_writes_to_its_own_node_alone(resource: str, name: str, given: Any) -> None:
    made = base()
    for node, allowed in (("a", True), ("b", False)):
        request = asked(resource, name or node)
        found = denied(made, request, **given(node))
        assert (found == []) == allowed, (node, found)
        if not allowed:
            assert "is not" in found[0]
        # A token that names no node (of a Secret, of Kubernetes before 1.30), and one of another account.
        nameless = denied(made, asked(resource, name or node, node=None), **given(node))
        assert "the token names no node" in nameless[0]
        other = asked(resource, name or node, node="c", username="system:serviceaccount:shop:outrace")
        assert denied(made, other, **given(node)) == []


def test_a_pod_that_is_on_no_node_is_not_written() -> None:
    assert denied(base(), asked("pods/status", "web"), oldObject=on(None), object=on("a"))
    assert denied(base(), asked("pods/eviction", "web"), params=[on(None)])


@pytest.mark.parametrize("resource", ["nodes", "nodes/status", "pods/status"])
def test_what_draws_pods_or_traffic_stays(resource: str) -> None:
    made, request = base(), asked(resource, "a")
    before = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["e"], "ownerReferences": [{"name": "f"}]}

    def found(metadata: Object) -> list[str]:
        spec = {"nodeName": "a", "taints": []}
        old, new = ({"metadata": {"name": "a", **one}, "spec": spec} for one in (before, metadata))
        return denied(made, request, oldObject=old, object=new)

    assert found(before) == []
    for key, value in before.items():
        for other in ({k: v for k, v in before.items() if k != key}, {**before, key: type(value)()}):
            assert "changes no labels" in found(other)[0]
    assert found({**before, "labels": {"a": "b", "app": "payments"}})


@pytest.mark.parametrize(
    ("resource", "status", "allowed"),
    [
        ("pods/status", {"phase": "Failed", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}, True),
        ("pods/status", {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.6.6.6"}]}, False),
        ("pods/status", {"podIP": "10.6.6.6", "podIPs": [{"ip": "10.0.0.1"}]}, False),
        ("pods/status", {}, False),
        ("nodes/status", {}, True),
        ("nodes/status", {"addresses": [{"type": "InternalIP", "address": "10.6.6.6"}]}, False),
        ("nodes/status", {"capacity": {"memory": "9Ti"}}, False),
        ("nodes/status", {"allocatable": {"memory": "9Ti"}}, False),
        ("nodes/status", {"daemonEndpoints": {"kubeletEndpoint": {"Port": 6666}}}, False),
        ("nodes/status", {"conditions": [{"type": "Ready", "status": "False"}]}, False),
        (
            "nodes/status",
            {"conditions": [{"type": "Ready", "status": "True"}, {"type": "outrace.io/Full", "status": "True"}]},
            True,
        ),
    ],
)
def test_of_a_status_its_own_parts_change(resource: str, status: Object, allowed: bool) -> None:
    spec = {"nodeName": "a"}
    before: Object = {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}
    if resource == "nodes/status":
        before = {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.2"}],
            "capacity": {"memory": "8Gi"},
            "allocatable": {"memory": "7Gi"},
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        status = before | status
    old, new = ({"metadata": {"name": "a"}, "spec": spec, "status": one} for one in (before, status))
    assert (denied(base(), asked(resource, "a"), oldObject=old, object=new) == []) == allowed


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"taints": [{"key": "a/b", "effect": "NoSchedule"}]}, True),
        ({"taints": [{"key": "a/b", "effect": "NoSchedule"}, {"key": "outrace.io/x", "effect": "NoSchedule"}]}, True),
        ({"taints": [{"key": "a/b", "effect": "NoExecute"}]}, False),
        ({"taints": [{"key": "outrace.io/x", "effect": "NoSchedule"}]}, False),
        ({}, False),
        ({"taints": [{"key": "a/b", "effect": "NoSchedule"}], "unschedulable": True}, False),
        ({"taints": [{"key": "a/b", "effect": "NoSchedule"}], "unschedulable": False}, True),
    ],
)
def test_only_taints_of_its_own_change(spec: Object, allowed: bool) -> None:
    old = {"metadata": {"name": "a"}, "spec": {"taints": [{"key": "a/b", "effect": "NoSchedule"}]}}
    found = denied(base(), asked("nodes", "a"), oldObject=old, object={"metadata": {"name": "a"}, "spec": spec})
    assert found == ([] if allowed else ["outrace changes its own taints alone"])


def test_events_are_about_the_node() -> None:
    made = base()
    for name, allowed in (("a", True), ("b", False)):
        event = {"source": {"host": "a"}, "involvedObject": {"kind": "Node", "name": name}}
        assert (denied(made, asked("events", "web.1"), object=event) == []) == allowed
    for event in ({}, {"source": {"component": "outrace"}}):
        assert denied(made, asked("events", "web.1"), object={"kind": "Event", **event})


@pytest.mark.parametrize("options", [("evictBy=api", "mode=enforce", "nodeTaints=own"), ("mode=hold",), ()])
def test_every_write_that_the_role_allows_is_looked_at(options: tuple[str, ...]) -> None:
    made = chart(*(word for option in options for word in ("--set", option)))
    writes = {name for name, verb in rights(made) if verb not in ("get", "list", "watch")}
    policy = by_name(made)[POLICY, "outrace-own-node"]["spec"]
    assert all(matches(policy, name) for name in writes)
    assert policy["matchConstraints"]["resourceRules"][0]["operations"] == ["*"]


def test_a_pod_that_is_evicted_has_to_be_known() -> None:
    """The binding gives every pod of the request's namespace; where there is none the request is refused."""
    for made in (base(), chart()):
        reference = by_name(made)[BINDING, "outrace-evictions"]["spec"]["paramRef"]
        assert reference == {"selector": {}, "parameterNotFoundAction": "Deny"}


def test_the_policies_concern_the_account_of_the_release() -> None:
    made = by_name(chart(release="other"))
    for name in ("other-own-node", "other-evictions"):
        (condition,) = made[POLICY, name]["spec"]["matchConditions"]
        assert condition["expression"] == 'request.userInfo.username == "system:serviceaccount:outrace:other"'
        assert made[BINDING, name]["spec"]["policyName"] == name


def test_the_job_deletes_what_is_evicted_alone() -> None:
    made = chart("--set", "evicted.enabled=true", "--set", "evicted.args={--older-than=24h}")
    request = asked("pods", "web", username=f"{ACCOUNT}-evicted")
    by_kubelet = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    low = {"message": "The node was low on resource: memory. "}
    for status, allowed in (
        ({"phase": "Failed", "reason": "Evicted"}, True),
        ({"phase": "Failed", "conditions": [{"type": "Ready", "status": "False"}, by_kubelet | low]}, True),
        ({"phase": "Failed", "reason": "", "conditions": [by_kubelet], **low}, True),
        ({"phase": "Failed", "conditions": [by_kubelet]}, False),
        ({"phase": "Failed", "conditions": [by_kubelet | {"message": "Preempted in order to admit"}]}, False),
        ({"phase": "Failed", "reason": "NodeLost", "conditions": [by_kubelet | low]}, False),
        ({"phase": "Failed", "conditions": [by_kubelet | low | {"reason": "PreemptionByScheduler"}]}, False),
        ({"phase": "Running"}, False),
        ({"phase": "Failed", "reason": "OOMKilled"}, False),
        ({}, False),
    ):
        found = denied(made, request, oldObject={"metadata": {"name": "web"}, "status": status})
        assert (found == []) == allowed, status
    assert denied(made, request, oldObject={"metadata": {"name": "web"}}) == ["this pod is not Evicted"]
