"""From messages to episodes: what is no business of this node, what was over when read, what comes late."""

import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy, cgroup_id
from monitor.kernel.wire import OomEvent
from monitor.link import messages
from monitor.pods.model import FoundPod
from monitor.policy.pods import pod_from_object
from monitor.race.episode import Episode
from monitor.race.events import (
    Clear,
    Crossing,
    Event,
    Kill,
    KubeletEvicted,
    Lost,
    Mark,
    PodHeld,
    PodReleased,
    Ranked,
    Seen,
)
from monitor.race.verdict import verdict
from monitor.settings.config import RunConfig
from monitor.side import event_builder as module
from monitor.side.event_builder import EventBuilder
from monitor.side.holds import FOR_MEMORY
from tests.daemon import harness
from tests.log_lines import LogLines
from tests.race.builders import pod as candidate
from tests.side.parts import Parts
from tests.side.test_holds import ENDED, HELD

S = 1_000_000_000
MIB = 1 << 20
POD = pod_from_object({"metadata": {"name": "x", "namespace": "ns", "uid": "u"}, "spec": {"containers": []}})


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Directories stand for cgroups: nothing is read of them here but their ids."""
    for name in ("node/system", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path / "node"


class Heard:
    """An event builder of ``node`` and what it made. ``known``: of the helper's `NodeState`."""

    def __init__(
        self,
        node: Path,
        is_machine: bool = False,
        now: Callable[[], int] = time.monotonic_ns,
        root: Path | None = None,
        **known: Any,
    ) -> None:
        self.events: list[Event] = []
        self.episodes: list[tuple[Episode, bool]] = []
        self.passed_on: list[tuple[str, str]] = []  # evictions, to the hot process
        self.log = LogLines()
        config = RunConfig(node_cgroup=None if is_machine else str(node))
        parts = Parts(config, Hierarchy(1, root or node.parent), 0, log=self.log, **known)
        parts.holds.evicted = lambda *what: self.passed_on.append(what)
        recorder: Any = SimpleNamespace(event=self.events.append, state_wanted=False)
        about = parts.holds, self.log, lambda e, final: self.episodes.append((e, final)), recorder
        self.event_builder = EventBuilder(parts.node, parts.figures, *about, now=now)

    def of(self, kind: type[Event]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]


def crossed(ts_ns: int) -> Crossing:
    figures = 32 * MIB, 160 * MIB, 130 * MIB, 130 * MIB, 30 * MIB
    return Crossing(ts_ns, "node", "memory.available", True, *figures, seen_ns=ts_ns + 1)


def state(*met: str) -> messages.State:
    return harness.STATE._replace(
        met=[{"signal": "memory.available", "kind": kind} for kind in met],
        observation={"node": {"available": 100 * MIB}},
    )


def marked(victim: int, limit: int, domain: int | None = 0, **fields: Any) -> OomEvent:
    above = 1 << 22  # every pid
    event = harness.oom(ts_ns=time.monotonic_ns(), victim_pid=above, invoker_pid=above, invoker_tid=above)
    event = event._replace(victim_cgroup=victim, invoker_cgroup=victim, domain=domain, oom_cgroup=limit, oom_limit=MIB)
    return event._replace(**fields)


