"""OOM kills on the rest of the machine, where a cgroup is treated as the node: counted, and hardly looked at.

A node that is a cgroup shares the machine with other work, which may be killed dozens of times a second.
"""

from __future__ import annotations

import time
from collections import Counter

from monitor.link.messages import Oom
from monitor.side.view import View

#: They are logged this often at most.
LOG_INTERVAL_NS = 1_000_000_000


def is_outside_node(message: Oom, node_cgroup: str | None) -> bool:
    """Whether an `oom` message is about a process outside the cgroup that is the node, and about no limit in it.

    The programs report the nearest watched cgroup around a victim, and the node is always watched: searching the tree
    of cgroups took 2.8 ms each time. Where they do not (nothing was watched while no daemon ran; before 6.8 a mark has
    no task, so no cgroup) the tree is searched all the same. A machine that runs out concerns the node too.
    """
    if node_cgroup is None or message.pod or message.while_away or message.event.domain is not None:
        return False
    return bool(message.event.victim_cgroup) and (message.event.kind != "mark" or bool(message.event.oom_cgroup))


class MachineKills:
    """Counts them in ``view.kills_outside_node`` and logs them once a second, with their number."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._unlogged: Counter[str] = Counter()
        self._logged_ns = -LOG_INTERVAL_NS

    def take(self, message: Oom) -> None:
        """One step of a kill that is not the node's."""
        if message.event.kind != "mark" or message.event.exiting:
            return
        self._view.kills_outside_node += 1
        self._unlogged[message.event.victim_comm] += 1
        self.flush()

    def flush(self) -> None:
        """Log how many there were since the last line, if that is `LOG_INTERVAL_NS` ago."""
        now = time.monotonic_ns()
        if self._unlogged and now >= self._logged_ns + LOG_INTERVAL_NS:
            names = dict(self._unlogged.most_common(3))
            kills = sum(self._unlogged.values())
            self._unlogged.clear()
            self._logged_ns = now
            self._view.log.info("OOM kills on this machine outside the node's cgroup", kills=kills, victims=names)
