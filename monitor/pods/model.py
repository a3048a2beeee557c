"""What a pod source finds, and what it reports."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.procfs import Process, ancestors
from monitor.pods.inotify import Event, Watcher
from monitor.policy.pods import Pod

#: With inotify a rescan only finds what no event reported. One of 110 pods takes 8 ms by manifests, 25 by the tree.
RESCAN_S = 60.0
#: 1.5 MB of a pod are 20,000 containers: those after so many count as if they requested nothing, so that the pod is
#: evicted sooner. (The kubelet has 110 pods on a node, of 1 to 10 containers.)
MOST_CONTAINERS = 200


@dataclass(frozen=True)
class FoundPod:
    """A pod and its directories; ``containers`` has those names that have one, in order. By ``cgroup_ids`` (the pod's,
    then its containers') a cgroup that was removed and made again differs.
    """

    pod: Pod
    cgroup: Path
    containers: Mapping[str, Path]
    cgroup_ids: tuple[int, ...] = ()


class Ends(NamedTuple):
    """What is called, from any thread, when a server reports an end."""

    evicted: Callable[[str, str, str], object] = lambda *_: None  # uid, namespace/name, message: it ran, and is Evicted
    ending: Callable[[str], object] = lambda _: None  # uid: it is deleted, or evicted through the API


@dataclass(frozen=True)
class Change:
    """What changed since the last poll: new or changed pods, uids that are gone, and new problems (one line each)."""

    updated: list[FoundPod] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass
class Scan:
    """The result of a scan: the pods by uid, every present problem, and the directories to watch."""

    pods: dict[str, FoundPod] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    watch: dict[Path, int] = field(default_factory=dict)  # directory -> inotify mask
    unsettled: bool = False  # something is about to appear that no event announces: scan again soon


class Within(NamedTuple):
    """Where pods lie: below the cgroup ``node`` (None: the whole machine). No pod holds a process of ``spared`` (pids
    of outrace's own) or of what started those. ``cgroup_root`` is the kubelet's.
    """

    hierarchy: Hierarchy
    node: Path | None = None
    spared: tuple[int, ...] = ()
    cgroup_root: str = ""


def first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


class PodSource(ABC):
    """Where pods come from. Call `poll` when `fileno` is readable, and after `due_s` or once a second."""

    #: Whether `pods` are all there are, and not only those heard of so far.
    is_complete = True
    #: Uids of pods that have a cgroup and are not known.
    unlisted: tuple[str, ...] = ()

    def __init__(self, within: Within) -> None:
        self.hierarchy = within.hierarchy
        self.node = within.node or within.hierarchy.root
        self._spared = within.spared
        self._cgroup_root = within.cgroup_root
        # As of the last poll:
        self.pods: Mapping[str, FoundPod] = {}  # by uid
        self.problems: tuple[str, ...] = ()  # also those reported before
        self.kubepods: Path | None = None  # the node's
        self._watcher = Watcher()
        self._events: list[Event] = []  # since the last scan
        self._next_scan = 0.0  # time.monotonic(); 0 = at once
        self._patience_s = 0.0  # before looking again at what is unsettled

    @property
    def is_failing(self) -> bool:
        """Whether a server that reports the pods does not answer: its last pods stay in use."""
        return False

    def fileno(self) -> int | None:
        """A descriptor that is readable when something changed; None without inotify (then only polls find it)."""
        return self._watcher.fileno()

    def due_s(self) -> float:
        """Seconds until the next scan although no event came; 0 or less: at the next poll."""
        return self._next_scan - time.monotonic()

    def unlisted_text(self) -> str:
        """`unlisted` in one line; "" where there is none."""
        what = f"pods that have a cgroup and are not in the list (yet), so not watched: {len(self.unlisted)}"
        return f"{what} ({first(self.unlisted)})" if self.unlisted else ""

    def poll(self) -> Change:
        """What changed since the last poll; the first gives everything. Bad input never raises: see ``problems``."""
        self._events = [e for e in self._watcher.drain() if self._concerns(e)]
        if not self._events and time.monotonic() < self._next_scan:
            return Change()
        scan = self._scan()
        # A directory may have changed between being scanned and being watched: after new watches look again.
        scan.unsettled |= bool(self._watcher.watch_only(scan.watch))
        self._next_scan = self._when(scan, bool(self._events or self._watcher.added))
        return self._difference(scan)

    def _when(self, scan: Scan, changed: bool) -> float:
        """When to scan again if no event comes first."""
        if self._watcher.incomplete:
            return 0.0  # no event may ever come: look in every poll
        if not scan.unsettled:
            self._patience_s = 0.0
            return time.monotonic() + RESCAN_S
        # At the next poll, then after 1 s, 2 s, 4 s: what does not settle soon may never.
        wait = 0.0 if changed else self._patience_s
        self._patience_s = min(max(1.0, 2 * wait), RESCAN_S)
        return time.monotonic() + wait

    def doubt(self, uid: str) -> bool:
        """Have a pod's processes looked at in the next poll, from any thread; False where they do not make it one."""
        return False

    def close(self) -> None:
        self._watcher.close()

    @abstractmethod
    def _scan(self) -> Scan:
        """Look at everything."""

    def _concerns(self, event: Event) -> bool:
        return True

    def _spared_cgroups(self) -> dict[Path, str]:
        """The cgroups of the spared processes, of their ancestors and of process 1, and all above them -> the process,
        in words.
        """
        names = {1: "process 1"}
        for pid in self._spared:
            names |= {above: f"what outrace was started from (process {above})" for above in ancestors(pid)}
        names |= {pid: f"outrace itself (process {pid})" for pid in self._spared}
        found: dict[Path, str] = {}
        for pid, name in names.items():
            with Process(pid) as process:
                if path := process.memory_cgroup(self.hierarchy):
                    found |= dict.fromkeys((path, *path.parents), name)
        return found

    def _difference(self, scan: Scan) -> Change:
        updated = [found for uid, found in scan.pods.items() if self.pods.get(uid) != found]
        removed = [uid for uid in self.pods if uid not in scan.pods]
        problems = dict.fromkeys(scan.problems)
        new = [problem for problem in problems if problem not in self.problems]
        self.pods, self.problems = scan.pods, tuple(problems)
        return Change(updated, removed, new)
