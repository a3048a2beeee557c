"""Two real processes of `outrace evicted run` against the fake API server; one is killed, stopped, or asked to end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.evicted.made import OTHERWISE, Object, evicted, names, owned, put, stamp
from tests.evicted.processes import Running, deletes_of, holder, until
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_apiserver import pod as running

Start = Callable[..., Running]
#: For a fake server that is busy with lists of 10,000 pods, on busy CPUs: a renewal may take 5 s.
PATIENT = (
    *("--leader-elect-lease-duration", "12s", "--leader-elect-renew-deadline", "10s"),
    *("--leader-elect-retry-period", "500ms"),
)


@pytest.fixture
def start(api: FakeApiServer, kubeconfig: Path) -> Iterator[Start]:
    made: list[Running] = []

    def start(name: str, *options: str) -> Running:
        made.append(Running(api, kubeconfig, name, *options))
        return made[-1]

    yield start
    for one in made:
        one.end()


def leader_of(api: FakeApiServer, *both: Running) -> tuple[Running, Running]:
    """Who holds the lease, and the other one."""
    until(lambda: holder(api) != "")
    one, two = both
    return (one, two) if holder(api) == one.identity else (two, one)


def cluster() -> tuple[list[Object], list[Object]]:
    """2,000 pods that are to go, of all owners; 8,000 that are not."""
    owners = ("Deployment", "StatefulSet", "DaemonSet", "Job", "Workflow")
    going = [
        evicted(f"old-{number:04}", f"ns-{number % 7}", 7200.0 + number, **owned(owners[number % 5], f"o{number % 50}"))
        for number in range(2000)
    ]
    staying = [running(f"live-{number:04}", namespace=f"ns-{number % 7}") for number in range(6000)]
    for number in range(1000):
        otherwise = evicted(f"failed-{number:04}", f"ns-{number % 7}", 7200.0)
        otherwise["status"]["reason"] = OTHERWISE[number % len(OTHERWISE)]
        staying.append(otherwise)
    staying += [evicted(f"young-{number:04}", f"ns-{number % 7}", 60.0) for number in range(700)]
    for number in range(300):
        held = evicted(f"held-{number:04}", f"ns-{number % 7}", 7200.0)
        if number % 3 == 0:
            held["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
        elif number % 3 == 1:
            held["metadata"]["deletionTimestamp"] = stamp(60.0)
        else:
            held["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {}}}]
        staying.append(held)
    return going, staying


def test_10000_pods_2000_to_go_two_controllers_one_killed_half_way(api: FakeApiServer, start: Start) -> None:
    going, staying = cluster()
    put(api, *staying)
    left = names(api)
    put(api, *going)
    assert (len(left), len(going)) == (8000, 2000)
    options = ("--older-than", "1h", "--interval", "1s", "--rate", "500", *PATIENT)
    leader, other = leader_of(api, start("one", *options), start("two", *options))
    until(lambda: deletes_of(api, leader) >= 1000)
    leader.process.send_signal(signal.SIGKILL)
    leader.process.wait()
    assert deletes_of(api, other) == 0
    assert 0 < len(names(api) - left) <= 1000
    other.until(lambda: names(api) == left)
    assert holder(api) == other.identity
    assert deletes_of(api, other) >= 900
    other.until(lambda: other.metric('evicted_sweeps_total{result="ok"}') >= 2)  # and it finds no more
    assert names(api) == left
    assert all(asked.json()["preconditions"].keys() == {"uid", "resourceVersion"} for asked in api.seen("DELETE"))
    assert len({asked.path for asked in api.seen("DELETE")}) == 2000
    assert other.metric("evicted_pods") == 1000
    assert other.metric("evicted_pods_chosen") == 0
    assert other.metric("evicted_leader") == 1
    assert other.metric('evicted_pods_handled_total{outcome="failed"}') == 0
    assert other.peak_mib < 64  # what the chart requests
    assert other.get("/healthz") == (200, "ok\n")
    assert (other.terminate(), holder(api)) == (0, "")


def test_asked_to_end_it_gives_the_lease_to_the_other_one(api: FakeApiServer, start: Start) -> None:
    put(api, *(evicted(f"a{number:03}") for number in range(300)))
    options = ("--all", "--interval", "1s", "--rate", "50")
    leader, other = leader_of(api, start("one", *options), start("two", *options))
    until(lambda: deletes_of(api, leader) >= 20)
    assert leader.terminate() == 0
    before = deletes_of(api, leader)
    assert "released the lease outrace/evicted" in leader.log
    other.until(lambda: deletes_of(api, other) >= 20)
    assert deletes_of(api, leader) == before
    assert other.terminate() == 0
    assert len(names(api)) == 300 - deletes_of(api, leader) - deletes_of(api, other)


def test_a_leader_that_was_stopped_and_wakes_up_does_not_go_on(api: FakeApiServer, start: Start) -> None:
    put(api, *(evicted(f"a{number:03}") for number in range(900)))
    options = ("--all", "--interval", "1s", "--rate", "50")
    leader, other = leader_of(api, start("one", *options), start("two", *options))
    until(lambda: deletes_of(api, leader) >= 10)
    leader.process.send_signal(signal.SIGSTOP)
    other.until(lambda: deletes_of(api, other) >= 10)
    before = deletes_of(api, leader)
    leader.process.send_signal(signal.SIGCONT)
    leader.until(lambda: f"is held by {other.identity}" in leader.log)
    assert deletes_of(api, leader) <= before + 1  # one that was under way, under its precondition
    assert leader.metric("evicted_leader") == 0
    assert leader.terminate() == 0
    assert holder(api) == other.identity  # which it did not release


def test_away_for_long_the_server_finds_it_at_work_again(api: FakeApiServer, start: Start) -> None:
    put(api, *(evicted(f"a{number:03}") for number in range(40)))
    one = start("one", "--all", "--interval", "1s", "--rate", "20", "--retry", "1s")
    until(lambda: deletes_of(api, one) >= 5)
    api.refuse()
    one.found("(lost the lease outrace/evicted)")
    api.listen()
    one.until(lambda: names(api) == set())
    assert one.get("/readyz") == (200, "ok\n")
    assert one.terminate() == 0


def test_without_rights_it_logs_that_and_waits(api: FakeApiServer, start: Start) -> None:
    put(api, evicted("a"))
    api.forbidden = {("delete", "pods")}
    one = start("one", "--all", "--interval", "1s")
    rule = one.found(r"add to the Role or ClusterRole: (.*)")
    assert "delete" in rule
    api.forbidden = set()
    one.until(lambda: names(api) == set())
    assert one.terminate() == 0


#: At an address that is none, so that what is not refused ends too.
UNSERVED = ("--lease", "a/b", "--listen", "nowhere")
CRITERIA = (
    *(("-n", "x"), ("-l", "a=b"), ("--node", "x"), ("--owner-kind", "Job"), ("--older-than", "24h")),
    *(("--keep", "9"), ("--keep-per-namespace", "9"), ("--keep-per-owner", "9")),
)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--lease", "evicted"), "--lease: 'evicted' is not NAMESPACE/NAME"),
        (("--lease", "a/b/c"), "--lease: 'a/b/c' is not NAMESPACE/NAME"),
        (("--lease", "a/b", "--interval", "0s"), "--interval: must be at least 1s"),
        ((*UNSERVED, "--all"), "--listen: "),
        ((*UNSERVED, "--rate", "5"), "every evicted pod of the cluster would be deleted, at once; give one, such as"),
        ((*UNSERVED, "--all", "--older-than", "24h"), "--all: stands beside a criterion"),
        *(((*UNSERVED, *one), "--listen: ") for one in CRITERIA),
        (
            ("--lease", "a/b", "--leader-elect-lease-duration", "5s"),
            "must be greater than --leader-elect-renew-deadline",
        ),
        ((), "Missing option '--lease'"),
    ],
)
def test_what_is_refused(outrace: Callable[..., object], options: tuple[str, ...], problem: str) -> None:
    done = outrace("run", *options)
    assert done.code == 2  # type: ignore[attr-defined]
    assert problem in done.err  # type: ignore[attr-defined]
