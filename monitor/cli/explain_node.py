"""What `outrace explain` explains: the live node and its pods as one answer of the Summary API, and a pass of the
policy over it. Figures come from where `outrace top` has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from monitor.cli.options import with_disks
from monitor.cli.top_frame import Node
from monitor.kernel import cgroupfs, disks
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.disks import Disks
from monitor.pods.model import FoundPod
from monitor.pods.storage import Roots, measure, process_stats
from monitor.policy.eviction_pass import PassConfig, run_pass
from monitor.policy.kubelet_pass import KubeletResult, is_limited, kubelet_pass
from monitor.policy.signals import KUBELET_SIGNALS, MEMORY, MEMORY_SIGNALS, OF_DISK, PID, Observation
from monitor.policy.stats import Summary
from monitor.policy.synchronize import State
from monitor.policy.victims import Ranked, rank_pods
from monitor.settings.config import RunConfig

_DISK_SIGNALS = frozenset(KUBELET_SIGNALS) - MEMORY_SIGNALS - {PID}


@dataclass(frozen=True)
class Situation:
    """The node as it is now. ``summary`` has what was measured, ``result`` what a first pass of a fresh daemon decides
    on it (a soft threshold begins its grace there), ``signal`` what the pods are ranked for. ``frame`` is `top`'s;
    ``held`` are the conditions of the daemon that answered, None without one.
    """

    config: RunConfig
    rules: PassConfig
    node: Node
    frame: Mapping[str, Any]
    found: Mapping[str, FoundPod]
    summary: Summary
    result: KubeletResult
    signal: str
    held: tuple[str, ...] | None
    problems: Sequence[str]

    @property
    def conditions(self) -> tuple[str, ...]:
        """The node's conditions: those the daemon holds, transition period included, else those of the pass."""
        if self.held is not None:
            return self.held
        return tuple(sorted(self.result.outcome.conditions)) if self.result.outcome is not None else ()

    def order(self) -> list[Ranked]:
        pods = [found.pod for found in self.found.values()]
        return rank_pods(self.signal, pods, self.summary.pods, self.rules.layout, self.rules.era)


def look(node: Node, signal: str | None) -> Situation:
    """Measure the node and let the policy pass over it.

    ``signal`` None is the one a pass would act on, else one that waits for its grace, else ``memory.available``.
    Raises MonitorError.
    """
    config, found_disks = with_disks(node.config)
    frame, source = node.frame(), node.source
    measured = {pod["uid"] for pod in frame["pods"]}
    # One that ended since the poll has no figures, and would rank first for that.
    found = {uid: pod for uid, pod in source.pods.items() if uid in measured or cgroupfs.exists(pod.cgroup)}
    observations = _observe(frame, found_disks)
    rules = config.pass_config()
    if signal is None:
        outcome = run_pass(rules, State(), observations, 0, lambda _: ()).outcome
        wanted = outcome.starved or next(iter(outcome.observed), None)
        signal = MEMORY if wanted is None else wanted.signal
    problems = [*source.problems, *filter(None, (source.unlisted_text(),)), *_unknown_pods(frame, found)]
    stats = {pod["uid"]: _stats(pod, found[pod["uid"]], node.hierarchy) for pod in frame["pods"] if pod["uid"] in found}
    problems += _measure(config, stats, found, signal, Roots.of(found_disks))
    summary = Summary({"pods": list(stats.values())})
    summary.observations |= observations
    pods = [one.pod for one in found.values()]
    # What cleaning up would free is not known before it is done: as if it were not enough.
    result = kubelet_pass(rules, State(), pods, lambda: summary, 0, lambda _: None)
    held = None
    if node.daemon is not None and frame["source"].startswith("daemon "):
        held = tuple(sorted(node.daemon.info.conditions))
    return Situation(config, rules, node, frame, found, summary, result, signal, held, problems)


def _unknown_pods(frame: Mapping[str, Any], found: Mapping[str, FoundPod]) -> list[str]:
    unknown = [f"{pod['namespace']}/{pod['name']}" for pod in frame["pods"] if pod["uid"] not in found]
    if not unknown:
        return []
    return [f"the daemon also knows {', '.join(unknown)}, left out here: give explain the --pods the daemon has"]


def _observe(frame: Mapping[str, Any], found: Disks) -> dict[str, Observation]:
    """What each signal reads: of memory by the frame, of disks and process ids now."""
    seen = {signal: Observation(of["available"], of["capacity"], 0) for signal, of in frame["signals"].items()}
    for path, (space, inodes) in zip((found.nodefs, found.imagefs, found.imagefs), OF_DISK, strict=True):
        fs = disks.file_system(path)
        seen[space] = Observation(fs.available, fs.capacity, 0)
        if fs.inodes is not None and fs.inodes_free is not None:
            seen[inodes] = Observation(fs.inodes_free, fs.inodes, 0)
    most, running = disks.pid_counts()
    return seen | {PID: Observation(most - running, most, 0)}


def _stats(pod: Mapping[str, Any], found: FoundPod, hierarchy: Hierarchy) -> dict[str, Any]:
    """The memory of a pod of the frame, in the shape of the Summary API."""
    return {
        "podRef": {key: pod[key] for key in ("name", "namespace", "uid")},
        "memory": {"workingSetBytes": pod["working_set"]},
        "containers": list(_containers(hierarchy, found)),
    }


def _containers(hierarchy: Hierarchy, pod: FoundPod) -> Iterator[dict[str, Any]]:
    """The working set of each container, which only messages name: always from the cgroup files."""
    for name, path in pod.containers.items():
        with suppress(cgroupfs.CgroupGone):
            yield {"name": name, "memory": {"workingSetBytes": cgroupfs.read_cgroup(hierarchy, path).working_set}}


def _measure(
    config: RunConfig, stats: dict[str, Any], found: Mapping[str, FoundPod], signal: str, roots: Roots
) -> list[str]:
    """Add what ranking for ``signal`` and the pods' own limits of storage take beside memory; the problems met.

    Walks the pods' directories for a disk signal, and those of pods with such limits always.
    """
    problems: list[str] = []
    for uid, pod in found.items():
        if signal in MEMORY_SIGNALS and uid not in stats:
            continue  # without memory figures it is one without stats, and ranks as such
        if signal in _DISK_SIGNALS or (config.local_storage and is_limited(pod.pod)):
            measured = measure(pod, roots)
            figures = measured.stats
            problems += measured.problems
        elif signal == PID:
            figures = process_stats(pod)
        else:
            continue
        stats[uid] = _merged(figures._raw, stats.get(uid, {}))
    return problems


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two sets of figures of one pod, container by container."""
    containers: dict[str, dict[str, Any]] = {}
    for entry in (*one.get("containers", ()), *other.get("containers", ())):
        containers.setdefault(entry["name"], {}).update(entry)
    return {**one, **other, "containers": list(containers.values())}
