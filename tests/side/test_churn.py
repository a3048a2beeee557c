"""Where pods come and go for ever, what is kept of those that went has an end: entries are counted, not bytes."""

import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from monitor.errors import MonitorError
from monitor.kernel.cgroupfs import Hierarchy, cgroup_id
from monitor.kernel.domains import Reading
from monitor.link.messages import Stored
from monitor.pods.cluster_source import ClusterSource
from monitor.pods.feed import LINGER_S, PodFeed, known
from monitor.pods.model import Change, Within
from monitor.settings.config import RunConfig
from monitor.side import cgroup_names
from monitor.side.cgroup_names import CgroupNames
from monitor.side.event_builder import EventBuilder
from monitor.side.pod_watch import PodSender
from tests.filesystems import nested
from tests.log_lines import LogLines, ignored
from tests.pods.cluster import a_pod, uid_of
from tests.side.parts import Parts


class ScriptedFeed(PodFeed):
    """A cluster that reports what the test scripts."""

    def _run(self) -> None:
        self.stop.wait()


class Figures:
    """A table in which every cgroup that is ``there`` has another number at every look."""

    def __init__(self, *there: int) -> None:
        self.there = set(there)
        self.looks = 0

    def read(self, cgroup: int) -> Reading | None:
        self.looks += 1
        return Reading(self.looks << 20, 0, 0) if cgroup in self.there else None

    def over(self, cgroup: int) -> dict[str, int]:
        return {}


class Node:
    """The helper's parts that know pods, without a process of their own. Directories stand for cgroups."""

    def __init__(self, root: Path) -> None:
        self.now_s = 1000.0
        self.root = root
        self.feed = ScriptedFeed("the cluster")
        self.feed._clock = lambda: self.now_s
        self.feed.replace_all({})
        self.table = Figures()
        self.make_cgroup(root / "kubepods" / "burstable")
        hierarchy = Hierarchy(1, root)
        self.source = ClusterSource(self.feed, Within(hierarchy, root))
        watch = SimpleNamespace(take=self._take, wait_known=lambda _: True, source=self.source)
        settings = RunConfig(node_cgroup=str(root))
        parts = Parts(settings, hierarchy, 1 << 40, table=self.table, log=LogLines())
        self.node, self.figures, self.log = parts.node, parts.figures, parts.log
        self.processes = parts.processes()
        self.changes: list[Change] = []
        self.ours, self.hot = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.hot.setblocking(False)
        self.pods = PodSender(self.node, watch, self.ours, self.log)
        self.builder = EventBuilder(self.node, self.figures, parts.holds, self.log, ignored)

    def make_cgroup(self, path: Path) -> None:
        path.mkdir(parents=True)
        for above in (path, *path.parents):
            if above.is_relative_to(self.root):
                (above / "cgroup.procs").touch()
                self.table.there.add(cgroup_id(above))

    def appear(self, name: str) -> str:
        pod = a_pod(name)
        uid = uid_of(pod)
        self.make_cgroup(self.root / "kubepods" / "burstable" / f"pod{uid}" / uid.replace("-", ""))
        made = known("the cluster", pod)
        self.feed.put(made)
        return uid

    def change(self, uid: str) -> None:
        one = self.feed._pods[uid]
        pod = replace(one.manifest.pod, annotations={"changed": "true"})
        self.feed.put(replace(one, manifest=replace(one.manifest, pod=pod)))

    def vanish(self, uid: str) -> None:
        self.feed.drop(uid)
        pod = self.root / "kubepods" / "burstable" / f"pod{uid}"
        self.table.there -= {cgroup_id(path) for path in (pod, *pod.iterdir()) if path.is_dir()}
        shutil.rmtree(pod)

    def look(self) -> None:
        """What a look at the pods finds waits to be taken."""
        self.changes.append(self.source.poll())

    def turn(self) -> None:
        """As a turn of the helper's main loop, a second later."""
        self.now_s += 1
        self.pods.turn()
        self.processes.turn()
        self.builder.update_pods()
        self.builder.sample(int(self.now_s * 10**9))
        with suppress(BlockingIOError):
            while True:
                self.hot.recv(1 << 16)

    def _take(self) -> list[Change]:
        found, self.changes = self.changes, []
        return found

    def entries(self) -> dict[str, int]:
        """How many of each are kept, in everything with a key for each pod, cgroup or look."""
        owners = {
            "view": self.node,
            "feed": self.feed,
            "source": self.source,
            "watcher": self.source._watcher,
            "pods": self.pods,
            "processes": self.processes,
            "scores": self.processes.scores,
            "lines": self.log.budget,
            "builder": self.builder,
            "oom events": self.builder._oom_events,
        }
        return {
            f"{owner}.{name}": len(value)
            for owner, one in owners.items()
            for name, value in vars(one).items()
            if isinstance(value, dict | list | set)
            and name not in ("_waiting", "_handlers", "_lines")  # an interval has an end
        }

    def close(self) -> None:
        self.source.close()
        self.ours.close()
        self.hot.close()


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Node]:
    root = tmp_path / "cgroup"
    root.mkdir(mode=0o755)
    found = Node(root)
    yield found
    found.close()


