"""Metrics of what is written to the API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from monitor.side.export.families import counter, gauge, histogram

if TYPE_CHECKING:
    from monitor.side.cluster.cluster import Cluster


def cluster_metrics(cluster: Cluster) -> Iterator[Metric]:
    tally, events = cluster.statuses.tally, cluster.events
    text = "Time from a pod's SIGKILL, or its end in a grace, to its status accepted by the API server."
    yield histogram("cluster_status_seconds", text, {"": tally.seconds.shown()})
    text = "Of that, until the request was on its way: outrace's own part."
    yield histogram("cluster_status_sent_seconds", text, {"": tally.sent.shown()})
    text = "Statuses of evicted pods, by what became of them; only `taken` is sure to stay."
    yield counter("cluster_statuses", text, dict(tally.fates), "outcome")
    text = "Times a kubelet wrote another phase over such a status, and it was written again."
    yield counter("cluster_statuses_erased", text, tally.erased)
    if cluster.evictions is not None:
        asked = cluster.evictions.tally
        text = "Time from a decision to its eviction accepted by the API server (--evict-by api)."
        yield histogram("cluster_eviction_seconds", text, {"": asked.seconds.shown()})
        text = "Requests to evict a pod, by the answer: `budget`: a PodDisruptionBudget keeps it."
        yield counter("cluster_evictions", text, dict(asked.outcomes), "outcome")
    yield counter("cluster_events", "Events that the API server has taken.", events.sent)
    yield counter(
        "cluster_events_dropped", "Events that the API server refused, or that were too many.", events.dropped
    )
    yield gauge("cluster_records_waiting", "Evictions whose events wait for the API server.", events.waiting)
