"""The flight recorder: samples of the counters, and counts of what was dropped on the way here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.domains import Reading
from monitor.race.events import Lost, Sample
from monitor.race.forecast import SEEN_NS, SPACING_NS
from monitor.side.cgroup_names import CgroupNames, NamedCgroup
from monitor.side.view import View

#: A pod whose figures do not change is sampled this often.
SAMPLE_FAR_NS = 10_000_000_000
#: What counts as lost -> the counters of it (`lost_` of the programs).
_LOST = {"cross": "cross", "oom": "oom", "kill": "kill", "exit": "exit", "reclaim": "reclaim", "step": "sample"}
#: The same of messages dropped between the hot process and here. The others decide nothing: a `clear` is made up for by
#: the next `state`, a `state` by the one after it.
_DROPPED = {
    "cross": "cross",
    "decision": "decision",
    "killed": "decision",
    "evicted": "decision",
    "oom_mark": "oom",
    "oom_kill": "kill",
    "oom_exit": "exit",
    "oom_reclaim": "reclaim",
    "flight": "sample",
}
#: How long samples are kept for forecasts, and most of them: 660 cgroups that all change. (By their number alone those
#: of 500 pods were 5 MB, of 6 minutes.)
_KEPT_NS, _SAMPLES = SEEN_NS, 20_000


@dataclass
class Sampler:
    """``feed`` takes the samples, in order."""

    view: View
    names: CgroupNames
    feed: Callable[[Sample], None]
    samples: list[Sample] = field(default_factory=list)  # the latest, for forecasts: only what was exact
    _exact: bool = False  # what is read now is of this moment
    _was_armed: bool = False
    _kept_ns: dict[str, int] = field(default_factory=dict)  # domain -> its last sample in ``samples``
    _still: dict[int, tuple[Reading, int]] = field(default_factory=dict)  # cgroup id -> its last sample, when that was

    def sample(self, now_ns: int) -> None:
        """Read the node, kubepods and every pod."""
        since_ns = now_ns - _KEPT_NS
        fresh = (i for i, one in enumerate(self.samples) if one.ts_ns >= since_ns)  # the hot process's may come late
        del self.samples[: next(fresh, len(self.samples))]
        self._kept_ns = {domain: ts for domain, ts in self._kept_ns.items() if ts >= since_ns}
        # Detached, the counters are those of the last sweep; attached anew, they are exact from the next sample on.
        self._exact, self._was_armed = self._was_armed and self._armed, self._armed
        table = self.view.table
        before, self._still = self._still, {}
        for at in self.names.ids():
            named = self.names.of_cgroup(at)
            reading = table.read(at) if table is not None else self._from_files(named)
            if reading is None:
                continue
            # 110 pods that do not change would cost 5 ms of CPU in every second.
            last, since_ns = before.get(at, (None, 0))
            if named.kind == "pod" and last == reading and now_ns - since_ns < SAMPLE_FAR_NS:
                self._still[at] = (reading, since_ns)
                continue
            self._still[at] = (reading, now_ns)
            self.take(now_ns, named, reading.usage, reading.inactive_file, reading.active_file)

    @property
    def _armed(self) -> bool:
        return bool(self.view.stats.get("armed"))

    def _from_files(self, named: NamedCgroup) -> Reading | None:
        """A cgroup's memory where there is no BPF table; None if it is gone."""
        hierarchy = self.view.hierarchy
        try:
            return cgroupfs.read_cgroup(hierarchy, hierarchy.root / named.path.lstrip("/"))
        except MonitorError:
            return None

    def take(self, ts_ns: int, named: NamedCgroup, usage: int, inactive: int, active: int) -> None:
        """One sample of one cgroup, in bytes."""
        if named.kind == "container":
            return  # its pod's sample covers it
        domain = named.kind if named.kind in ("node", "kubepods") else named.path
        sample = Sample(ts_ns, domain, named.pod, usage, max(0, usage - inactive), inactive, active)
        # Forecasts do not need a sample of every MiB, nor late ones.
        if self._exact and ts_ns >= self._kept_ns.get(domain, 0) + SPACING_NS:
            self._kept_ns[domain] = ts_ns
            self.samples.append(sample)
            if len(self.samples) > _SAMPLES:
                del self.samples[: _SAMPLES // 2]
        self.feed(sample)


class Losses:
    """What was dropped anywhere: by the programs, or between the hot process and here."""

    def __init__(self, view: View, now_ns: int) -> None:
        self._view = view
        self._lost: Counter[str] | None = None
        self._lost_ns = now_ns

    def poll(self, now_ns: int) -> list[Lost]:
        """What was dropped since the last poll; the first one finds nothing new."""
        lost: Counter[str] = Counter()
        for message, name in _DROPPED.items():
            lost[name] += self._view.stats.get(f"dropped_{message}")
        counted = self._view.counted()
        for which, name in _LOST.items():
            lost[name] += counted.get(f"lost_{which}", 0)
        fresh = {name: n - self._lost[name] for name, n in lost.items()} if self._lost is not None else {}
        found = [Lost(now_ns, self._lost_ns, name, n) for name, n in fresh.items() if n > 0]
        self._lost, self._lost_ns = lost, now_ns
        return found
