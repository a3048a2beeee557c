"""What node-level clean-up did, as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from monitor.actions.reclaim import RESULTS
from monitor.side.cleanup import ACTIONS, Cleanup
from monitor.side.export.families import counter


def reclaim_metrics(cleanup: Cleanup) -> Iterator[Metric]:
    """Since the side started."""
    runs = {(action, result): cleanup.runs[action, result] for action in ACTIONS for result in RESULTS}
    yield counter("reclaim_runs", "Times the node was cleaned up before a pod is evicted.", runs, "action", "result")
    text = "Bytes that were free after a clean-up and not before."
    yield counter("reclaim_freed_bytes", text, {action: cleanup.freed_bytes[action] for action in ACTIONS}, "action")
    text = "Inodes that were free after a clean-up and not before."
    yield counter("reclaim_freed_inodes", text, {action: cleanup.freed_inodes[action] for action in ACTIONS}, "action")
