"""`--evict-by api`: a refusal is of one pod, or of a namespace where a right is missing. It keeps no other pod."""

from __future__ import annotations

import pytest

from tests.kube import faults
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.test_api_evictions import Evictions, evictions

__all__ = ["evictions"]


def forbidden(namespace: str) -> str:
    """What the authorizer of an API server answers."""
    right = 'resource "pods/eviction" in API group ""'
    return (
        f'pods "a" is forbidden: User "system:serviceaccount:o:o" cannot create {right} in the namespace "{namespace}"'
    )


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        (403, "Forbidden", 'pods "a" is forbidden: unable to create new content in namespace default because it is'),
        (403, "Forbidden", 'admission webhook "w" denied the request: not today'),
        (403, "Forbidden", f'admission webhook "w" denied the request: {forbidden("default")}'),
        (
            403,
            "Forbidden",
            "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
        ),
        (403, "Forbidden", 'pods "a" is forbidden: exceeded quota: few'),
        (403, "", "Access denied by the proxy"),
        (400, "BadRequest", "admission webhook says no"),
        (422, "Invalid", "Eviction is invalid"),
        (500, "InternalError", 'failed calling webhook "w"'),
        (503, "ServiceUnavailable", "etcdserver: no leader"),
        (504, "Timeout", "request did not complete within the allotted timeout"),
        (429, "TooManyRequests", "too many requests"),
    ],
)
def test_a_pod_that_is_refused_for_ever_keeps_no_other(
    code: int, reason: str, message: str, evictions: Evictions, api: FakeApiServer
) -> None:
    """Of a webhook that refuses one pod outrace asked 28 times in 120 s, and evicted no pod."""
    for name in ("a", "b", "c"):
        evictions.add(name)
    api.fail(faults.status(code, reason, message), times=1000, path="/a/eviction")
    for _ in range(12):
        evictions.decide("a", "b", "c")
        evictions.after(10.0)
        if evictions.accepted and evictions.live == {"a", "b", "c"}:
            evictions.live.remove("b")
    asked = evictions.asked
    assert [one.name for one in evictions.accepted][:1] == ["default/b"]
    assert asked.index("b") == (3 if code in (503, 504, 429) else 1)
    assert asked.count("a") <= 12 * asked.index("b")


def test_one_question_tells_that_a_right_is_missing_in_a_namespace(
    capfd: pytest.CaptureFixture[str], evictions: Evictions, api: FakeApiServer
) -> None:
    """The rights of a RoleBinding are those of one namespace: pods of another are asked for in the same pass."""
    for name in ("a", "b", "c"):
        evictions.add(name)
    api.forbidden.add(("create", "pods/eviction"))
    for _ in range(3):
        evictions.decide("a", "b", "c")
        evictions.after(4.0)
    assert (evictions.asked, evictions.accepted) == (["a"], [])
    assert {one.pods for one in evictions.refused} == {("default/a", "default/b", "default/c")}
    logged = [line for line in capfd.readouterr().err.splitlines() if "no right to evict" in line]
    assert len(logged) == 1
    assert 'resources: [\\"pods/eviction\\"], verbs: [\\"create\\"]' in logged[0]
    evictions.add("d", namespace="shop")
    api.forbidden.clear()
    api.fail(faults.status(403, "Forbidden", forbidden("default")), times=1000, path="/namespaces/default/")
    evictions.clock.now += 10.0
    evictions.decide("a", "b", "c", "d")
    evictions.after(0.5)
    assert evictions.asked == ["a", "a", "d"]
    assert [one.name for one in evictions.accepted] == ["shop/d"]
