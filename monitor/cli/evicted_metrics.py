"""The metrics of `outrace evicted run`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from monitor.evicted.controller import Controller
from monitor.side.export.families import counter, gauge
from monitor.side.export.route import Response


class EvictedMetrics:
    """A collector of prometheus_client."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, accept: str) -> Response:
        encoder, content_type = choose_encoder(accept)
        return Response(200, content_type, encoder(self._registry))

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        elector, counters = self._controller.elector, self._controller.counters
        yield gauge("evicted_leader", "1 while this process holds the lease, and deletes.", elector.may_act())
        yield counter("evicted_leases", "Times this process got the lease.", elector.acquired)
        yield counter(
            "evicted_pods_handled",
            "Evicted pods that were to be deleted, by what became of them: deleted, marked (finalizers keep them), "
            "gone (already), changed (left alone), failed.",
            dict(counters.outcomes),
            "outcome",
        )
        yield counter(
            "evicted_sweeps", "Sweeps of the cluster: ok, failed, ended half way.", dict(counters.sweeps), "result"
        )
        yield gauge("evicted_pods", "Evicted pods found by the last sweep.", counters.found)
        yield gauge("evicted_pods_chosen", "Those of them that were to be deleted.", counters.chosen)
        yield gauge(
            "evicted_pods_failed_otherwise", "Pods that Failed for another reason: left alone.", counters.others
        )
        yield gauge("evicted_interval_seconds", "Time between two sweeps.", self._controller.interval_s)
        yield gauge(
            "evicted_last_sweep_timestamp_seconds", "When the last sweep got through; 0: never.", counters.swept_at
        )
