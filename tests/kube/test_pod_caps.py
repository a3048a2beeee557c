"""Evicted pods while the API server is away: limited, so that they do not take the node again, and let go exactly."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.actions.changes import ChangeJournal
from monitor.kernel import cgroupfs
from monitor.kube.backoff import BackOff
from monitor.kube.client import ApiClient
from monitor.kube.cluster import ClusterConfig
from monitor.pods.model import FoundPod
from monitor.policy.pods import Container, Pod
from monitor.policy.quantity import Quantity
from monitor.side.cluster import pod_caps
from monitor.side.cluster.cluster import Cluster
from monitor.side.cluster.event_writer import STATUS_NOTE, EventWriter
from monitor.side.cluster.pod_caps import BACK_S, FLOOR, PodCaps
from monitor.side.cluster.record import Record, cap_record
from monitor.side.cluster.status_writer import AWAY, TAKEN, UNCONFIRMED, StatusWriter
from monitor.side.export.log import Log
from monitor.side.worker import Worker
from tests import live
from tests.kube.fake_apiserver import FakeApiServer, pod
from tests.kube.test_status_writer import Clock, evicted, record

pytestmark = [pytest.mark.kernel, pytest.mark.newest]
MIB = 1 << 20
HIERARCHY = cgroupfs.detect()
FILE = "memory.max" if HIERARCHY.version == 2 else "memory.limit_in_bytes"


@pytest.fixture
def node() -> Iterator[Path]:
    with live.cgroup("caps", 256 * MIB) as path:
        yield path


class Caps:
    """Caps of pods in a node, by an injected clock."""

    def __init__(self, node: Path, state_dir: Path) -> None:
        self.clock = Clock()
        self.node = node
        self.pods: dict[str, FoundPod] = {}
        self.recorded: list[tuple[str, int]] = []
        self.journal = ChangeJournal(state_dir)
        self.caps = PodCaps(
            self.journal, HIERARCHY, self.pods.get, Log(), lambda r, n: self.recorded.append((r.uid, n)), self.clock
        )

    def pod(self, uid: str, request: str = "", **more: object) -> Path:
        cgroup = cgroupfs.make(self.node / f"pod{uid}")
        cgroupfs.make(cgroup / "c0")
        requests = {"memory": Quantity.parse(request)} if request else {}
        found = replace(Pod(name=uid, namespace="default", uid=uid, containers=(Container("c", requests),)), **more)
        self.pods[uid] = FoundPod(found, cgroup, {"c": cgroup / "c0"}, (cgroupfs.cgroup_id(cgroup),))
        return cgroup

    def late(self, uid: str) -> Record:
        made = Record(f"{uid}.1", "default", uid, uid, 0.0, {}, ())
        self.caps.late(made)
        self.caps.turn()
        return made

    def answers_for(self, seconds: float) -> None:
        self.caps.answers(True)
        self.clock.now += seconds
        self.caps.turn()


@pytest.fixture
def caps(node: Path, tmp_path: Path) -> Caps:
    return Caps(node, tmp_path)


def value(cgroup: Path) -> str:
    return (cgroup / FILE).read_text().strip()


def test_a_container_that_grows_is_killed_in_its_pod_and_the_neighbour_lives(caps: Caps) -> None:
    cgroup, other = caps.pod("hog"), caps.pod("other")
    caps.late("hog")
    assert caps.recorded == [("hog", FLOOR)]
    assert caps.caps.has("hog")
    assert not caps.caps.has("other")
    with live.Puppet(other / "c0") as neighbour, live.Puppet(cgroup / "c0") as again:
        neighbour.do("anon(8)")
        again.tell("anon(128)")
        assert again.wait() == -9
        neighbour.do("anon(1)")
    assert cgroupfs.read_cgroup(HIERARCHY, caps.node).usage < 128 * MIB
    with live.Puppet(cgroup / "c0") as small:  # a container can start
        small.do("anon(4)")


def test_the_limit_is_the_request_and_comes_back_when_the_server_does(caps: Caps) -> None:
    cgroup = caps.pod("web", "64Mi")
    before = value(cgroup)
    made = caps.late("web")
    assert value(cgroup) == str(64 * MIB)
    caps.answers_for(BACK_S + 1)
    assert value(cgroup) == str(64 * MIB)  # its status is still being tried
    caps.caps.outcome(made, AWAY)
    caps.caps.answers(False)
    caps.answers_for(BACK_S / 2)
    assert caps.caps.capped == 1  # one answer is not a server that is back
    caps.answers_for(BACK_S)
    assert value(cgroup) == before
    assert (caps.caps.capped, caps.caps.total, caps.journal.load()) == (0, 1, [])
    assert not caps.caps.waiting


def test_it_comes_back_when_the_status_is_taken(caps: Caps) -> None:
    cgroup = caps.pod("web")
    before = value(cgroup)
    made = caps.late("web")
    caps.caps.outcome(made, TAKEN)
    caps.caps.turn()
    assert value(cgroup) == before


def test_an_older_evictions_end_does_not_lift_the_limit_of_a_newer_one(caps: Caps) -> None:
    cgroup = caps.pod("web")
    made = caps.late("web")
    caps.caps.late(replace(made, id="web.2"))
    caps.caps.outcome(made, AWAY)
    caps.answers_for(BACK_S + 1)
    assert value(cgroup) == str(FLOOR)
    assert caps.caps.total == 1


@pytest.mark.parametrize("mib", [24, 200])
def test_an_own_limit(caps: Caps, mib: int) -> None:
    """A lower one stays; a higher one comes back."""
    cgroup = caps.pod("web", "64Mi")
    (cgroup / FILE).write_text(str(mib * MIB))
    caps.late("web")
    assert value(cgroup) == str(min(mib, 64) * MIB)
    caps.caps.lift_all("test")
    assert value(cgroup) == str(mib * MIB)


def test_a_pod_that_has_grown_again_is_not_pushed_below_what_it_has(caps: Caps) -> None:
    cgroup = caps.pod("web")
    before = value(cgroup)
    with live.Puppet(cgroup / "c0") as again:
        again.do("anon(64)")
        caps.late("web")
        assert 64 * MIB <= int(value(cgroup)) < 100 * MIB
        again.do("anon(1)")
    live.until(lambda: cgroupfs.read_cgroup(HIERARCHY, cgroup).usage < FLOOR, "its memory to be back")
    caps.caps.turn()
    assert value(cgroup) == str(FLOOR)
    caps.caps.lift_all("test")
    assert value(cgroup) == before


def test_critical_pods_and_our_own_are_never_limited(caps: Caps, monkeypatch: pytest.MonkeyPatch) -> None:
    critical = caps.pod("critical", priority=2_000_001_000)
    static = caps.pod("static", annotations={"kubernetes.io/config.source": "file"})
    ours = caps.pod("ours")
    before = value(critical)
    monkeypatch.setattr("monitor.kernel.procfs.Process.memory_cgroup", lambda *_: ours / "c0")
    for uid in ("critical", "static", "ours"):
        caps.late(uid)
    assert [value(one) for one in (critical, static, ours)] == [before] * 3
    assert (caps.caps.capped, caps.journal.load()) == (0, [])


def test_a_pod_that_is_gone_or_made_anew_or_resized_is_let_alone(caps: Caps) -> None:
    gone, resized = caps.pod("gone"), caps.pod("resized")
    for uid in ("gone", "resized"):
        caps.caps.outcome(caps.late(uid), AWAY)
    cgroupfs.remove(gone)
    cgroupfs.make(gone)
    (gone / FILE).write_text(str(FLOOR))
    (resized / FILE).write_text(str(80 * MIB))
    caps.caps.turn()
    assert (value(gone), value(resized)) == (str(FLOOR), str(80 * MIB))
    assert (caps.caps.capped, caps.journal.load()) == (0, [])


def test_no_more_than_so_many(caps: Caps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_caps, "MOST", 1)
    caps.pod("one")
    other = caps.pod("two")
    before = value(other)
    caps.late("one")
    caps.late("two")
    assert (caps.caps.capped, value(other), caps.caps.failures) == (1, before, 1)
    cgroupfs.remove(caps.pods["one"].cgroup)
    caps.caps.turn()
    caps.caps.turn()
    assert value(other) == str(FLOOR)


def test_without_a_place_for_the_journal_nothing_is_changed(caps: Caps) -> None:
    caps.journal.path.write_text("a file where the directory should be")
    cgroup = caps.pod("web")
    before = value(cgroup)
    caps.late("web")
    assert (value(cgroup), caps.caps.failures) == (before, 1)
    caps.journal.path.unlink()
    caps.caps.turn()
    assert value(cgroup) == str(FLOOR)


def test_one_whose_cgroup_appears_later_is_limited_then(caps: Caps) -> None:
    caps.late("web")
    assert caps.caps.waiting
    cgroup = caps.pod("web")
    caps.caps.turn()
    assert value(cgroup) == str(FLOOR)


def test_ten_minutes_without_the_api_server(caps: Caps, client: ApiClient, api: FakeApiServer) -> None:
    """The whole of it, by one clock: the pod is evicted, grows again, is evicted again, with one record each."""
    api.store.create("pods", pod("web"))
    eviction = evicted(api)
    cgroup = caps.pod(eviction.pod.uid)
    before = value(cgroup)
    clock, fates = caps.clock, list[str]()
    back_off = BackOff(first_s=0.5, jitter=0.0, clock=clock)
    events = EventWriter(client, Log(), lambda _: None, back_off, clock, back_off)

    def done(made: Record, fate: str) -> None:
        fates.append(fate)
        caps.caps.outcome(made, fate)
        events.note_status_outcome(made, fate)

    statuses = StatusWriter(client, Log(), done, clock, caps.caps.late)
    caps.caps.on_capped = lambda made, limit: events.submit(cap_record(made, "node-1", limit, 1_800_000_101.0))

    def seconds(number: float) -> None:
        until = clock.now + number
        while clock.now < until:
            statuses.turn()
            events.turn()
            caps.caps.turn()
            clock.now += 0.2

    def kill(made: Record) -> None:
        events.submit(made)
        statuses.submit(made, 0.0)

    api.refuse()
    kill(record(api))
    seconds(0.5)
    assert value(cgroup) == before  # it may be a server that was slow for once
    seconds(1)
    assert value(cgroup) == str(FLOOR)
    for _ in range(3):
        with live.Puppet(cgroup / "c0") as again:
            again.tell("anon(64)")
            assert again.wait() == -9
        seconds(200)
        assert value(cgroup) == str(FLOOR)
    assert fates == [AWAY]
    api.listen()
    caps.caps.answers(True)
    seconds(60)
    assert value(cgroup) == before
    assert (caps.caps.capped, caps.caps.total, caps.journal.load()) == (0, 1, [])
    made = sorted(api.store.all("events"), key=lambda one: one["reason"])
    assert [one["reason"] for one in made] == ["Evicted", "EvictionThresholdMet", "MemoryLimited"]
    assert "away" in made[0]["metadata"]["annotations"][STATUS_NOTE]
    assert "limited to 32Mi" in made[2]["message"]
    kill(replace(record(api), id="the next"))  # and the next eviction is one in the API too
    seconds(1)
    assert api.store.get(("pods", "default", "web"))["status"]["reason"] == "Evicted"
    assert caps.caps.total == 1


def test_a_status_nobody_can_see_the_end_of_is_late_too(caps: Caps, client: ApiClient, api: FakeApiServer) -> None:
    """Written, and then the server went away: the kubelet has not heard of it."""
    api.store.create("pods", pod("web"))
    late, fates = list[str](), list[str]()
    statuses = StatusWriter(
        client, Log(), lambda _, fate: fates.append(fate), caps.clock, lambda made: late.append(made.uid)
    )
    made = record(api)
    statuses.submit(made, 0.0)
    statuses.turn()
    api.refuse()
    for _ in range(60):
        caps.clock.now += 0.2
        statuses.turn()
    assert (fates, late) == ([UNCONFIRMED], [made.uid])


@pytest.fixture
def cluster(caps: Caps, config: ClusterConfig, tmp_path: Path) -> Iterator[Callable[[], Cluster]]:
    files = Worker("files")
    made: list[Cluster] = []

    def opened() -> Cluster:
        made.append(Cluster(config, "node-1", tmp_path, files, Log(), caps=caps.caps))
        made[-1].start()
        return made[-1]

    yield opened
    for one in made:
        one.close()
    files.close(1.0)


@pytest.mark.parametrize("ends", ["the server is back", "the daemon ends"])
def test_with_all_threads(
    caps: Caps, cluster: Callable[[], Cluster], api: FakeApiServer, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(pod_caps, "BACK_S", 0.0)
    monkeypatch.setattr("monitor.side.cluster.status_writer.WINDOW_S", 2.0)
    api.store.create("pods", pod("web"))
    eviction = evicted(api)
    cgroup = caps.pod(eviction.pod.uid)
    before = value(cgroup)
    api.refuse()
    one = cluster()
    one.evicting(eviction, time.monotonic_ns())
    live.until(lambda: value(cgroup) == str(FLOOR), "the limit")
    if ends == "the server is back":
        live.until(lambda: one.statuses.tally.fates[AWAY] == 1, "the end of the tries")
        api.listen()
        live.until(lambda: value(cgroup) == before, "the limit to be lifted")
        live.until(lambda: len(api.store.all("events")) == 3, "all events")
    one.close()
    live.until(lambda: value(cgroup) == before, "the limit to be lifted")  # a slow thread is not waited for
    live.until(lambda: os.listdir(caps.journal.path) == [], "the journal to be empty")
