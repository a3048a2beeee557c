"""Metrics about races: verdicts, margins, forecasts, the store, the alerts that are sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from monitor.side.verdict_counts import Histogram

if TYPE_CHECKING:
    from monitor.side.races import Races

_ALERTS = {
    "sent": "Changes of alerts that a receiver took.",
    "failed": "Tries to send that failed; what was not taken is tried again.",
    "dropped": "Changes of alerts dropped: a full queue, or a receiver that refuses them.",
}


def race_metrics(races: Races) -> Iterator[Metric]:
    """All of them, read now."""
    tally = races.tally
    total = CounterMetricFamily("outrace_race", "Episodes of pressure that are over, by verdict.", labels=("verdict",))
    for verdict, n in tally.verdicts.items():
        total.add_metric((verdict,), n)
    flags = CounterMetricFamily("outrace_incident_flags", "Flags given with those verdicts.", labels=("flag",))
    for flag, n in tally.flags.items():
        flags.add_metric((flag,), n)
    yield from (total, flags)
    yield _histograms("outrace_race_margin_seconds", "By how much a race was won or lost.", tally.margin_s)
    yield _histograms("outrace_race_margin_bytes", "The same in bytes.", tally.margin_bytes)
    yield from _ahead(races)
    yield from _store(races)
    yield from _alerts(races)
    yield from _recording(races)


def _histograms(name: str, text: str, found: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=("verdict",))
    for verdict, one in found.items():
        family.add_metric((verdict,), buckets=one.buckets(), sum_value=one.sum)
    return family


def _ahead(races: Races) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "outrace_victim_mismatch",
        "1 while the kernel would kill another pod than the policy would evict; 0 also while no threshold is near.",
        float(races.forecaster.mismatch is not None),
    )
    threshold = GaugeMetricFamily(
        "outrace_forecast_threshold_seconds",
        "Until the nearest threshold is crossed if memory goes on growing so; +Inf when it does not grow.",
        labels=("domain", "signal"),
    )
    signals = {"node": "memory.available", "kubepods": "allocatableMemory.available"}
    for domain, seconds in races.forecaster.seconds("threshold").items():
        threshold.add_metric((domain, signals[domain]), inf if seconds is None else seconds)
    oom = GaugeMetricFamily("outrace_forecast_oom_seconds", "... until the domain's limit is hit.", labels=("domain",))
    for domain, seconds in races.forecaster.seconds("oom").items():
        oom.add_metric((domain,), inf if seconds is None else seconds)
    pods = GaugeMetricFamily(
        "outrace_pod_forecast_oom_seconds",
        "Until a pod hits its own limit, of those that grow towards one.",
        labels=("namespace", "pod"),
    )
    known = races.forecaster.view.pods
    for uid, seconds in races.forecaster.pods().items():
        if uid in known:
            pods.add_metric((known[uid].pod.namespace, known[uid].pod.name), seconds)
    yield pods
    error = races.tally.forecast_error
    yield from (threshold, oom)
    yield HistogramMetricFamily(
        "outrace_forecast_error_seconds",
        "By how much the first forecast of the last 30 s was wrong when a threshold was crossed.",
        buckets=error.buckets(),
        sum_value=error.sum,
    )


def _store(races: Races) -> Iterator[Metric]:
    store = races.judge.store
    yield GaugeMetricFamily("outrace_incidents_stored", "Incidents in the store.", store.stored or 0)
    yield GaugeMetricFamily("outrace_incident_store_failing", "1 while incidents cannot be stored.", store.failing)
    yield CounterMetricFamily(
        "outrace_incidents_lost",
        "Incidents refused by the store, or dropped before it.",
        store.lost + races.judge.dropped,
    )


def _alerts(races: Races) -> Iterator[Metric]:
    counters = races.alerts.counters if races.alerts is not None else {}
    for name, text in _ALERTS.items():
        family = CounterMetricFamily(f"outrace_alerts_{name}", text, labels=("receiver",))
        for receiver, counts in counters.items():
            family.add_metric((receiver,), counts[name])
        yield family
    waiting = GaugeMetricFamily("outrace_alerts_waiting", "Changes of alerts not yet taken.", labels=("receiver",))
    for receiver, counts in counters.items():
        waiting.add_metric((receiver,), counts["waiting"])
    yield waiting


def _recording(races: Races) -> Iterator[Metric]:
    recorder = races.recorder
    yield GaugeMetricFamily(
        "outrace_recording_bytes",
        "Bytes written to the recording since the side process started; 0 without --record.",
        recorder.written if recorder is not None else 0,
    )
    yield CounterMetricFamily(
        "outrace_recording_dropped",
        "Inputs missing in the recording: no room in the channel, in the queue or on the disk.",
        recorder.dropped if recorder is not None else 0,
    )
    yield GaugeMetricFamily(
        "outrace_recording_failing",
        "1 while the recording cannot be written.",
        recorder is not None and recorder.failing,
    )
