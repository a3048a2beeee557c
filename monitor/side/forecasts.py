"""Forecasts: time to the thresholds and to an OOM kill, and the kernel's likely victim where it is not the policy's.

Looked at once a second at most, in a thread of its own: reading the processes of 110 pods takes some milliseconds. Far
from every threshold the counters are not of this moment: then there is no forecast.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from monitor.kernel import cgroupfs
from monitor.kernel.oom_candidates import candidates, total_pages
from monitor.policy.ranking import Candidate
from monitor.policy.releases import era
from monitor.policy.signals import MEMORY
from monitor.policy.stats import PodStats
from monitor.policy.victims import rank_pods
from monitor.race.badness import likely_victim, mismatch
from monitor.race.events import Crossing, Sample, Watched
from monitor.race.forecast import LEVEL, SEEN_NS, DomainForecast, Forecast, domain_forecasts, within
from monitor.side.export.log import Log
from monitor.side.judge import Histogram
from monitor.side.node_state import Figures, NodeState, pod_owners

_SOON_NS = 60_000_000_000
_VICTIMS = "victims"
#: An alert waits until the late end of a domain's interval has been within `_SOON_NS` for so long: what breathes (a
#: build, a service at its start) is not. And until kernel and policy would have taken different pods for as long as in
#: the alerting rules: pods change their rank in both orders while they work.
_LASTS_NS = {"node": 10_000_000_000, "kubepods": 10_000_000_000, _VICTIMS: 60_000_000_000}
#: A last sample older than this is of a cgroup that does not change.
_STILL_NS = 1_500_000_000
#: Seconds by which a forecast was wrong.
FORECAST_ERROR_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
#: How often the kernel's likely victim is computed while a threshold may be near.
_VICTIM_NS = 5_000_000_000


@dataclass(eq=False)
class Forecaster:
    """``forecasts`` and ``mismatch`` are the latest, whole values that other threads may read."""

    node: NodeState
    figures: Figures
    log: Log
    facts: Callable[[], tuple[Sequence[Sample], Sequence[Watched]]]

    def __post_init__(self) -> None:
        self.forecasts: Mapping[str, DomainForecast] = {}
        self.mismatch: Mapping[str, Any] | None = None
        self.error_s = Histogram(FORECAST_ERROR_S)
        self.judged = dict.fromkeys(("inside", "sooner", "later", "none"), 0)  # crossings, by their forecast
        self._made: dict[tuple[str, str, int], Forecast] = {}  # domain, signal, level -> what its crossing is held to
        self._victims_ns = 0
        self._since_ns: dict[str, int] = {}  # domain whose OOM kill is near, or `_VICTIMS` -> since when; a whole value
        self._samples_came = threading.Event()

    def start(self) -> None:
        """Begin; the thread ends with the process."""
        threading.Thread(target=self._run, name="forecaster", daemon=True).start()

    def wake(self) -> None:
        """There are new samples."""
        self._samples_came.set()

    def crossed(self, crossing: Crossing) -> None:
        """A threshold was crossed: count how far off its forecast was, and whether it came in the interval."""
        if any(w.compared and w.threshold == crossing.threshold for w in self.facts()[1]):
            return  # only a kubelet would have that line: there is no forecast of it
        made = self._made.pop((crossing.domain, crossing.signal, crossing.capacity - crossing.quantity), None)
        # One that is older was followed by no other: growth paused.
        if made is None or made.in_ns is None or crossing.ts_ns > made.at_ns + SEEN_NS + _STILL_NS:
            self.judged["none"] += 1
            return
        left_ns = crossing.ts_ns - made.at_ns
        seconds = (made.in_ns - left_ns) / 1e9
        self.error_s.observe(abs(seconds))
        self.judged["inside" if within(made, left_ns) else "sooner" if seconds > 0 else "later"] += 1

    @property
    def _current(self) -> Mapping[str, DomainForecast]:
        """The latest; none once nothing is followed finely: it would stand until the next samples, up to 10 s."""
        return self.forecasts if self.figures.stats.get("armed") else {}

    def outlook(self, what: str) -> dict[str, Forecast]:
        """Domain -> the forecast of its nearest ``threshold``, or of its limit (``oom``); none where too little is
        known, and while no threshold is near.
        """
        now = self._current
        found = {name: getattr(now.get(name), what, None) for name in {w.domain for w in self.facts()[1]}}
        return {name: made for name, made in found.items() if made is not None}

    def report(self) -> list[dict[str, Any]]:
        """The forecasts of node and kubepods as they stand, for `/stats/summary`: how many seconds, the interval that
        ``interval_holds`` of the crossings fall into, and how fast memory grows; or why there is none.
        """
        found = []
        for what in ("threshold", "oom"):
            for domain, made in sorted(self.outlook(what).items()):
                ends = (made.in_ns, made.soonest_ns, made.latest_ns)
                seconds = [None if ns is None else round(ns / 1e9, 3) for ns in ends]
                about: dict[str, Any] = {"domain": domain, "of": what, "signal": made.signal or None}
                about["level_bytes"] = made.level
                about |= {"no": made.no or None} | dict(zip(("seconds", "soonest_s", "latest_s"), seconds, strict=True))
                found.append(about | {"interval_holds": LEVEL, "bytes_per_s": round(made.rate)})
        return found

    def alarms(self, now_ns: int) -> tuple[dict[str, Forecast], Mapping[str, Any] | None]:
        """What is worth an alert, because it has held for a while: forecasts of an OOM kill by domain; the mismatch."""
        if not self.figures.stats.get("armed"):
            return {}, None
        lasting = [what for what, ns in self._since_ns.items() if now_ns - ns >= _LASTS_NS[what]]
        ahead = {name: self.forecasts[name].oom for name in lasting if name in self.forecasts}
        soon = {name: made for name, made in ahead.items() if made is not None and made.in_ns is not None}
        return soon, self.mismatch if _VICTIMS in lasting else None

    def _note_alarms(self, now_ns: int) -> None:
        ends = {name: one.oom.latest_ns for name, one in self.forecasts.items() if one.oom is not None}
        found = [name for name in ("node", "kubepods") if (ns := ends.get(name)) is not None and ns < _SOON_NS]
        found += [] if self.mismatch is None else [_VICTIMS]
        self._since_ns = {what: self._since_ns.get(what, now_ns) for what in found}

    def _run(self) -> None:
        logged = ""
        while self._samples_came.wait():
            self._samples_came.clear()
            problem = ""
            try:
                self._update(time.monotonic_ns())
            except Exception as error:  # noqa: BLE001 - one odd look at /proc must not end all forecasts
                problem = f"{type(error).__name__}: {error}"
                if problem != logged:
                    self.log.error("forecasts failed; trying again", problem=problem)
            logged = problem

    def _update(self, now: int) -> None:
        samples, watched = self.facts()
        growing, limits = self._growing(samples, now)
        self.forecasts = {o.name: o for o in domain_forecasts(growing, watched, now, limits)}
        for name in ("node", "kubepods"):
            forecast = self.forecasts.get(name)
            if forecast is not None and forecast.threshold is not None and (forecast.threshold.in_ns or 0) > 0:
                key = (name, forecast.threshold.signal, forecast.threshold.level)
                if now - self._made.setdefault(key, forecast.threshold).at_ns > SEEN_NS:
                    self._made[key] = forecast.threshold
        if not self.figures.stats.get("armed"):
            self.mismatch = None
        elif now - self._victims_ns >= _VICTIM_NS:
            self._victims_ns, self.mismatch = now, self._compare()
        self._note_alarms(now)

    def _growing(self, samples: Sequence[Sample], now_ns: int) -> tuple[list[Sample], dict[str, int]]:
        """The last samples of the domains, and of the pods with a limit that grew, in order of time; these limits.

        A cgroup that stands still is written down only now and then: its last sample holds for this moment too.
        """
        limits: dict[str, int] = {}
        found: dict[str, list[Sample]] = {}
        for sample in sorted((s for s in samples if s.ts_ns >= now_ns - SEEN_NS), key=lambda s: s.ts_ns):
            found.setdefault(sample.domain, []).append(sample)
        kept: list[Sample] = []
        for name, own in found.items():
            last = own[-1]
            if last.pod is not None:
                if last.usage <= own[0].usage or (limit := self._limit(last.pod)) is None:
                    continue
                limits[name] = limit
            if now_ns - last.ts_ns > _STILL_NS:
                own.append(replace(last, ts_ns=now_ns))
            kept += own
        return sorted(kept, key=lambda s: s.ts_ns), limits

    def _limit(self, uid: str) -> int | None:
        """The pod's own limit; None if it has none."""
        found = self.node.pods.get(uid)
        with suppress(cgroupfs.CgroupGone):
            return None if found is None else cgroupfs.limit(found.cgroup)
        return None

    def pods(self) -> dict[str, float]:
        """Uid -> seconds until the pod's own limit is hit, of those that grow towards one."""
        found = ((one.pod, one.oom.in_ns if one.oom is not None else None) for one in self._current.values())
        return {pod: ns / 1e9 for pod, ns in found if pod is not None and ns is not None}

    def _compare(self) -> Mapping[str, Any] | None:
        """The kernel's likely victim where it is another pod than the policy's first."""
        node = self.node
        processes = candidates(node.hierarchy, node.node_path, pod_owners(node.pods))
        total = total_pages(node.hierarchy, node.node_path)
        inside = None if node.config.node_cgroup is None else str(node.node_path)
        return mismatch(likely_victim(processes, total, inside), self.order())

    def order(self, counted: bool = True) -> list[Candidate]:
        """The policy's order by the figures of this moment; not ``counted``: by the cgroups' files."""
        stats = {}
        for uid, found in self.node.pods.items():
            reading = self.figures.used(found.cgroup, counted)
            if reading is not None:
                stats[uid] = PodStats({"memory": {"workingSetBytes": reading.working_set}})
        pods = [found.pod for found in self.node.pods.values()]
        return [one.candidate for one in rank_pods(MEMORY, pods, stats, era=era(self.node.config.policy))]
