"""What node-level clean-up did and would do, as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from monitor.actions.reclaim import RESULTS
from monitor.side.cleanup import ACTIONS, Cleanup
from monitor.side.export.families import counter, gauge


def reclaim_metrics(cleanup: Cleanup) -> Iterator[Metric]:
    """Since the side started. What would be removed is there only once a runtime has been asked."""
    runs = {(action, result): cleanup.runs[action, result] for action in ACTIONS for result in RESULTS}
    yield counter("reclaim_runs", "Times the node was cleaned up before a pod is evicted.", runs, "action", "result")
    text = "Dead containers, pods of them, and unused images removed."
    yield counter("reclaim_removed", text, {action: cleanup.removed[action] for action in ACTIONS}, "action")
    text = "Bytes that were free after a clean-up of a runtime's store and not before."
    yield counter("reclaim_freed_bytes", text, {action: cleanup.freed_bytes[action] for action in ACTIONS}, "action")
    text = "Inodes that were free after a clean-up of a runtime's store and not before."
    yield counter("reclaim_freed_inodes", text, {action: cleanup.freed_inodes[action] for action in ACTIONS}, "action")
    looks = cleanup.candidates
    text = "What a clean-up would remove, at the last look: every five minutes."
    yield gauge("reclaim_candidates", text, {action: report["count"] for action, report in looks.items()}, "action")
    text = "Bytes of it, as far as the runtime knows."
    yield gauge(
        "reclaim_candidates_bytes", text, {action: report["bytes"] for action, report in looks.items()}, "action"
    )