def test_pods_that_went_are_forgotten_everywhere(side: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CgroupNames, "KEPT", 40)  # of those that went: 4096 in earnest
    lives = [side.appear(f"first-{i}") for i in range(5)]
    counts = []
    for i in range(2 * int(LINGER_S)):
        lives.append(side.appear(f"p{i}"))
        side.vanish(lives.pop(0))
        side.look()
        side.turn()
        counts.append(side.entries())
    settled = counts[int(LINGER_S) + 10]  # what lingers has reached its number
    assert settled["view.pods"] == settled["scores._pods"] == settled["source.pods"] == 5
    assert settled["feed._gone"] > LINGER_S - 2
    grown = {name: (settled[name], n) for name, n in counts[-1].items() if n > settled[name] + 5}
    assert not grown


@pytest.mark.parametrize("known", [True, False])
def test_one_that_went_between_two_turns_is_forgotten(side: Node, known: bool) -> None:
    uid = side.appear("a")
    side.look()
    if known:
        side.turn()
        assert len(side.processes.scores._pods) == 1
        side.change(uid)
        side.look()
    side.vanish(uid)
    side.look()
    assert [(len(one.updated), len(one.removed)) for one in side.changes] == [(1, 0), (0, 1)]
    side.turn()
    assert not side.node.pods
    assert not side.processes.scores._pods


def test_a_user_with_cgroups_without_end_does_not_hold_up_the_helper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nested beyond the length of a path, and more than are looked at: the units that root made are found."""
    user, service = tmp_path / "a-user" / "manager", tmp_path / "system" / "service"
    for path in (user, service, *(user / str(i) for i in range(100))):
        path.mkdir(parents=True)
    names = CgroupNames(Hierarchy(2, tmp_path), tmp_path)
    with nested(user):
        assert not names.locate(1)
        monkeypatch.setattr(CgroupNames, "SEARCHED", 10)
        looked = []
        monkeypatch.setattr(cgroup_names, "_id", lambda path: looked.append(path) or cgroup_id(path))
        assert not names.locate(2)
        assert len(looked) == 10
        assert names.locate(cgroup_id(service))


def test_a_message_about_what_cannot_be_read_is_counted(tmp_path: Path) -> None:
    """The helper does not end by what a user makes."""

    def refused(_: object) -> None:
        raise MonitorError("the id cannot be read: File name too long")

    parts = Parts(RunConfig(state_dir=str(tmp_path)), Hierarchy(1, tmp_path), 1 << 40, log=LogLines())
    handler = parts.handler()
    handler.record = refused
    assert not handler.handle(Stored(1))
    assert parts.figures.counts.bad_messages == 1
