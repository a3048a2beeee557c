"""When the daemon looks at a runtime's store, and what it says of it."""

from collections.abc import Sequence
from typing import Any

import pytest

from monitor.actions.reclaim import DONE, FAILED, Cleaned
from monitor.pods import installations
from monitor.pods.node_kubelet import NodeKubelet
from monitor.policy.layout import DELETE_CONTAINERS, DELETE_IMAGES, DiskLayout
from monitor.settings.config import RunConfig
from monitor.side import cleanup
from monitor.side.cleanup import LOOK_S, SOON_S, Cleanup
from monitor.side.export.log import Log
from monitor.side.export.reclaim_metrics import reclaim_metrics

BOTH = [DELETE_CONTAINERS, DELETE_IMAGES]
REPORT = {"runtime": "podman", "count": 2, "bytes": 7, "unknown_size": 1, "removed": 2, "freed": None}


class Lines(Log):
    """A log to look into."""

    def __init__(self) -> None:
        super().__init__("logfmt")
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, level: str, message: str, /, **fields: Any) -> None:
        self.lines.append((message, fields))


class Bench:
    """A `Cleanup` with its own clock, whose looks are only noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.log, self.looks, self.now = Lines(), list[Sequence[str]](), 1000.0
        runtimes = {"reclaim_containers": ("podman",), "reclaim_images": ("podman",)}
        config = RunConfig(**{**runtimes, **settings})
        self.cleanup = Cleanup(config, DiskLayout(), lambda _: None, self.log)
        monkeypatch.setattr(cleanup.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(self.cleanup, "_open", lambda: self)
        monkeypatch.setattr(installations, "find_kubelet", lambda: NodeKubelet("k3s"))

    def look(self, actions: Sequence[str]) -> None:
        self.looks.append(actions)

    def after(self, seconds: float, *met: str) -> int:
        """A turn so much later; how many looks there were so far."""
        self.now += seconds
        self.cleanup.turn(met)
        return len(self.looks)

    def hears(self, action: str, removing: bool = False, **report: Any) -> None:
        self.cleanup._cleaned(Cleaned(action, removing, DONE, {**REPORT, **report}))


def test_it_looks_every_five_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    assert [bench.after(0), bench.after(1), bench.after(LOOK_S - 2), bench.after(2)] == [1, 1, 1, 2]
    assert bench.looks == [BOTH, BOTH]
    assert bench.log.lines == []


def test_commands_are_not_asked_what_they_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, reclaim_containers=("true",), reclaim_images=("crictl", "rmi", "--prune"))
    assert bench.after(0, "nodefs.available") == 0
    bench = Bench(monkeypatch, reclaim_containers=("true",))
    assert bench.after(0) == 1
    assert bench.looks == [[DELETE_IMAGES]]


def test_each_shortage_is_told_once_while_observing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    assert bench.after(0) == 1
    assert bench.after(SOON_S, "memory.available", "pid.available") == 1  # no disk
    for number in (2, 3):
        assert bench.after(SOON_S, "nodefs.available") == number
        bench.log.lines.clear()
        for action in (*BOTH, *BOTH):
            bench.hears(action)
        expected = {"runtime": "podman", "found": 2, "bytes": 7, "of_unknown_size": 1}
        assert bench.log.lines == [
            ("the node would be cleaned up first", {"action": action, **expected}) for action in BOTH
        ]
        assert bench.after(SOON_S, "nodefs.available") == number  # told
        assert bench.after(1) == number  # the shortage ends
    bench.log.lines.clear()
    bench.hears(DELETE_IMAGES)
    assert bench.log.lines == []


def test_a_runtime_that_says_nothing_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look in vain is a line in the log; a disk can be short for days, or get short and not short each second."""
    bench = Bench(monkeypatch)
    assert bench.after(0) == 1
    for _ in range(4000):
        bench.after(1)
        bench.after(1, "nodefs.available")
    assert len(bench.looks) < 8000 / LOOK_S + 8
    for action in BOTH:
        bench.hears(action)
    looks = len(bench.looks)
    bench.after(1)
    assert bench.after(SOON_S, "nodefs.available") == looks + 1  # it has answered


def test_a_clean_up_that_is_asked_for_waits_for_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, enforce=True)
    assert bench.after(0, "nodefs.available") == 0
    assert bench.after(2 * LOOK_S, "nodefs.available") == 0
    assert bench.after(1) == 1
    bench.hears(DELETE_IMAGES)
    assert bench.log.lines == []


def test_beside_a_kubelet_it_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, reclaim_images=("cri:unix:///run/x.sock",))
    bench.after(0)
    bench.after(LOOK_S)
    ((text, fields),) = bench.log.lines
    assert text.startswith("a kubelet here removes dead containers and unused images too")
    assert fields == {"kubelet": "k3s", "runtimes": "cri:unix:///run/x.sock, podman"}


def test_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def values() -> dict[tuple[str, ...], float]:
        samples = [one for metric in reclaim_metrics(bench.cleanup) for one in metric.samples]
        return {(one.name, *one.labels.values()): one.value for one in samples if one.value}

    bench = Bench(monkeypatch)
    assert values() == {}
    bench.hears(DELETE_IMAGES)
    looked = {
        ("outrace_reclaim_candidates", DELETE_IMAGES): 2.0,
        ("outrace_reclaim_candidates_bytes", DELETE_IMAGES): 7.0,
    }
    assert values() == looked
    rows = [{"path": "/", "bytes": 5, "inodes": -3}, {"path": "/x", "bytes": 4, "inodes": 1}]
    bench.hears(DELETE_IMAGES, removing=True, freed=rows)
    bench.cleanup._cleaned(Cleaned(DELETE_CONTAINERS, True, FAILED, None))
    assert values() == looked | {
        ("outrace_reclaim_runs_total", DELETE_IMAGES, "done"): 1.0,
        ("outrace_reclaim_runs_total", DELETE_CONTAINERS, "failed"): 1.0,
        ("outrace_reclaim_removed_total", DELETE_IMAGES): 2.0,
        ("outrace_reclaim_freed_bytes_total", DELETE_IMAGES): 9.0,
    }
