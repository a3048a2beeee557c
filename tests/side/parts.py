"""The parts of a helper without a hot process."""

import os
from types import SimpleNamespace
from typing import Any

from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.disks import find_disks
from monitor.link.counters import SharedStats
from monitor.settings.config import RunConfig
from monitor.side.cluster.cluster import Cluster
from monitor.side.disk_watch import DiskWatch
from monitor.side.endpoints import Summary
from monitor.side.export.log import Log
from monitor.side.health import Health
from monitor.side.message_handler import MessageHandler
from monitor.side.node_state import Figures, NodeState
from monitor.side.worker import Worker


class Parts:
    """Nothing that they send arrives."""

    def __init__(self, config: RunConfig, hierarchy: Hierarchy, capacity: int, table: Any = None, **known: Any) -> None:
        pids = {"hot_pid": os.getpid(), "side_pid": os.getpid()}
        ways: dict[str, Any] = {"send": lambda _: False, "wake_side": lambda: None}
        self.node = NodeState(config=config, hierarchy=hierarchy, capacity=capacity, **pids, **ways, **known)
        source = SimpleNamespace(unlisted=(), feed=None)
        self.watch: Any = SimpleNamespace(source=source, stalled_s=lambda: 0.0)
        self.disks = DiskWatch(config, find_disks(), dict, lambda: None, Log())
        self.figures = Figures(self.node, SharedStats.create(), self.node.send, table)
        about = self.figures.stats, self.node.send, self.node.wake_side, self.watch, self.disks
        self.health = Health(self.node, *about)
        self.summary = Summary(self.node, self.figures, self.health, lambda: None)

    def handler(self, files: Worker | None = None, scored: Any = lambda _: None, cluster: Any = None) -> MessageHandler:
        files = files or Worker("files")
        return MessageHandler(self.node, self.figures, self.disks, files, scored, lambda: None, cluster)

    def cluster(self, *about: Any, **more: Any) -> Cluster:
        return Cluster(self.node, self.disks, *about, **more)