def test_kills_elsewhere_on_the_machine_are_not_this_nodes(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But those of a machine that runs out; and on a machine as the node all are."""
    heard = Heard(node)
    at, system = cgroup_id(node.parent / "elsewhere"), cgroup_id(node / "system")
    with monkeypatch.context() as patch:
        patch.setattr(cgroupfs, "below", lambda _: pytest.fail("the tree was searched"))
        heard.event_builder.handle(marked(at, at, domain=None))
        heard.event_builder.handle(marked(0, at, domain=None, kind="reclaim"))
    assert heard.events[1:] == []
    heard.event_builder.handle(marked(0, at, domain=None))  # a kernel that does not say whose
    heard.event_builder.handle(marked(at, at, domain=None, while_away=True))
    assert heard.of(Mark) == []
    heard.event_builder.handle(marked(system, system))
    heard.event_builder.handle(marked(at, 0))
    assert [mark.scope for mark in heard.of(Mark)] == ["outside", "global"]
    assert heard.of(Mark)[0].oom_path == "/node/system"
    logged = heard.log.matching("the kernel's OOM killer killed a process")
    assert [line["scope"] for line in logged] == ["memcg", "global"]
    whole = Heard(node, is_machine=True)
    whole.event_builder.handle(marked(at, at))
    assert [mark.scope for mark in whole.of(Mark)] == ["outside"]


@pytest.mark.parametrize("hit", ["burstable", "."])
def test_a_limit_above_pods_is_one_of_kubepods_and_the_cgroup_is_named(node: Path, hit: str) -> None:
    """Of a QoS class, and of what lies between the node and kubepods."""
    slice_ = node / "cluster" / "kubepods"
    at = slice_ / hit if hit != "." else slice_.parent
    pod = slice_ / "burstable" / "podx"
    pod.mkdir(parents=True)
    heard = Heard(node, pods={"u": FoundPod(POD, pod, {}, (cgroup_id(pod),))}, kubepods=slice_)
    heard.event_builder.handle(marked(cgroup_id(pod), cgroup_id(at)))
    (mark,) = heard.of(Mark)
    path = f"/{at.relative_to(node.parent)}"
    assert (mark.scope, mark.oom_path, mark.pod_name) == ("pods", path, "ns/x")
    heard.event_builder.end()
    ((found, _),) = heard.episodes
    incident = verdict(found)
    assert (incident.domain, incident.flags) == ("kubepods", ("kubepods_limit",))
    assert f"the cgroup {path}, which holds pods, hit its limit of 1.0 MiB" in incident.summary


@pytest.mark.parametrize(("mode", "inside"), [(0o755, False), (0o777, False), (0o755, True)])
def test_a_victim_in_a_pod_that_is_not_found_yet_has_its_uid(node: Path, mode: int, inside: bool) -> None:
    """By the path of its cgroup, unless others can make directories of that name, or the node is in that pod itself."""
    uid = "5c2b2da2-119f-4fa8-8801-c79f0fa869aa"
    container = node / "kubepods" / f"pod{uid}" / "c"
    container.mkdir(parents=True)
    (node / "kubepods").chmod(mode)
    heard = Heard(container.parent if inside else node, root=node.parent)
    heard.event_builder.handle(marked(cgroup_id(container), cgroup_id(container)))
    (mark,) = heard.of(Mark)
    known = (uid, "container") if mode == 0o755 and not inside else (None, "outside")
    assert (mark.pod, mark.scope, mark.pod_name) == (*known, None)


@pytest.mark.parametrize("where", ["podx", "podx/c", "podx/c/below", "../system"])
def test_who_calls_himself_runc_in_a_pod_is_no_runtime(node: Path, where: str) -> None:
    pod = node / "kubepods/podx"
    (pod / "c" / "below").mkdir(parents=True)
    found = FoundPod(POD, pod, {"c": pod / "c"}, (cgroup_id(pod), cgroup_id(pod / "c")))
    heard = Heard(node, pods={"u": found}, kubepods=pod.parent)
    sender = node / "system" if where == "../system" else pod.parent / where
    heard.event_builder.handle(
        marked(cgroup_id(pod), 0, kind="kill", si_code=0, invoker_comm="runc", invoker_cgroup=cgroup_id(sender))
    )
    (kill,) = heard.of(Kill)
    assert (kill.by_runtime, kill.by_user) == (where == "../system", where != "../system")
    assert [line["invoker_comm"] for line in heard.log.matching("no OOM kill")] == ["runc"]


def test_the_hot_process_keeps_what_it_reported_until_it_is_judged_and_no_longer(node: Path) -> None:
    now = [time.monotonic_ns()]
    heard = Heard(node, now=lambda: now[0])
    builder, system = heard.event_builder, cgroup_id(node / "system")
    builder.turn()
    assert not builder.open
    builder.handle(marked(system, system))
    builder.handle(marked(system, system, kind="exit"))
    builder.handle(marked(0, 0, kind="reclaim"))
    since, finals = now[0], list[int]()
    while builder.open and now[0] < since + 60 * S:
        now[0] += max(1, int(builder.due_s() * S))
        builder.turn()
        finals = [1 for _, final in heard.episodes if final]
    assert (finals, now[0] - since < 5 * S) == ([1], True)


def test_a_crossing_that_was_over_when_read_is_cleared_by_the_next_state(node: Path) -> None:
    heard = Heard(node)
    now = time.monotonic_ns()
    heard.event_builder.handle(crossed(now))
    heard.event_builder.handle(state("hard"))
    assert heard.of(Clear) == []
    heard.event_builder.handle(state("soft"))
    heard.event_builder.handle(state())
    assert [one.available for one in (*heard.of(Crossing), *heard.of(Seen))] == [30 * MIB] * 2
    (clear,) = heard.of(Clear)
    assert (clear.domain, clear.signal, clear.hard, clear.available) == ("node", "memory.available", True, 100 * MIB)
    assert clear.ts_ns >= now


def test_what_was_lost_since_the_last_turn_is_part_of_the_record(node: Path) -> None:
    heard, dropped = Heard(node, now=iter(range(0, 10**9, 10)).__next__), {"dropped_decision": 1}
    heard.event_builder.figures.stats = SimpleNamespace(get=lambda name: dropped.get(name, 0))
    for dropped["dropped_decision"] in (3, 3):
        heard.event_builder.turn()
    (one,) = heard.of(Lost)
    assert (one.what, one.count) == ("decision", 3)
    assert one.since_ns < one.ts_ns


def test_no_time_is_reported_while_late_records_come(node: Path) -> None:
    clock = [1000 * S]
    heard = Heard(node, now=lambda: clock[0])
    heard.event_builder.handle(crossed(clock[0] - 5 * S))
    heard.event_builder.handle(Clear(clock[0] - 5 * S, "node", "memory.available", True, 100 * MIB))
    heard.event_builder.turn()
    assert heard.episodes == [], "though by now it has been quiet for five seconds"
    assert heard.event_builder.due_s() == pytest.approx(module.CATCH_UP_NS / 1e9)
    for _ in range(2):
        clock[0] += module.CATCH_UP_NS
        heard.event_builder.turn()
    assert [(e.domain, final) for e, final in heard.episodes] == [("node", True)]


def test_an_alert_does_not_wait_for_late_records_that_never_cease(node: Path) -> None:
    clock = [1000 * S]
    heard = Heard(node, now=lambda: clock[0])
    system = cgroup_id(node / "system")
    for number in range(100):
        heard.event_builder.handle(marked(system, system, ts_ns=clock[0] - S, victim_pid=(1 << 22) + number))
        heard.event_builder.turn()
        if heard.episodes:
            break
        clock[0] += min(round(heard.event_builder.due_s() * 1e9), 50_000_000)
    assert clock[0] - 1000 * S == module.URGENT_NS + module.PATIENCE_NS
    assert [final for _, final in heard.episodes] == [False]


# Held pods, and what a cluster reports meanwhile.
def test_who_a_kubelet_would_take_is_known_while_a_pod_is_held(tmp_path: Path) -> None:
    """Without a decision, which would have the order."""
    heard = Heard(tmp_path)
    order = (candidate("hog", 60 * MIB), candidate("db", 80 * MIB, priority=5))
    heard.event_builder.handle(HELD._replace(ts_ns=5, order=[list(astuple(one)) for one in order]))
    (ranked,) = heard.of(Ranked)
    assert (ranked.ts_ns, ranked.order) == (5, order)
    assert [one.pod_name for one in heard.of(PodHeld)] == ["ns/hog"]


def test_a_pod_that_outrace_evicted_is_no_answer_of_the_kubelets(tmp_path: Path) -> None:
    """The API server reports it as Evicted, with the kubelet's message: outrace wrote that."""
    heard = Heard(tmp_path)
    heard.event_builder.handle(harness.DECISION._replace(pod="mine", observed=False))
    heard.event_builder.handle(KubeletEvicted(time.monotonic_ns(), "mine", "ns/mine", FOR_MEMORY))
    assert (heard.passed_on, heard.of(KubeletEvicted)) == ([], [])
    heard.event_builder.handle(KubeletEvicted(time.monotonic_ns(), "other", "ns/other", FOR_MEMORY))
    assert heard.passed_on == [("other", FOR_MEMORY)]
    assert [one.pod_name for one in heard.of(KubeletEvicted)] == ["ns/other"]


def test_the_pod_that_the_kubelet_took_instead_is_named(tmp_path: Path) -> None:
    """It is no pod of the node any more when the hold for it ends."""
    heard = Heard(tmp_path)
    heard.event_builder.handle(KubeletEvicted(time.monotonic_ns(), "v", "ns/other", FOR_MEMORY))
    for instead in "vw":
        heard.event_builder.handle(ENDED._replace(why="other_pod", instead=instead))
    assert [one.instead for one in heard.of(PodReleased)] == ["ns/other", "w"]
