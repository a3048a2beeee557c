"""Metrics about races: verdicts, margins, stalls, the store, the alerts that are sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from monitor.pods.model import FoundPod
from monitor.policy.stall import KUBEPODS, MACHINE
from monitor.race.events import NODE
from monitor.side.export.families import counter, gauge, histogram

if TYPE_CHECKING:
    from monitor.side.races import Races

_ALERTS = {
    "sent": "Alerts that a receiver accepted; again when more is known of one.",
    "failed": "Requests that failed; outrace sends the alerts again.",
    "dropped": "Alerts dropped: a full queue, or a receiver that refuses them.",
}


def race_metrics(races: Races, pods: Mapping[tuple[str, str], FoundPod]) -> Iterator[Metric]:
    """``pods``: by namespace and name."""
    judge, store, recorder = races.judge, races.judge.store, races.recorder
    yield counter("race", "Episodes of pressure that are over, by verdict.", judge.verdicts, "verdict")
    yield counter("incident_flags", "Flags given with verdicts on episodes of pressure.", judge.flags, "flag")
    seconds = {verdict: found.shown() for verdict, found in judge.margin_s.items()}
    nbytes = {verdict: found.shown() for verdict, found in judge.margin_bytes.items()}
    yield histogram("race_margin_seconds", "Time by which races were won or lost, by verdict.", seconds, "verdict")
    yield histogram("race_margin_bytes", "Bytes by which races were won or lost, by verdict.", nbytes, "verdict")
    text = "1 while the kernel would kill another pod than the policy would evict; 0 also while no threshold is near."
    yield gauge("victim_mismatch", text, races.kernels_victim()[1])
    yield from _stalls(races, pods)

    yield gauge("incidents_stored", "Incidents in the store.", store.stored or 0)
    yield gauge("incident_store_failing", "1 while incidents cannot be stored.", bool(store.problem))
    lost = store.lost + judge.dropped
    yield counter("incidents_lost", "Incidents that are not stored: refused, or dropped before.", lost)

    counters = races.alerts.counters
    for name, text in _ALERTS.items():
        yield counter(f"alerts_{name}", text, {to: counts[name] for to, counts in counters.items()}, "receiver")
    waiting = {to: counts["waiting"] for to, counts in counters.items()}
    yield gauge("alerts_waiting", "Alerts that are not accepted yet.", waiting, "receiver")

    written, dropped = (recorder.written, recorder.dropped) if recorder is not None else (0, 0)
    text = "Bytes written to the recording since the helper started; 0 without --record."
    yield gauge("recording_bytes", text, written)
    text = "Inputs missing in the recording: channel, queue or disk was full."
    yield counter("recording_dropped", text, dropped)
    failing = recorder is not None and recorder.failing
    yield gauge("recording_failing", "1 while the recording cannot be written.", failing)


def _stalls(races: Races, pods: Mapping[tuple[str, str], FoundPod]) -> Iterator[Metric]:
    stalls = races.stalls
    yield counter("stalls", "Stalls that lasted for their grace.", stalls.counted)
    shares = stalls.shares
    of_pods = {names: shares[found.pod.uid] for names, found in pods.items() if found.pod.uid in shares}
    text = "Part of the last second in which a pod waited because of memory; absent where the kernel does not say."
    yield gauge("pod_stall_ratio", text, of_pods, "namespace", "pod")
    domains = {(domain,): shares[key] for key, domain in ((MACHINE, NODE), (KUBEPODS, KUBEPODS)) if key in shares}
    yield gauge("stall_ratio", "The same of the machine and of all pods, where a rule watches them.", domains, "domain")
