"""Every name /metrics can show, from the code that makes them: of a node on which nothing has happened yet."""

from pathlib import Path
from typing import Any, cast

from monitor.kernel import cgroupfs, meminfo
from monitor.kube.cluster import ClusterConfig, Server
from monitor.settings.config import RunConfig
from monitor.side.cluster.cluster import Cluster
from monitor.side.export.metrics import Metrics
from monitor.side.process_watch import ProcessWatch
from monitor.side.races import Races
from monitor.side.reload import Reloader
from monitor.side.worker import Worker
from tests.side.views import view as side_view

_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "info": ("_info",)}


class _NoServer:
    """Stands for the HTTP server, of which three numbers are read."""

    refused = cut = connections = 0


#: It is not asked.
_SERVER = ClusterConfig(Server("127.0.0.1", 9, https=False))


def exported_names(state_dir: Path) -> set[str]:
    """The names of samples, as scraped; also of families without a sample here."""
    config = RunConfig(state_dir=str(state_dir), alertmanagers=("http://127.0.0.1:9",))
    view = side_view(config, cgroupfs.detect(), meminfo.mem_total(), thresholds=config.thresholds())
    view.races = Races(view)
    view.reloader = Reloader(view)
    worker = Worker("none")
    view.cluster = Cluster(view, _SERVER, "node-1", worker)
    metrics = Metrics(view, ProcessWatch(view), worker, worker, cast(Any, _NoServer()))
    try:
        families = list(metrics.collect())
        return {family.name + suffix for family in families for suffix in _SUFFIXES[family.type]}
    finally:
        view.cluster.close()
        view.races.close(1.0, 1.0)
        worker.close(1.0)
