"""The pods in eviction order, on the real table of watched cgroups: after any history the order is the policy's."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from monitor.kernel import cgroupfs
from monitor.link.messages import PodSeen
from monitor.policy.ranking import memory_key
from monitor.sources.polled_table import PolledTable
from monitor.sources.registry import Registry
from tests import live

pytestmark = pytest.mark.kernel
MIB = live.MIB
STEP = MIB


watch = live.fixture(live.Watching, False)
pod = live.fixture(live.cgroup, "registry")


@pytest.fixture
def registry(watch: live.Watching) -> Registry:
    return Registry(watch.table, STEP)


def seen(uid: str, cgroup: Path, containers: tuple[str, ...] = (), **fields: Any) -> PodSeen:
    """A `pod+` message."""
    below = {name: str(cgroup / name) for name in containers}
    made = PodSeen(uid, "ns", f"name-{uid}", 0, True, 0, "BestEffort", False, 30, str(cgroup), below)
    return made._replace(**fields)


def test_a_pod_that_cannot_be_watched_whole_leaves_nothing_behind(pod: Path, tmp_path: Path) -> None:
    """Its container's files are gone when they are opened, or no descriptor is left: without BPF each has two."""
    table = PolledTable(cgroupfs.detect())
    registry = Registry(table, STEP)

    def opened() -> list[str]:
        found = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        return [path for path in found if path.startswith(str(pod))]

    message = seen("a", pod)._replace(containers={"c0": str(tmp_path)})
    with pytest.raises(FileNotFoundError):
        registry.put(message)
    assert table.index(cgroupfs.cgroup_id(pod)) is None
    assert opened() == []
    registry.put(seen("a", pod))
    registry.drop("a")
    assert table.index(cgroupfs.cgroup_id(pod)) is None


def test_a_missing_cgroup_changes_nothing(watch: live.Watching, registry: Registry, pod: Path) -> None:
    registry.put(seen("a", pod))
    with pytest.raises(FileNotFoundError):
        registry.put(seen("b", pod / "none"))
    with pytest.raises(FileNotFoundError):
        registry.put(seen("a", pod, ("none",)))
    assert set(registry.by_uid) == {"a"}
    watch.sweeper.run()
    registry.refresh()
    assert [c.uid for c in registry.order()] == ["a"]


def test_two_pods_in_one_cgroup_share_its_counters(watch: live.Watching, registry: Registry, pod: Path) -> None:
    number = cgroupfs.cgroup_id(pod)
    registry.put(seen("a", pod))
    registry.put(seen("b", pod))
    registry.drop("a")
    assert watch.table.index(number) is not None
    registry.drop("b")
    assert watch.table.index(number) is None


def test_a_pod_made_again_in_its_place_is_counted_anew(watch: live.Watching, registry: Registry, pod: Path) -> None:
    old = registry.put(seen("a", pod))
    registry.move(old, 7 * MIB)
    registry.set_evicted(old, True)
    pod.rmdir()
    cgroupfs.make(pod)
    new = registry.put(seen("a", pod))
    assert new.cgroup_id != old.cgroup_id
    assert (new.usage, new.evicted) == (None, False)
    assert watch.table.index(old.cgroup_id) is None


