"""What is coming back and how the others grow, with stand-ins for the counters: time and memory can be anything.

On the live kernel: test_hot_pending_release.py.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.hot.pending_release import (
    CONFIRM_NS,
    DOUBTS_NS,
    FIRST_BOUND_NS,
    LEAST_BOUND_NS,
    RECLAIM_NS,
    REMEMBERED,
    STAYS_NS,
    PendingRelease,
)
from monitor.kernel import cgroup_procs
from monitor.kernel.cgroup_procs import CGROUPS
from monitor.kernel.domains import Reading
from monitor.link.messages import NAMES, Answer, Gone
from monitor.policy.pending_release import Coming, waits
from tests.daemon.stand_ins import outbox

MIB, MS, SIGNAL = 1 << 20, 1_000_000, "memory.available"
ROOT = Path("/node")


class World:
    """Pods by name with what they hold, in one domain; ``rest`` is charged to no known pod."""

    def __init__(self) -> None:
        self.now = 10**12
        self.held: dict[str, int] = {}
        self.rest = 0
        self.sent: list[Any] = []
        self.stats: dict[str, int] = {}
        self.by_uid: dict[str, Any] = {}
        watch = SimpleNamespace(signal=SIGNAL, thresholds=(1,), path=ROOT)
        table = SimpleNamespace(working_set=lambda index: self.held.get(index, 0))
        gauge = SimpleNamespace(
            watches=[watch],
            table=table,
            reread=lambda: None,
            reading=lambda _: Reading(self.rest + sum(self.held.values()), 0, 0),
        )
        stats = SimpleNamespace(add=self.count, set=self.stats.__setitem__, observe_us=lambda *_: None)
        registry = SimpleNamespace(by_uid=self.by_uid)
        self.pending = PendingRelease(gauge, registry, outbox(self.sent.append, stats), lambda: None)

    def count(self, name: str) -> None:
        self.stats[name] = self.stats.get(name, 0) + 1

    def pod(self, name: str, mib: int) -> Any:
        self.held[name] = mib * MIB
        entry = SimpleNamespace(uid=name, index=name, cgroup_id=len(self.by_uid) + 7, cgroup=ROOT / name, evicted=False)
        self.by_uid[name] = entry
        return entry

    def evicted(self, name: str) -> None:
        held = self.held[name]
        self.pending.ended(name, held, held, self.now, Gone(self.now, name, name, id=1))

    def look(self, after_ms: float = 1) -> Coming | None:
        self.now += int(after_ms * MS)
        return self.pending.look(self.now).get(SIGNAL)

    def messages(self, kind: str) -> list[Any]:
        return [message for message in self.sent if NAMES[type(message)] == kind]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def after(world: World) -> World:
    """A pod of 100 MiB was evicted, and another one has 20."""
    world.pod("dead", 100)
    world.pod("other", 20)
    world.evicted("dead")
    return world


def test_what_is_coming_and_who_grows_are_kept_apart(after: World) -> None:
    assert after.look() == (100 * MIB, FIRST_BOUND_NS - MS, 0, 0, 0, 0, after.pending._noise)
    after.held["dead"] -= 60 * MIB
    after.held["other"] += 3 * MIB
    seen = after.look()
    assert (seen.coming, seen.grown, seen.jump, seen.jump_ns) == (40 * MIB, 3 * MIB, 3 * MIB, MS)
    assert after.messages("evicted") == []
    after.held["dead"] = 0
    assert after.look() is None
    assert [m.freed for m in after.messages("evicted")] == [100 * MIB]


def test_memory_of_a_pod_whose_counters_are_gone_is_seen_in_its_domain(after: World) -> None:
    after.look()
    after.rest = after.held.pop("dead")
    del after.by_uid["dead"]
    assert after.look() == (100 * MIB, FIRST_BOUND_NS - 2 * MS, 0, MS, 0, MS, after.pending._noise)
    after.rest -= 70 * MIB
    seen = after.look()
    assert (seen.coming, seen.grown) == (30 * MIB, 0)
    after.rest = 0
    assert after.look() is None
    assert after.messages("evicted")[0].freed == 100 * MIB


def test_what_stays_is_asked_for_and_given_up(after: World) -> None:
    after.look(STAYS_NS / MS - 1)
    assert after.messages("giveback") == []
    after.look(2)
    (asked,) = after.messages("giveback")
    seen = after.look()
    assert seen.back_ns > FIRST_BOUND_NS
    after.pending.answered(Answer("giveback", asked.id))
    seen = after.look()
    assert seen.back_ns < FIRST_BOUND_NS, "what the kernel frees by itself has its time still"
    assert after.look(FIRST_BOUND_NS / MS) is None
    assert after.messages("evicted")[0].freed == 0
    assert after.stats["memory_kept"] == 1


def test_a_side_that_does_not_answer_is_not_waited_for_for_ever(after: World) -> None:
    after.look(STAYS_NS / MS + 1)
    assert after.look(RECLAIM_NS / MS) is None


def test_who_kills_children_all_the_time_is_waited_for_a_while_in_each_second_only(world: World) -> None:
    entry = world.pod("murderer", 100)
    for second in range(3):
        begun, waited = world.now, 0
        while world.now < begun + DOUBTS_NS:
            world.pending.killed(entry, 0, world.now)
            if world.pending.active:
                before = world.now
                assert world.look(10) is not None
                world.pending.answered(Answer("left", world.messages("left")[-1].id, lives=True))
                assert world.look(0) is None
                waited += world.now - before
            else:
                world.look(10)
        assert 0 < waited <= CONFIRM_NS + 10 * MS, second


def test_of_the_oom_killers_victim_only_its_own_part_comes_back(world: World) -> None:
    entry = world.pod("pod", 100)
    world.pending.killed(entry, 0, world.now)  # its SIGKILL; what it had comes with the mark
    world.pending.killed(entry, 70 * MIB, world.now)
    world.pending.answered(Answer("left", world.messages("left")[0].id, lives=True))
    seen = world.look()
    assert seen.coming == 70 * MIB
    world.held["pod"] = 30 * MIB
    assert world.look() is None


def test_memory_counts_once(world: World) -> None:
    """A process of a pod is killed, then the pod is evicted; it runs again, and is evicted again."""
    entry = world.pod("pod", 100)
    world.pending.killed(entry, 0, world.now)
    for _ in range(2):
        world.evicted("pod")
        seen = world.look()
        assert seen.coming == 100 * MIB
    assert len(world.messages("evicted")) == 1


def test_the_bound_is_twice_the_slowest_of_late(world: World) -> None:
    assert world.stats["return_bound_ns"] == FIRST_BOUND_NS

    def eviction(ms: int) -> int:
        world.pod("pod", 100)
        world.evicted("pod")
        for _ in range(10):
            world.look(ms / 10)
            world.held["pod"] -= 9 * MIB
        world.held["pod"] = 0
        assert world.look(0) is None
        return world.stats["return_bound_ns"]

    assert eviction(20) == FIRST_BOUND_NS
    assert eviction(300) == 600 * MS, "also of a pod that was slower than the bound"
    for _ in range(REMEMBERED):
        bound = eviction(20)
    assert bound == LEAST_BOUND_NS


def test_a_look_right_after_another_takes_no_batch_for_a_jump(after: World) -> None:
    after.look()
    after.held["other"] += 64 * 4096
    seen = after.look(0.01)
    assert waits(seen, 16 * MIB, 64 * MIB)


def test_what_keeps_coming_is_counted_on_and_reported_in_the_end(after: World) -> None:
    """150 MiB of page tables took longer than 0.4 s on an emulated CPU."""
    for _ in range(30):
        seen = after.look(3 * FIRST_BOUND_NS / MS / 30)
        assert seen.coming == after.held["dead"]
        after.held["dead"] -= 3 * MIB
    after.held["dead"] = 0
    assert after.look() is None
    assert after.messages("evicted")[0].freed == 100 * MIB


def test_whether_anybody_is_left_in_a_pod_that_is_forgotten_is_not_looked_for_for_ever(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On cgroup v1 a pod of thousands of cgroups took the hot thread 15 us for each."""
    for name in (".", *(f"c{number}" for number in range(200))):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "cgroup.procs").touch()
    read, real = list[str](), cgroup_procs._pids_in
    monkeypatch.setattr(cgroup_procs, "_pids_in", lambda directory: read.append(directory) or real(directory))
    entry = world.pod("gone", 100)
    entry.cgroup = tmp_path
    world.pending.dropped(entry, world.now)
    assert not world.pending.active
    assert 0 < len(read) <= CGROUPS + 1
    for number in range(150):
        (tmp_path / f"c{number}" / "cgroup.procs").unlink()
        (tmp_path / f"c{number}").rmdir()
    world.pending.dropped(entry, world.now)
    assert world.pending.active
