"""Reports evictions that are held: in the log, in the metrics, and who it is that takes the memory.

To name them the processes of the node are read, which may take some milliseconds: a thread does that.
"""

from __future__ import annotations

from pathlib import Path

from monitor.kernel import cgroupfs
from monitor.kernel.oom_candidates import candidates
from monitor.link.messages import Braked, Released
from monitor.policy.releases import era
from monitor.race.badness import Process
from monitor.side.view import View, pod_owners
from monitor.side.worker import Worker

#: How many of those that take the memory are named.
_NAMED = 3


class BrakeReport:
    """``takers`` is the latest answer to who takes the memory, for whoever shows it: largest first."""

    def __init__(self, view: View) -> None:
        self.takers: tuple[str, ...] = ()
        self._view = view
        self._log = view.log
        self._worker = Worker("takers", 1)  # while one look is under way, another would give the same
        view.takers = lambda: self.takers

    def released(self, message: Released) -> None:
        self._log.info("evictions are not held any more", reason="", **message._asdict())
        self.takers = ()

    def braked(self, message: Braked) -> None:
        """Evictions are held, or for another reason than before."""
        fields = {key: value for key, value in message._asdict().items() if key not in ("victim", "name", "order")}
        self._log.warning("evictions are held: they would not help", kubelet_would_evict=message.name, **fields)
        self._worker.submit(self._look)

    def _look(self) -> None:
        found = takers(self._view)
        if self._view.braked is not None or not self.takers:
            self.takers = found
        self._log.warning("what no eviction gives back is taken by", takers=list(found))


def takers(view: View) -> tuple[str, ...]:
    """Who has most of the node's memory and cannot be evicted: critical pods, and cgroups that are in no pod; each with
    its bytes and its largest process.
    """
    pods, rules = view.pods, era(view.config.policy)
    groups: dict[str, list[Process]] = {}
    for process in candidates(view.hierarchy, view.node_path, pod_owners(pods)):
        if process.pod is None:
            groups.setdefault(process.cgroups[0], []).append(process)
        elif process.pod in pods and rules.is_critical(pods[process.pod].pod):
            groups.setdefault(str(pods[process.pod].cgroup), []).append(process)
    sized = [
        (_bytes(view, Path(path), inside), path, max(inside, key=lambda p: p.rss)) for path, inside in groups.items()
    ]
    return tuple(
        f"{largest.comm} (pid {largest.pid}) in {largest.pod_name or path}: {size} bytes"
        for size, path, largest in sorted(sized, key=lambda row: (-row[0], row[1]))[:_NAMED]
    )


def _bytes(view: View, path: Path, processes: list[Process]) -> int:
    """The working set of a cgroup that has nothing but these processes; theirs where more is counted in it."""
    if path not in (view.node_path, view.hierarchy.root) and not list(cgroupfs.descendants(path)):
        reading = view.used(path)
        if reading is not None:
            return reading.working_set
    return sum(p.rss for p in processes)
