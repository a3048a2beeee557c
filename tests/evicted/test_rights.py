"""The chart's CronJob: its rights are those that are used."""

import re
from collections.abc import Callable
from pathlib import Path

from monitor.evicted.sweep import Criteria, Sweep
from monitor.kube.client import ApiClient
from tests.evicted.made import evicted, put
from tests.kube.fake_apiserver import VERBS, FakeApiServer
from tests.kube.fake_http import Asked, Reply

CHART = Path(__file__).parents[2] / "deploy/helm/outrace"
TEMPLATE = (CHART / "templates/evicted.yaml").read_text()
RULE = re.compile(r"resources: \[(\w+)\][^\n]*\n(?: +resourceNames: [^\n]*\n)? +verbs: \[([\w, ]+)\]")


def test_the_chart_grants_what_is_used_and_no_more(
    api: FakeApiServer, client: ApiClient, connect: Callable[..., ApiClient]
) -> None:
    granted = {(verb, resource) for resource, verbs in RULE.findall(TEMPLATE) for verb in verbs.split(", ")}
    assert granted == {("list", "pods"), ("delete", "pods")}
    api.forbidden = {(verb, "pods") for verb in (*VERBS.values(), "list", "watch")} - granted
    used: set[tuple[str, str]] = set()

    def note(asked: Asked, _reply: Reply) -> bool:
        *_, last = asked.path.split("/")
        used.add(("list" if asked.method == "GET" and last == "pods" else VERBS[asked.method], "pods"))
        return False

    api.fail(note, times=99)
    put(api, evicted("a"))
    sweep = Sweep(client, Criteria())
    found = sweep.find()
    assert sweep.delete(found.pods).outcomes["deleted"] == 1
    assert used == granted
