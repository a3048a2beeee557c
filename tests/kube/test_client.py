"""What the verbs send, and what they make of answers; test_contract.py has what an API server does with them."""

import json
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from monitor.kube import errors
from monitor.kube.client import EVENTS, NODES, PODS, ApiClient
from tests.kube import faults
from tests.kube.fake_apiserver import FakeApiServer, named, pod


@pytest.mark.parametrize(
    ("do", "kind", "after"),
    [
        (faults.status(429, "TooManyRequests", "too many", Retry_After="7"), errors.TooManyRequests, 7.0),
        (faults.status(503, "ServiceUnavailable", "shutting down", Retry_After="1"), errors.ServerError, 1.0),
        (faults.status(504, "Timeout", "slow", {"retryAfterSeconds": 3}), errors.ServerError, 3.0),
        (faults.text(502, "<html>Bad Gateway</html>"), errors.ServerError, None),
        (faults.text(503, "no endpoints", Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"), errors.ServerError, None),
        (faults.status(500, "InternalError", "etcdserver: leader changed"), errors.ServerError, None),
        (faults.text(302, "", Location="https://elsewhere/"), errors.ApiError, None),
        (faults.text(418, "[" * 5000), errors.ApiError, None),
    ],
)
def test_refusals_have_their_kind_and_retry_after(
    api: FakeApiServer, client: ApiClient, do: faults.Do, kind: type[errors.ApiError], after: float | None
) -> None:
    api.fail(do)
    with pytest.raises(errors.ApiError) as caught:
        client.get(PODS, "a", "default")
    assert type(caught.value) is kind
    assert caught.value.retry_after_s == after
    assert caught.value.code in (429, 500, 502, 503, 504, 302, 418)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "body", [b"\x00\xff<html>", b"", b"[]", b'"text"', b"[" * 100_000, b'{"a": 1', b'{"n": ' + b"9" * 5000 + b"}"]
)
def test_garbage_is_one_error(api: FakeApiServer, client: ApiClient, body: bytes) -> None:
    api.fail(faults.garbage(body), times=2)
    with pytest.raises(errors.InvalidResponse):
        client.get(PODS, "a", "default")
    with pytest.raises(errors.InvalidResponse):
        client.list(PODS, named)
    api.store.create("pods", pod("a"))
    assert client.list(PODS, named).items == ("a",)


def test_no_answer_is_read_beyond_its_budget(api: FakeApiServer, client: ApiClient) -> None:
    large = json.dumps({"metadata": {"name": "x" * (17 << 20)}}).encode()
    api.fail(faults.garbage(large), method="GET", path="/pods/")
    with pytest.raises(errors.ResponseTooLarge, match="more than 16777216 bytes"):
        client.get(PODS, "a", "default")


def test_paths_are_encoded(api: FakeApiServer, client: ApiClient) -> None:
    where = r"get pods default/a b/\.\./ä\?x"
    with pytest.raises(errors.NotFound, match=rf'^{where}: HTTP 404 NotFound: pods "a b" not found$'):
        client.get(PODS, "a b/../ä?x", "default")
    assert api.asked[-1].path == "/api/v1/namespaces/default/pods/a b/../ä?x"
    behind = ApiClient(replace(client.config, server=replace(client.config.server, prefix="/k8s/clusters/c-1")))
    with closing(behind), pytest.raises(errors.NotFound):
        behind.get(PODS, "a", "default")
    assert api.asked[-1].path == "/k8s/clusters/c-1/api/v1/namespaces/default/pods/a"
    assert EVENTS.path("x", "y") == "/api/v1/namespaces/x/events/y"
    assert NODES.path("ignored", "y") == "/api/v1/nodes/y"


MODULES = ("client", "cluster", "kubelet", "retry")
#: 2.7 MiB, 14 ms; what only a kubeconfig needs.
NOT_IN_A_POD = {"yaml", "subprocess", "monitor.kube.kubeconfig", "urllib.request", "asyncio"}


def test_in_a_pod_it_imports_nothing_that_it_does_not_need() -> None:
    code = f"import sys, {', '.join(f'monitor.kube.{name}' for name in MODULES)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & NOT_IN_A_POD == set()
