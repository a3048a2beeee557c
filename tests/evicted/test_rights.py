"""The chart's Deployment: its options are known, and its rights are those that are used."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from monitor.evicted.election import LeaderElector, Timing
from monitor.evicted.lease import LeaseLock
from monitor.evicted.selection import Criteria
from monitor.evicted.sweep import Sweep
from monitor.kube.client import ApiClient
from tests.evicted.made import evicted, put
from tests.kube.fake_apiserver import VERBS, FakeApiServer
from tests.kube.fake_http import Asked, Reply

CHART = Path(__file__).parents[2] / "deploy/helm/outrace"
TEMPLATE = (CHART / "templates/evicted.yaml").read_text()
RULE = re.compile(r"resources: \[(\w+)\][^\n]*\n(?: +resourceNames: [^\n]*\n)? +verbs: \[([\w, ]+)\]")


def test_the_chart_grants_what_is_used_and_no_more(
    api: FakeApiServer, client: ApiClient, stop: object, connect: Callable[..., ApiClient]
) -> None:
    granted = {(verb, resource) for resource, verbs in RULE.findall(TEMPLATE) for verb in verbs.split(", ")}
    assert granted == {("list", "pods"), ("delete", "pods"), *((v, "leases") for v in ("get", "create", "update"))}
    api.forbidden = {
        (verb, what) for verb in (*VERBS.values(), "list", "watch") for what in ("pods", "leases")
    } - granted
    used: set[tuple[str, str]] = set()

    def note(asked: Asked, _reply: Reply) -> bool:
        *_, last = asked.path.split("/")
        resource = next(name for name in ("pods", "leases") if name in asked.path)
        verb = "list" if asked.method == "GET" and last == resource else VERBS[asked.method]
        used.add((verb, resource))
        return False

    api.fail(note, times=99)
    put(api, evicted("a"))
    elector = LeaderElector(LeaseLock(client, "outrace", "evicted"), "one", Timing(), stop)  # type: ignore[arg-type]
    assert elector.acquire()
    assert elector.try_acquire_or_renew()
    sweep = Sweep(client, Criteria(), stop)  # type: ignore[arg-type]
    found = sweep.find()
    api.store.update(("pods", "default", "a"), lambda pod: {**pod, "spec": {**pod["spec"], "x": 1}})  # a second look
    assert sweep.delete(found.pods).outcomes["deleted"] == 1
    assert elector.release()
    assert used == granted
