"""Leader election against the fake API server, on clocks of its own; with KUBECONFIG also against a real one."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator

import pytest

from monitor.errors import ConfigError
from monitor.evicted.election import LeaderElector, Timing
from monitor.evicted.lease import LeaseLock, Record, micro_time, record_of, spec_of
from monitor.kube.client import ApiClient
from monitor.kube.errors import Conflict
from tests.kube import faults
from tests.kube.clock import WaitedClock
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_http import Asked, Reply

KEY = ("leases", "outrace", "evicted")


class Candidate:
    """An elector whose waits move its clock; after ``turns`` of them it is asked to stop."""

    def __init__(self, client: ApiClient, name: str, skew_s: float = 0.0) -> None:
        self.clock = WaitedClock()
        self.logged: list[str] = []
        self.stop = threading.Event()
        self.turns = 1000
        self.elector = LeaderElector(
            LeaseLock(client, KEY[1], KEY[2]),
            name,
            Timing(),
            self.stop,
            log_line=self.logged.append,
            failed=self.logged.append,
            clock=self.clock,
            now=lambda: 1.7e9 + skew_s + self.clock.now,
            wait=self.wait,
            chance=lambda: 0.5,
        )

    def wait(self, seconds: float) -> None:
        self.clock.wait(seconds)
        self.turns -= 1
        if self.turns <= 0:
            self.stop.set()

    def tries(self) -> bool:
        return self.elector.try_acquire_or_renew()


@pytest.fixture
def candidate(client: ApiClient) -> Callable[..., Candidate]:
    def candidate(name: str, skew_s: float = 0.0) -> Candidate:
        return Candidate(client, name, skew_s)

    return candidate


Make = Callable[..., Candidate]


def lease(api: FakeApiServer) -> Record:
    return record_of(api.store.get(KEY))


def test_the_first_one_makes_the_lease(api: FakeApiServer, candidate: Make) -> None:
    one = candidate("one")
    assert one.elector.acquire()
    assert one.elector.is_leader
    assert one.elector.may_act()
    assert lease(api) == Record("one", 15, micro_time(1.7e9), micro_time(1.7e9), 0)
    assert one.logged == ["waiting for the lease outrace/evicted", "the lease outrace/evicted is held by this one"]


def test_a_renewal_is_one_request_and_keeps_the_time_of_acquisition(api: FakeApiServer, candidate: Make) -> None:
    one = candidate("one")
    one.tries()
    count = len(api.asked)
    one.clock.wait(2.0)
    assert one.tries()
    assert [asked.method for asked in api.asked[count:]] == ["PUT"]
    assert lease(api) == Record("one", 15, micro_time(1.7e9), micro_time(1.7e9 + 2), 0)


@pytest.mark.parametrize("skew_s", [0.0, -1e6, 1e6])
def test_another_one_waits_for_a_whole_lease_since_the_last_change_it_saw(
    api: FakeApiServer, candidate: Make, skew_s: float
) -> None:
    """Whatever the clocks show."""
    one, two = candidate("one"), candidate("two", skew_s)
    one.tries()
    assert not two.tries()
    two.clock.wait(14.9)
    assert not two.tries()
    one.clock.wait(9.0)
    one.tries()
    two.clock.wait(1.0)
    assert not two.tries()  # it changed: the time begins anew
    two.clock.wait(14.9)
    assert not two.tries()
    two.clock.wait(0.2)
    assert two.tries()
    assert (lease(api).holder, lease(api).transitions) == ("two", 1)


def test_who_lost_it_sees_that_and_does_not_take_it_back(api: FakeApiServer, candidate: Make) -> None:
    one, two = candidate("one"), candidate("two")
    one.tries()
    two.tries()
    two.clock.wait(15.1)
    assert two.tries()
    one.clock.wait(2.0)
    assert not one.tries()
    assert not one.elector.is_leader
    assert not one.elector.may_act()
    assert one.elector.leader == "two"


def test_of_two_that_try_at_once_one_gets_it(api: FakeApiServer, candidate: Make) -> None:
    one, two, three = candidate("one"), candidate("two"), candidate("three")
    one.tries()
    for each in (two, three):
        each.tries()
        each.clock.wait(15.1)
    late: list[bool] = []

    def meanwhile(asked: Asked, _reply: Reply) -> bool:
        if not late:
            late.append(True)
            late.append(three.tries())
        return False

    api.fail(meanwhile, times=9, method="PUT")
    assert not two.tries()  # 409: three was between its look and its update
    assert late == [True, True]
    assert lease(api).holder == "three"


def test_a_leader_that_cannot_renew_stops_before_another_one_begins(api: FakeApiServer, candidate: Make) -> None:
    one = candidate("one")
    one.elector.acquire()
    api.fail(faults.status(500, "InternalError", "no quorum"), times=10_000)
    one.elector.renew()
    assert 8.0 <= one.clock.now <= 10.0
    assert one.logged[-1] == "lost the lease outrace/evicted: not renewed for 10 s"
    assert sum("no quorum" in line for line in one.logged) == 1
    one.elector.forget()
    assert not one.elector.is_leader


def test_a_renewal_that_hangs_ends_the_right_to_act(candidate: Make) -> None:
    one = candidate("one")
    one.tries()
    one.clock.wait(9.9)
    assert one.elector.may_act()
    one.clock.wait(0.1)
    assert not one.elector.may_act()
    assert one.elector.is_leader  # for all that it knows


def test_failures_that_pass_are_survived(api: FakeApiServer, candidate: Make) -> None:
    one = candidate("one")
    one.elector.acquire()
    one.turns = 6
    api.fail(faults.status(429, "TooManyRequests"), times=3)
    one.elector.renew()
    assert one.stop.is_set()
    assert one.elector.is_leader
    assert lease(api).transitions == 0


def test_a_lease_that_was_deleted_is_made_anew(api: FakeApiServer, candidate: Make) -> None:
    one = candidate("one")
    one.tries()
    api.store.delete(KEY)
    assert one.tries()
    assert lease(api).holder == "one"


def test_released_another_one_has_it_at_once(api: FakeApiServer, candidate: Make) -> None:
    one, two = candidate("one"), candidate("two")
    one.tries()
    two.tries()
    assert one.elector.release()
    assert lease(api).holder == ""
    assert lease(api).duration_s == 1
    assert not one.elector.is_leader
    assert two.tries()
    assert lease(api).transitions == 1


def test_nobody_releases_what_another_one_holds(api: FakeApiServer, candidate: Make) -> None:
    one, two = candidate("one"), candidate("two")
    one.tries()
    two.tries()
    two.clock.wait(15.1)
    two.tries()
    assert one.elector.release()
    assert lease(api).holder == "two"


def test_a_release_that_fails_is_logged(api: FakeApiServer, candidate: Make) -> None:
    one = candidate("one")
    one.tries()
    api.fail(faults.status(503, "ServiceUnavailable"), times=9)
    assert not one.elector.release()
    assert "was not released, and ends by itself" in one.logged[-1]


def test_the_rule_that_is_missing_is_named(api: FakeApiServer, candidate: Make) -> None:
    one = candidate("one")
    api.forbidden.add(("create", "leases"))
    one.turns = 3
    assert not one.elector.acquire()
    assert '{apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["create"]}' in one.logged[1]
    assert len(one.logged) == 2  # the same is logged once


def test_waits_are_spread(candidate: Make) -> None:
    one, two = candidate("one"), candidate("two")
    one.tries()
    two.turns = 2
    two.elector.acquire()
    assert two.clock.waits == [pytest.approx(2.0 * (1 + 1.2 * 0.5))] * 2


def test_overdue_is_known(candidate: Make) -> None:
    one = candidate("one")
    one.tries()
    one.clock.wait(15.0)
    assert one.elector.overdue_s() == 0.0
    one.clock.wait(21.0)
    assert one.elector.overdue_s() == 21.0


def test_what_belongs_to_the_lease_of_another_tool_stays(api: FakeApiServer, candidate: Make) -> None:
    metadata = {"name": KEY[2], "namespace": KEY[1], "labels": {"mine": "1"}}
    api.store.create("leases", {"metadata": metadata, "spec": {"holderIdentity": None}})
    assert candidate("one").tries()
    assert api.store.get(KEY)["metadata"]["labels"] == {"mine": "1"}


@pytest.mark.parametrize("made", [{}, {"spec": None}, {"spec": {"holderIdentity": 3, "leaseDurationSeconds": "x"}}])
def test_a_lease_of_any_shape_is_read(made: dict[str, object]) -> None:
    assert record_of(made) == Record()


@pytest.mark.parametrize(
    ("timing", "problem"),
    [
        (Timing(0.5, 0.3, 0.1), "whole seconds"),
        (Timing(15.0, 15.0, 2.0), "must be greater than --leader-elect-renew-deadline"),
        (Timing(15.0, 10.0, 9.0), "must be greater than 1.2 times"),
        (Timing(15.0, 10.0, 0.0), "must be more than 0"),
    ],
)
def test_timing_is_checked_as_client_go_does(timing: Timing, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        timing.check()


def test_times_are_micro_times() -> None:
    assert micro_time(1.7e9 + 0.25) == "2023-11-14T22:13:20.250000Z"
    assert set(spec_of(Record())) == {
        *("holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions")
    }


@pytest.fixture
def real(connect: Callable[..., ApiClient]) -> Iterator[LeaseLock]:
    from monitor.kube.kubeconfig import default_paths, load
    from monitor.kube.resources import LEASES

    client = connect(load(default_paths()))
    name = f"outrace-test-{uuid.uuid4().hex[:8]}"
    yield LeaseLock(client, "default", name)
    client.delete(LEASES, name, "default")


@pytest.mark.cluster
def test_a_real_server_takes_our_leases(real: LeaseLock, connect: Callable[..., ApiClient]) -> None:
    """Made, renewed, conflicted, released, taken over."""
    stop = threading.Event()
    one = LeaderElector(real, "one", Timing(), stop)
    other = LeaseLock(real._client, real.namespace, real.name)
    two = LeaderElector(other, "two", Timing(), stop)
    assert one.try_acquire_or_renew()
    assert not two.try_acquire_or_renew()
    assert one.try_acquire_or_renew()
    with pytest.raises(Conflict):
        other.update(Record("two", 15, micro_time(1.7e9), micro_time(1.7e9), 1))
    assert one.release()
    assert two.try_acquire_or_renew()
    assert not one.try_acquire_or_renew()
    assert real.get().transitions == 1
