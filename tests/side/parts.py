"""The parts of a helper without a hot process."""

import os
from types import SimpleNamespace
from typing import Any

from monitor.kernel.disks import find_disks
from monitor.kube.cluster import ClusterConfig
from monitor.link.counters import SharedStats
from monitor.settings.config import RunConfig
from monitor.side.cluster.cluster import Cluster
from monitor.side.disk_watch import DiskWatch
from monitor.side.endpoints import Summary
from monitor.side.export.log import Log
from monitor.side.health import Health
from monitor.side.holds import Holds
from monitor.side.message_handler import MessageHandler
from monitor.side.node_state import Figures, Inbox, NodeState
from monitor.side.process_watch import ProcessWatch
from monitor.side.races import Races


class Parts:
    """Nothing that they send arrives."""

    def __init__(self, config: RunConfig, *place: Any, table: Any = None, log: Any = None, **known: Any) -> None:
        self.log, self.inbox, self.send = log or Log(), Inbox(lambda: None), lambda _: False
        self.node = NodeState(config, *place, os.getpid(), os.getpid(), **known)
        source = SimpleNamespace(unlisted=(), is_failing=False)
        self.watch: Any = SimpleNamespace(source=source, stalled_s=lambda: 0.0)
        self.disks = DiskWatch(config, find_disks(), dict, self.send, lambda _: None, Log())
        self.holds = Holds(self.node, self.log, self.send, config.holds)
        stats = SharedStats.create()
        os.close(stats.fd)  # no process inherits it, and the mapping has its own
        self.figures = Figures(self.node, stats, self.send, table)
        self.health = Health(self.node, self.figures, lambda: None, self.watch, self.disks)
        self.summary = Summary(self.node, self.figures, self.health, lambda: None)

    def handler(self, cluster: Any = None) -> MessageHandler:
        return MessageHandler(self.figures, self.holds, self.disks, self.log, lambda _: None, cluster)

    def processes(self, doubt: Any = lambda _: None) -> ProcessWatch:
        return ProcessWatch(self.node, self.figures, self.log, doubt, lambda _: None)

    def races(self) -> Races:
        return Races(self.node, self.figures, self.holds, self.inbox, self.log, self.send)

    def cluster(self, server: ClusterConfig, *told: Any) -> Cluster:
        return Cluster(server, "node-1", self.node, self.disks, self.inbox.report, self.log, *told)
