"""What the helper knows, without a hot process."""

import os
from types import SimpleNamespace
from typing import Any

from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.disks import find_disks
from monitor.link.counters import SharedStats
from monitor.settings.config import RunConfig
from monitor.side.disk_watch import DiskWatch
from monitor.side.export.log import Log
from monitor.side.node_state import NodeState


def view(config: RunConfig, hierarchy: Hierarchy, capacity: int, **more: Any) -> NodeState:
    """Nothing that it sends arrives."""
    pids = {"hot_pid": os.getpid(), "side_pid": os.getpid()}
    parts = {"stats": SharedStats.create(), "send": lambda _: False, "wake_side": lambda: None}
    source = SimpleNamespace(unlisted=(), feed=None)
    watches = {
        "watch": SimpleNamespace(source=source, stalled_s=lambda: 0.0),
        "disks": DiskWatch(config, find_disks(), dict, lambda: None, Log()),
    }
    return NodeState(config=config, hierarchy=hierarchy, capacity=capacity, **{**pids, **parts, **watches, **more})
