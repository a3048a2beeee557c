"""The pods in eviction order by the figures of this moment, and the kernel's victim where that is another pod."""

from __future__ import annotations

from monitor.kernel.oom_candidates import candidates, total_pages
from monitor.policy.ranking import Candidate
from monitor.policy.releases import era
from monitor.policy.signals import MEMORY
from monitor.policy.stats import PodStats
from monitor.policy.victims import rank_pods
from monitor.race.badness import Victim, evictable, likely_victim
from monitor.side.node_state import Figures, NodeState, pod_owners


def eviction_order(node: NodeState, figures: Figures) -> list[Candidate]:
    """The policy's order."""
    stats = {}
    for uid, found in node.pods.items():
        reading = figures.used(found.cgroup)
        if reading is not None:
            stats[uid] = PodStats({"memory": {"workingSetBytes": reading.working_set}})
    pods = [found.pod for found in node.pods.values()]
    return [one.candidate for one in rank_pods(MEMORY, pods, stats, era=era(node.config.policy))]


def kernels_victim(node: NodeState, figures: Figures) -> tuple[Victim | None, bool]:
    """The process that the kernel would kill, and whether that is of another pod than the policy's first. Reads all
    processes: some ms for 110 pods.
    """
    processes = candidates(node.hierarchy, node.node_path, pod_owners(node.pods))
    total = total_pages(node.hierarchy, node.node_path)
    found = likely_victim(processes, total)
    order = evictable(eviction_order(node, figures))
    return found, found is not None and bool(order) and found.process.pod != order[0].uid
