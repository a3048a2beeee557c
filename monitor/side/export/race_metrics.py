"""Metrics about races: verdicts, margins, forecasts, the store, the alerts that are sent."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from monitor.side.export.families import counter, gauge, histogram

if TYPE_CHECKING:
    from monitor.side.races import Races

_ALERTS = {
    "sent": "Changes of alerts that a receiver took.",
    "failed": "Tries to send that failed; what was not taken is tried again.",
    "dropped": "Changes of alerts dropped: a full queue, or a receiver that refuses them.",
}
_SIGNALS = {"node": "memory.available", "kubepods": "allocatableMemory.available"}


def race_metrics(races: Races) -> Iterator[Metric]:
    tally, store, recorder = races.tally, races.judge.store, races.recorder
    yield counter("race", "Episodes of pressure that are over, by verdict.", tally.verdicts, "verdict")
    yield counter("incident_flags", "Flags given with verdicts on episodes of pressure.", tally.flags, "flag")
    seconds = {verdict: found.shown() for verdict, found in tally.margin_s.items()}
    nbytes = {verdict: found.shown() for verdict, found in tally.margin_bytes.items()}
    yield histogram("race_margin_seconds", "By how much a race was won or lost.", seconds, "verdict")
    yield histogram("race_margin_bytes", "By how many bytes a race was won or lost.", nbytes, "verdict")
    yield from _ahead(races)

    yield gauge("incidents_stored", "Incidents in the store.", store.stored or 0)
    yield gauge("incident_store_failing", "1 while incidents cannot be stored.", store.failing)
    lost = store.lost + races.judge.dropped
    yield counter("incidents_lost", "Incidents refused by the store, or dropped before it.", lost)

    counters = races.alerts.counters if races.alerts is not None else {}
    for name, text in _ALERTS.items():
        yield counter(f"alerts_{name}", text, {who: counts[name] for who, counts in counters.items()}, "receiver")
    waiting = {who: counts["waiting"] for who, counts in counters.items()}
    yield gauge("alerts_waiting", "Changes of alerts not yet taken.", waiting, "receiver")

    written, dropped = (recorder.written, recorder.dropped) if recorder is not None else (0, 0)
    text = "Bytes written to the recording since the side process started; 0 without --record."
    yield gauge("recording_bytes", text, written)
    text = "Inputs missing in the recording: no room in the channel, in the queue or on the disk."
    yield counter("recording_dropped", text, dropped)
    failing = recorder is not None and recorder.failing
    yield gauge("recording_failing", "1 while the recording cannot be written.", failing)


def _ahead(races: Races) -> Iterator[Metric]:
    forecaster = races.forecaster
    yield gauge(
        "victim_mismatch",
        "1 while the kernel would kill another pod than the policy would evict; 0 also while no threshold is near.",
        forecaster.mismatch is not None,
    )
    growing = {d: inf if s is None else s for d, s in forecaster.seconds("oom").items()}
    thresholds = {
        (domain, _SIGNALS[domain]): inf if seconds is None else seconds
        for domain, seconds in forecaster.seconds("threshold").items()
    }
    text = "Until the nearest threshold is crossed if memory goes on growing so; +Inf when it does not grow."
    yield gauge("forecast_threshold_seconds", text, thresholds, "domain", "signal")
    yield gauge(
        "forecast_oom_seconds",
        "Until the limit of the domain is hit if memory goes on growing so; +Inf when it does not grow.",
        growing,
        "domain",
    )
    pods = forecaster.view.pods
    near = {
        (pods[uid].pod.namespace, pods[uid].pod.name): seconds
        for uid, seconds in forecaster.pods().items()
        if uid in pods
    }
    text = "Until a pod hits its own limit, of those that grow towards one."
    yield gauge("pod_forecast_oom_seconds", text, near, "namespace", "pod")
    text = "By how much the first forecast of the last 30 s was wrong when a threshold was crossed."
    yield histogram("forecast_error_seconds", text, {"": races.tally.forecast_error.shown()})
