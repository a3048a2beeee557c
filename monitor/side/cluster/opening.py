"""Whether there is a cluster to report to. Its client, some MB, is imported only where there is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from monitor.pods.spec import CLUSTER, check_spec

if TYPE_CHECKING:
    from monitor.side.cluster.cluster import Cluster
    from monitor.side.message_handler import MessageHandler
    from monitor.side.view import View
    from monitor.side.worker import Worker


def cluster_for(view: View, files: Worker, messages: MessageHandler) -> Cluster | None:
    """The cluster that the pods come from, if any. Taints that an instance before left are removed without one too."""
    found, state_dir = None, Path(view.config.state_dir)
    if check_spec(view.config.pods)[0] in CLUSTER:
        from monitor.side.cluster.cluster import open_cluster

        found = open_cluster(view, files, messages)
    if (state_dir / "taints").is_dir():
        from monitor.side.cluster.taint_record import start_removal

        # One that sets taints looks at those of its node itself. Another may lack the right that they were set with.
        start_removal(state_dir, view.log, found.node if found is not None and view.config.taints_node else "")
    return found