class Histories(RuleBasedStateMachine):
    """Pods are added, moved, evicted and dropped in any order; the cgroups are real and are made once."""

    parent: Path
    watch: live.Watching

    @initialize()
    def begin(self) -> None:
        self.watch.table.reset()
        self.registry = Registry(self.watch.table, STEP)

    uids = st.sampled_from([f"u{i}" for i in range(6)])
    sizes = st.integers(0, 4).map(lambda n: n * MIB)

    @rule(uid=uids, priority=st.integers(-1, 1), request=sizes, critical=st.booleans(), containers=st.integers(0, 2))
    def put(self, uid: str, priority: int, request: int, critical: bool, containers: int) -> None:
        names = tuple(f"c{i}" for i in range(containers))
        before = self.registry.by_uid.get(uid)
        kept = (before.usage, before.evicted) if before is not None else (None, False)
        entry = self.registry.put(
            seen(uid, self.parent / uid, names, priority=priority, request=request, critical=critical)
        )
        assert (entry.usage, entry.evicted) == kept
        assert set(entry.containers) == set(names)

    @precondition(lambda self: len(self.registry) > 0)
    @rule(data=st.data(), usage=st.none() | sizes)
    def move(self, data: st.DataObject, usage: int | None) -> None:
        uid = data.draw(st.sampled_from(sorted(self.registry.by_uid)))
        self.registry.move(self.registry.by_uid[uid], usage)

    @precondition(lambda self: len(self.registry) > 0)
    @rule(data=st.data(), evicted=st.booleans())
    def evict(self, data: st.DataObject, evicted: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.registry.by_uid)))
        self.registry.set_evicted(self.registry.by_uid[uid], evicted)

    @rule()
    def count(self) -> None:
        self.watch.sweeper.run()
        self.registry.refresh()
        assert all(entry.counted and entry.usage is not None for entry in self.registry)

    @rule(uid=uids)
    def drop(self, uid: str) -> None:
        known = self.registry.by_uid.get(uid)
        assert self.registry.drop(uid) is known

    @invariant()
    def ordered(self) -> None:
        ranked = (entry.candidate() for entry in self.registry if entry.counted and not entry.evicted)
        expected = sorted(ranked, key=memory_key)
        assert list(self.registry.order()) == expected
        allowed = [candidate.uid for candidate in expected if not candidate.critical]
        first = self.registry.first()
        assert (first.uid if first else None) == (allowed[0] if allowed else None)

    @invariant()
    def watched(self) -> None:
        indexes = [entry.index for entry in self.registry]
        indexes += [at for entry in self.registry for _, at in entry.containers.values()]
        assert len(indexes) == len(set(indexes)), "two cgroups share a slot"
        assert all(self.registry.by_index[entry.index] is entry for entry in self.registry)
        for uid in (f"u{i}" for i in range(6)):
            number = cgroupfs.cgroup_id(self.parent / uid)
            known = self.registry.by_uid.get(uid)
            assert self.watch.table.index(number) == (known.index if known else None)
            assert self.registry.owner_of_cgroup(number) is known
            for name in ("c0", "c1"):
                number = cgroupfs.cgroup_id(self.parent / uid / name)
                at = known.containers.get(name) if known else None
                assert self.watch.table.index(number) == (at[1] if at else None)
                assert self.registry.owner_of_cgroup(number) is (known if at else None)


@pytest.mark.once
def test_any_history_leaves_the_policys_order(watch: live.Watching) -> None:
    with live.cgroup("history") as parent:
        for i in range(6):
            for name in ("c0", "c1"):
                cgroupfs.make(parent / f"u{i}" / name)
        Histories.parent, Histories.watch = parent, watch
        run_state_machine_as_test(Histories, settings=settings(max_examples=40, stateful_step_count=25, deadline=None))


def test_growth_of_an_evicted_pod_is_noted_from_its_least_however_it_is_found(
    watch: live.Watching, registry: Registry, pod: Path
) -> None:
    with live.Puppet(cgroupfs.make(pod / "c1")) as puppet:
        entry = registry.put(seen("a", pod))
        watch.sweeper.run()
        registry.refresh()
        registry.set_evicted(entry, True)
        assert registry.order() == []
        left = entry.usage
        for usage, grown in ((left - 5 * STEP, False), (left - 4 * STEP - 1, False), (left - 4 * STEP, True)):
            registry.move(entry, usage)
            assert registry.grown == ({"a"} if grown else set())
        registry.settle(entry)
        assert registry.grown == set()
        puppet.do(f"anon({8 * STEP // MIB})")
        watch.sweeper.run()
        registry.refresh()  # no step record has reported it
        assert registry.grown == {"a"}
        # Its containers change: it is the same pod.
        cgroupfs.make(pod / "c0")
        again = registry.put(seen("a", pod, ("c0",)))
        assert again is not entry
        assert (again.evicted, again.floor) == (True, entry.floor)
        watch.sweeper.run()
        registry.refresh()
        registry.move(again, entry.floor + STEP)
        assert registry.grown == {"a"}
        registry.set_evicted(again, False)
        assert registry.grown == set()
        assert [candidate.uid for candidate in registry.order()] == ["a"]
        registry.set_evicted(again, True)
        registry.move(again, again.floor + STEP)
        registry.drop("a")
        assert registry.grown == set()
