"""Forecasts: time to the thresholds and to an OOM kill, and the kernel's likely victim where it is not the policy's.

Looked at once a second at most, in a thread of its own: reading the processes of 110 pods takes some milliseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from monitor.kernel import cgroupfs
from monitor.kernel.oom_candidates import candidates, groups, total_pages
from monitor.policy.ranking import Candidate
from monitor.policy.releases import era
from monitor.policy.signals import MEMORY
from monitor.policy.stats import PodStats
from monitor.policy.victims import rank_pods
from monitor.race.badness import likely_victim, mismatch
from monitor.race.events import Sample, Watched
from monitor.race.forecast import DomainForecast, Forecast, domain_forecasts
from monitor.side.judge import Tally
from monitor.side.view import View, pod_owners

#: Samples that forecasts are made from (the longest window of `monitor.race.forecast`).
_WINDOW_NS = 30_000_000_000
#: An alert waits until growth, by its slowest window, would have ended in an OOM kill within a minute for so long: what
#: breathes (a build, a service at its start) does not.
_GROWS_NS, _SOON_NS = 10_000_000_000, 60_000_000_000
#: As long as in the alerting rules: pods change their rank in both orders while they work.
_DISAGREES_NS = 60_000_000_000
#: A last sample older than this is of a cgroup that does not change.
_STILL_NS = 1_500_000_000
#: Pods whose limit is remembered.
_MOST_LIMITS = 1000
#: Who the kernel would kill is looked at this often while a threshold may be near.
_VICTIM_NS = 5_000_000_000


class Forecaster:
    """``forecasts`` and ``mismatch`` are the latest, whole values that other threads may read."""

    def __init__(
        self,
        view: View,
        tally: Tally,
        facts: Callable[[], tuple[Sequence[Sample], Sequence[Watched]]],
        changed: Callable[[], None],
    ) -> None:
        self.forecasts: Mapping[str, DomainForecast] = {}
        self.mismatch: Mapping[str, Any] | None = None
        self.problem = ""  # why the last update failed; "" when it did not
        self.view = view
        self._tally = tally
        self._facts = facts
        self._changed = changed
        self._made: dict[str, Forecast] = {}  # domain -> the forecast to be held against its next crossing
        self._victims_ns = 0
        self._limits: dict[str, tuple[int, int | None]] = {}  # uid -> when it was looked up, the pod's own limit
        self._grows_ns: dict[str, int] = {}  # domain -> since when an OOM kill has been near
        self._disagrees_ns: int | None = None  # since when kernel and policy would take different pods
        self._samples_came = threading.Event()

    def start(self) -> None:
        """Begin; the thread ends with the process."""
        threading.Thread(target=self._run, name="forecaster", daemon=True).start()

    def wake(self) -> None:
        """There are new samples."""
        self._samples_came.set()

    def crossed(self, domain: str, ts_ns: int) -> None:
        """A threshold was crossed: count how far off its forecast was."""
        made = self._made.pop(domain, None)
        if made is not None and made.in_ns is not None:
            self._tally.missed_by((made.at_ns + made.in_ns - ts_ns) / 1e9)

    def seconds(self, what: str) -> dict[str, float | None]:
        """Domain -> seconds until its nearest threshold (``threshold``) or its limit (``oom``); None: not growing."""
        found: dict[str, float | None] = {}
        for w in self._facts()[1]:
            if what == "threshold" or w.limit is not None:
                found[w.domain] = _seconds(self.forecasts.get(w.domain), what)
        return found

    def alarms(self, now_ns: int) -> tuple[dict[str, float | None], Mapping[str, Any] | None]:
        """What is worth an alert, because it has held for a while: seconds to an OOM kill by domain; the mismatch."""
        soon: dict[str, float | None] = {}
        for name, since in list(self._grows_ns.items()):
            seconds = _seconds(self.forecasts.get(name), "oom")
            if seconds is not None and now_ns - since >= _GROWS_NS:
                soon[name] = seconds
        since_ns = self._disagrees_ns
        lasting = since_ns is not None and now_ns - since_ns >= _DISAGREES_NS
        return soon, self.mismatch if lasting else None

    def _note_alarms(self, now_ns: int) -> None:
        for name in ("node", "kubepods"):
            forecast = self.forecasts.get(name)
            latest = forecast.oom.latest_ns if forecast is not None and forecast.oom is not None else None
            if latest is not None and latest < _SOON_NS:
                self._grows_ns.setdefault(name, now_ns)
            else:
                self._grows_ns.pop(name, None)
        if self.mismatch is None:
            self._disagrees_ns = None
        elif self._disagrees_ns is None:
            self._disagrees_ns = now_ns

    def _run(self) -> None:
        while True:
            self._samples_came.wait()
            self._samples_came.clear()
            try:
                self._update(time.monotonic_ns())
                self.problem = ""
            except Exception as error:  # noqa: BLE001 - one odd look at /proc must not end all forecasts
                self.problem = f"{type(error).__name__}: {error}"
            self._changed()

    def _update(self, now: int) -> None:
        samples, watched = self._facts()
        self.forecasts = {o.name: o for o in domain_forecasts(self._growing(samples, watched, now), watched, now)}
        for name in ("node", "kubepods"):
            forecast = self.forecasts.get(name)
            if forecast is not None and forecast.threshold is not None and (forecast.threshold.in_ns or 0) > 0:
                self._made.setdefault(name, forecast.threshold)
                if now - self._made[name].at_ns > _WINDOW_NS:
                    self._made[name] = forecast.threshold
        if self.view.stats.get("armed") and now - self._victims_ns >= _VICTIM_NS:
            self._victims_ns = now
            self.mismatch = self._compare()
        elif not self.view.stats.get("armed"):
            self.mismatch = None
        self._note_alarms(now)

    def _growing(self, samples: Sequence[Sample], watched: Sequence[Watched], now_ns: int) -> list[Sample]:
        """The last samples of the domains, and of the pods with a limit that grew, in order of time.

        A cgroup that stands still is written down only now and then: its last sample holds for this moment too.
        """
        limits: dict[str, int | None] = {w.domain: w.limit for w in watched}
        found: dict[str, list[Sample]] = {}
        for sample in sorted((s for s in samples if s.ts_ns >= now_ns - _WINDOW_NS), key=lambda s: s.ts_ns):
            found.setdefault(sample.domain, []).append(sample)
        kept: list[Sample] = []
        for name, own in found.items():
            last = own[-1]
            if last.pod is not None:
                limit = self._limit(last.pod, now_ns)
                if limit is None or last.usage <= own[0].usage:
                    continue
                limits[name] = limit
            if now_ns - last.ts_ns > _STILL_NS:
                own.append(replace(last, ts_ns=now_ns))
            kept += [replace(sample, limit=limits.get(name)) for sample in own]
        return sorted(kept, key=lambda s: s.ts_ns)

    def _limit(self, uid: str, now_ns: int) -> int | None:
        """The pod's own limit; None if it has none. Looked up now and then."""
        known = self._limits.get(uid)
        if known is not None and now_ns - known[0] < _WINDOW_NS:
            return known[1]
        found = self.view.pods.get(uid)
        try:
            limit = None if found is None else cgroupfs.limit(found.cgroup)
        except cgroupfs.CgroupGone:
            limit = None
        if len(self._limits) > _MOST_LIMITS:
            self._limits.clear()
        self._limits[uid] = (now_ns, limit)
        return limit

    def pods(self) -> dict[str, float]:
        """Uid -> seconds until the pod's own limit is hit, of those that grow towards one."""
        found = {forecast.pod: _seconds(forecast, "oom") for forecast in self.forecasts.values()}
        return {pod: seconds for pod, seconds in found.items() if pod is not None and seconds is not None}

    def _compare(self) -> Mapping[str, Any] | None:
        """The kernel's likely victim where it is another pod than the policy's first."""
        view = self.view
        processes = candidates(view.hierarchy, view.node_path, pod_owners(view.pods))
        total = total_pages(view.hierarchy, view.node_path)
        inside = None if view.config.node_cgroup is None else str(view.node_path)
        victim = likely_victim(processes, total, inside, frozenset(groups(view.node_path)))
        found = mismatch(victim, self._order())
        if found is None:
            return None
        return {"kernel": found.kernel_pod or found.kernel_comm, "policy": found.policy_pod, "reason": found.reason}

    def _order(self) -> list[Candidate]:
        """The policy's order by the figures of this moment."""
        stats = {}
        for uid, found in self.view.pods.items():
            reading = self.view.memory(found.cgroup)
            if reading is not None:
                stats[uid] = PodStats({"memory": {"workingSetBytes": reading.working_set}})
        ranker = era(self.view.config.policy).ranker
        pods = [found.pod for found in self.view.pods.values()]
        return [one.candidate for one in rank_pods(MEMORY, pods, stats, ranker=ranker)]


def _seconds(forecast: DomainForecast | None, what: str) -> float | None:
    """Until the ``threshold`` or the limit (``oom``); None where nothing grows."""
    made: Forecast | None = getattr(forecast, what, None)
    return None if made is None or made.in_ns is None else made.in_ns / 1e9
