"""`--evict-by api`: the requests to the API server and their order; a refusal is of one pod or one namespace."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.kernel import cgroup_procs
from monitor.kube.client import ApiClient
from monitor.link.messages import Decision
from monitor.policy.pods import Pod
from monitor.race.events import Gone, Refused
from monitor.settings.config import RunConfig
from monitor.side.cluster import api_evictions
from monitor.side.cluster.api_evictions import ApiEvictions
from monitor.side.export.log import Log
from tests.daemon.harness import DECISION
from tests.kube import faults
from tests.kube.clock import WaitedClock
from tests.kube.fake_apiserver import FakeApiServer, pod

EVICTION = "/eviction"
SIGNAL = "memory.available"


class Evictions:
    """The evictor, its clock, and what came of it; `live` are the pods whose cgroup has processes."""

    def __init__(self, client: ApiClient, api: FakeApiServer) -> None:
        self.clock, self.api = WaitedClock(1000.0), api
        self.live: set[str] = set()
        self.reported: list[Any] = []
        # What `NodeState` has of the node, here of pods in the fake API server.
        met, self.log, self.disks = [{"signal": SIGNAL, "kind": "hard"}], Log(), SimpleNamespace(orders={})
        config = RunConfig(eviction_max_pod_grace_period_s=10)
        self.node: Any = SimpleNamespace(pods={}, config=config, met=met)
        about: Any = self.node, self.disks, self.reported.append, self.log
        self.evictions = ApiEvictions(client, *about, self.clock)
        self.outcomes = self.evictions.outcomes

    @property
    def accepted(self) -> list[Decision]:
        return [one for one in self.reported if isinstance(one, Decision)]

    @property
    def refused(self) -> list[Refused]:
        return [one for one in self.reported if isinstance(one, Refused)]

    @property
    def ended(self) -> list[str]:
        return [one.pod_name for one in self.reported if isinstance(one, Gone)]

    def add(
        self, name: str, grace_s: int | None = None, priority: int = 0, namespace: str = "default", **labels: str
    ) -> str:
        made = pod(name, namespace=namespace)
        made["metadata"]["labels"] = labels
        self.api.store.create("pods", made)
        uid = str(self.api.store.get(("pods", namespace, name))["metadata"]["uid"])
        spec = Pod(name=name, namespace=namespace, uid=uid, grace_period_s=grace_s, priority=priority)
        self.node.pods = {**self.node.pods, uid: SimpleNamespace(pod=spec, cgroup=Path(name))}
        self.live.add(name)
        return uid

    def keep(self, **labels: str) -> None:
        """A budget of these pods that allows no eviction."""
        budget = {"metadata": {"name": "kept", "namespace": "default"}, "spec": {"selector": {"matchLabels": labels}}}
        self.api.store.create("poddisruptionbudgets", budget)

    def decide(self, *names: str, kind: str = "hard", signal: str | None = SIGNAL, for_s: float = 0.5) -> None:
        """The order of eviction, first victim first; then so many seconds go by."""
        by_name = {found.pod.name: found.pod for found in self.node.pods.values()}
        pods = [by_name[name] for name in names]
        order = [(one.uid, one.namespace, one.name, 0, 0, 5, (one.priority or 0) > 2_000_000_000) for one in pods]
        first = {"pod": order[0][0], "name": f"default/{names[0]}", "order": order, "decided_ns": time.monotonic_ns()}
        self.evictions.decided(DECISION._replace(signal=signal, kind=kind, **first))
        self.after(for_s)

    def after(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while (wait_s := self.evictions.turn()) is not None and self.clock.now + wait_s <= until:
            self.clock.now += max(wait_s, 0.01)
        self.clock.now = max(self.clock.now, until)

    @property
    def asked(self) -> list[str]:
        return [one.path.split("/")[-2] for one in self.api.seen("POST", EVICTION)]


@pytest.fixture
def evictions(client: ApiClient, api: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> Evictions:
    made = Evictions(client, api)
    monkeypatch.setattr(cgroup_procs, "empty", lambda path: path.name not in made.live)
    return made


def test_the_first_is_asked_for_and_nobody_else_while_it_ends(evictions: Evictions, api: FakeApiServer) -> None:
    uid = evictions.add("hog")
    evictions.add("other")
    evictions.decide("hog", "other")
    [request] = api.seen("POST", EVICTION)
    options = request.json()["deleteOptions"]
    assert (options["preconditions"], options["gracePeriodSeconds"]) == ({"uid": uid}, 1)
    [accepted] = evictions.accepted
    assert (accepted.pod, accepted.observed, accepted.rank, accepted.given_s) == (uid, False, 1, 1)
    assert accepted.signalled_ns is not None
    evictions.decide("other", "hog", for_s=5.0)  # the same shortage still
    assert (evictions.asked, evictions.ended) == (["hog"], [])
    evictions.live.remove("hog")
    evictions.after(0.5)
    assert evictions.ended == ["default/hog"]
    evictions.after(5.0)
    assert evictions.asked == ["hog"]  # what was decided meanwhile is not true any more
    evictions.decide("other")
    assert evictions.asked == ["hog", "other"]


def test_a_budget_leads_to_the_next_candidate_and_never_to_a_critical_pod(evictions: Evictions) -> None:
    evictions.add("db", app="db")
    evictions.add("system", priority=2_000_001_000)
    evictions.add("web")
    evictions.keep(app="db")
    evictions.decide("db", "system", "web")
    assert evictions.asked == ["db", "web"]
    assert (evictions.outcomes["budget"], evictions.outcomes["accepted"]) == (1, 1)
    [accepted] = evictions.accepted
    assert (accepted.name, accepted.rank, accepted.working_set) == ("default/web", 2, 5)
    assert "deletionTimestamp" not in evictions.api.store.get(("pods", "default", "db"))["metadata"]
    [refused] = evictions.refused
    assert (refused.pods, refused.budget, refused.instead) == (("default/db",), True, "default/web")
    assert "disruption budget" in refused.problem


def test_where_budgets_keep_all_nobody_is_evicted_and_they_are_asked_every_10_s(evictions: Evictions) -> None:
    for name in ("a", "b"):
        evictions.add(name, app="db")
    evictions.keep(app="db")
    for _ in range(3):
        evictions.decide("a", "b", for_s=4.0)
    assert evictions.asked == ["a", "b"]
    assert evictions.accepted == []
    evictions.decide("a", "b", for_s=1.0)
    assert evictions.asked == ["a", "b", "a", "b"]
    assert {(one.pods, one.instead) for one in evictions.refused} == {(("default/a", "default/b"), None)}


@pytest.mark.parametrize("how", ["gone", "anew"])
@pytest.mark.parametrize("runs_on", [False, True])
def test_one_that_is_gone_or_made_anew_is_not_touched(
    how: str, runs_on: bool, evictions: Evictions, api: FakeApiServer
) -> None:
    """Its memory comes back: no pod is evicted for it. Where its processes run on, the next candidate is."""
    evictions.add("hog")
    evictions.add("other")
    api.store.delete(("pods", "default", "hog"))
    if how == "anew":
        api.store.create("pods", pod("hog"))
    if not runs_on:
        evictions.live.remove("hog")
    evictions.decide("hog", "other", for_s=1.0)
    assert (evictions.asked, evictions.outcomes["gone"]) == (["hog", "other"] if runs_on else ["hog"], 1)
    assert len(evictions.accepted) == runs_on
    if how == "anew":
        assert "deletionTimestamp" not in api.store.get(("pods", "default", "hog"))["metadata"]


@pytest.mark.parametrize("is_over", [False, True])
def test_while_the_server_is_away_the_same_pod_is_asked_for_again_and_for_no_shortage_that_is_over(
    is_over: bool, evictions: Evictions, api: FakeApiServer
) -> None:
    evictions.add("hog")
    evictions.add("other")
    api.refuse()
    evictions.decide("hog", "other", for_s=4.0)
    assert evictions.outcomes["away"] > 1
    if is_over:
        evictions.node.met = []
    api.listen()
    evictions.after(10.0)
    assert evictions.asked == ([] if is_over else ["hog"])


@pytest.mark.parametrize("after_s", [10.0, 20.0])
def test_a_refusal_that_took_long_leads_to_nobody_where_the_shortage_is_over(
    after_s: float, evictions: Evictions, api: FakeApiServer
) -> None:
    """Of a contended budget the API server answers after 10 s: by then the state has what holds, or all is too old."""
    evictions.add("db")
    evictions.add("web")
    refuse = faults.status(500, "InternalError")

    def answer_late(*asked: Any) -> Any:
        evictions.clock.now += after_s
        evictions.node.met = [] if after_s < api_evictions._FRESH_S else evictions.node.met
        return refuse(*asked)

    api.fail(answer_late, path="/db/eviction")
    evictions.decide("db", "web", for_s=1.0)
    assert (evictions.asked, evictions.accepted) == (["db"], [])


@pytest.mark.parametrize(("own", "most", "given"), [(None, 10, 10), (4, 10, 4), (60, 10, 10), (0, 10, 1), (45, 60, 45)])
def test_the_grace_of_a_soft_threshold(
    own: int | None, most: int, given: int, evictions: Evictions, api: FakeApiServer
) -> None:
    evictions.node.config = RunConfig(eviction_max_pod_grace_period_s=most)
    evictions.node.met = [{"signal": SIGNAL, "kind": "soft"}]
    evictions.add("hog", grace_s=own)
    evictions.decide("hog", kind="soft")
    assert api.seen("POST", EVICTION)[0].json()["deleteOptions"]["gracePeriodSeconds"] == given


def test_one_that_does_not_end_does_not_hold_up_the_next_for_ever(evictions: Evictions) -> None:
    evictions.add("stuck")
    evictions.add("other")
    evictions.decide("stuck", "other", for_s=api_evictions.TIMEOUT_S - 1.0)
    evictions.decide("other", "stuck", for_s=1.0)
    assert evictions.asked == ["stuck"]
    evictions.after(2.0)
    evictions.decide("other", for_s=1.0)
    assert (evictions.asked, evictions.ended) == (["stuck", "other"], [])


def test_what_waits_is_bounded(evictions: Evictions) -> None:
    for number in range(200):
        evictions.evictions.decided(DECISION._replace(signal=None, kind="limit", pod=str(number)))
    assert len(evictions.evictions._waiting) == api_evictions._MOST


def test_disks_have_their_own_order_and_a_limit_of_its_own_has_one_pod(evictions: Evictions) -> None:
    kept = evictions.add("full", app="db")
    evictions.disks.orders = {"nodefs.available": [kept, evictions.add("next")]}
    evictions.add("small")
    evictions.keep(app="db")
    evictions.decide("full", "small", signal=None, kind="limit")
    assert evictions.asked == ["full"]
    evictions.clock.now += 11.0
    evictions.decide("full", "small", signal="nodefs.available")
    assert evictions.asked == ["full", "full", "next"]


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
        (403, "Forbidden", "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request"),
        (403, "Forbidden", 'pods "a" is forbidden: exceeded quota: few'),
        (403, "", "Access denied by the proxy"),
        (400, "BadRequest", "admission webhook says no"),
        (500, "InternalError", 'failed calling webhook "w"'),
        (504, "Timeout", "request did not complete within the allotted timeout"),
        (429, "TooManyRequests", "too many requests"),
    ],
)
def test_a_pod_that_is_refused_for_ever_keeps_no_other(
    code: int, reason: str, message: str, evictions: Evictions, api: FakeApiServer
) -> None:
    for name in ("a", "b", "c"):
        evictions.add(name)
    api.fail(faults.status(code, reason, message), times=1000, path="/a/eviction")
    for _ in range(12):
        evictions.decide("a", "b", "c", for_s=10.0)
        if evictions.accepted and evictions.live == {"a", "b", "c"}:
            evictions.live.remove("b")
    asked = evictions.asked
    assert [one.name for one in evictions.accepted][:1] == ["default/b"]
    assert asked.index("b") == (3 if code in (504, 429) else 1)
    assert asked.count("a") <= 12 * asked.index("b")


def test_a_right_that_is_missing_in_a_namespace_is_named_and_pods_of_another_are_asked_for(
    capfd: pytest.CaptureFixture[str], evictions: Evictions, api: FakeApiServer
) -> None:
    """The rights of a RoleBinding are those of one namespace."""
    for name in ("a", "b"):
        evictions.add(name)
    evictions.add("c", namespace="shop")
    api.fail(faults.status(403, "Forbidden", forbidden("default")), times=1000, path="/namespaces/default/")
    evictions.decide("a", "b", "c")
    assert evictions.asked == ["a", "b", "c"]
    assert [one.name for one in evictions.accepted] == ["shop/c"]
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "refuses to evict" in line]
    assert 'resources: [\\"pods/eviction\\"], verbs: [\\"create\\"]' in line
