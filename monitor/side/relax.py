"""Raises memory.high of pods that stall at it, and puts it back (`relax` in a rule of stalls, `monitor.policy.stall`).

A memory.high below what a pod needs is no limit that ends: above it the kernel puts each allocation to sleep for up to
2 s, while the machine has memory. A step is noted before it is made, with the value from before anybody of outrace
(`monitor.actions.ledger`), so that it is undone after a SIGKILL too.

What is raised is memory.high of the pod's cgroup, or of a container's, if the kernel counted that this very cgroup was
above it. What is not known is no reason: without that counter, or without figures of the machine or of a cgroup above,
nothing is raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from monitor.actions.changes import FOREIGN, RESTORED
from monitor.actions.ledger import RELAX, BrakeLedger, Ledger
from monitor.errors import MonitorError
from monitor.kernel import limits
from monitor.kernel.wire import PAGE
from monitor.pods.model import FoundPod
from monitor.policy import stall
from monitor.policy.signals import DOMAIN_OF
from monitor.race.events import NODE
from monitor.side.export.log import Log
from monitor.side.node_state import Figures, NodeState, label

HIGH = "memory.high"


@dataclass(eq=False, slots=True)
class _Raised:
    """A cgroup whose memory.high is raised. ``for_ns``: how long it stays so when its pod does not stall any more."""

    uid: str
    name: str
    cgroup: Path
    ledger: BrakeLedger
    for_ns: int
    raised_ns: int = 0
    stalled_ns: int = 0  # when its pod stalled last

    @property
    def is_in_force(self) -> bool:
        """Whether no other program has written it since."""
        change = self.ledger.changes.get(HIGH)
        return change is None or limits.number(f"{self.cgroup}/{HIGH}") == int(change.written[-1])


@dataclass(eq=False)
class Relaxing:
    """The thread that looks for stalls calls, and at the end the main one. ``tell`` logs lines that a pod may cause."""

    node: NodeState
    figures: Figures
    log: Log
    tell: Callable[..., object]
    counted: int = 0  # steps, for the metrics
    _raised: dict[Path, _Raised] = field(default_factory=dict)
    _passed: dict[str, dict[Path, int]] = field(default_factory=dict)  # uid -> times above memory.high by the last look
    _last: dict[Path, tuple[int, int]] = field(default_factory=dict)  # when one was put back, and its `for_ns`
    _told: set[Path] = field(default_factory=set)  # mode observe: what was logged of the stalls that there are

    def __post_init__(self) -> None:
        self._ledger = Ledger(Path(self.node.config.state_dir), RELAX)
        self._lock = threading.Lock()
        self._is_over = False

    def helped(self, uid: str, since_ns: int) -> bool:
        """Whether a memory.high of this pod was raised since then, and still is."""
        mine = [one for one in list(self._raised.values()) if one.uid == uid]
        return any(one.raised_ns >= since_ns and one.is_in_force for one in mine)

    def step(self, uid: str, now_ns: int, *, may_raise: bool) -> list[tuple[int, int]]:
        """Raise each memory.high that a pod has passed since the last call: the bytes before and after."""
        found, made = self.node.pods.get(uid), list[tuple[int, int]]()
        if found is None or uid in self.node.held:
            return made
        before, self._passed[uid] = self._passed.get(uid, {}), {}
        for cgroup in dict.fromkeys((found.cgroup, *found.containers.values())):
            times = _times_above(cgroup)
            if times is None:
                continue
            self._passed[uid][cgroup] = times
            if may_raise and times > before.get(cgroup, times):
                if cgroup in self._raised and not self._raised[cgroup].is_in_force:
                    continue  # another program keeps its own value there
                own = limits.number(f"{cgroup}/{HIGH}")
                high = 0 if own is None else stall.relaxed(own, *self._bounds(cgroup)) // PAGE * PAGE
                if own is not None and high > own and self._raise(found, cgroup, own, high, now_ns):
                    made.append((own, high))
        return made

    def turn(self, stalling: Collection[str], now_ns: int) -> None:
        """Put back what is not needed any more. ``stalling``: uids of all pods that stall."""
        self._passed = {uid: times for uid, times in self._passed.items() if uid in stalling}
        self._told &= {cgroup for times in self._passed.values() for cgroup in times}
        with self._lock:
            for one in list(self._raised.values()):
                if one.uid in stalling:
                    one.stalled_ns = now_ns
                elif one.uid not in self.node.pods or (now_ns - one.stalled_ns >= one.for_ns and self._fits(one)):
                    self._put_back(one, now_ns)

    def close(self, timeout_s: float) -> None:
        """The daemon ends: put back all. The next start does what takes longer."""
        thread = threading.Thread(target=self._put_back_all, name="relaxed", daemon=True)
        thread.start()
        thread.join(timeout_s)

    def _fits(self, one: _Raised) -> bool:
        """Whether what reclaim cannot take of it is below the old value, which would stop it again at once."""
        change, has = one.ledger.changes.get(HIGH), self.figures.used(one.cgroup, counted=False)
        return change is None or has is None or has.usage - has.inactive_file - has.active_file <= int(change.old)

    def _bounds(self, cgroup: Path) -> tuple[int | None, int]:
        """The lowest memory.max of a cgroup and those above, and what these and the machine have available above their
        highest line, without what others may still take of what they got here.
        """
        domains = self.figures.domains(counted=False)
        found, most = [] if NODE in domains else [0], None
        for name, reading in domains.items():
            lines = [t.quantity(reading.capacity or 0) for t in self.node.thresholds if DOMAIN_OF.get(t.signal) == name]
            found.append((reading.available or 0) - max(lines, default=0))
        for path in (cgroup, *takewhile(lambda above: above != self.node.hierarchy.root, cgroup.parents)):
            has = self.figures.used(path, counted=False)
            if has is None:
                return None, 0
            if has.capacity is not None:
                most = min(has.capacity, has.capacity if most is None else most)
                found += [has.available or 0] if path != cgroup else []
        return most, max(0, min(found) - sum(map(self._unused, list(self._raised.values()))))

    def _unused(self, one: _Raised) -> int:
        change, has = one.ledger.changes.get(HIGH), self.figures.used(one.cgroup, counted=False)
        return 0 if change is None or has is None else max(0, int(change.written[-1]) - max(has.usage, int(change.old)))

    def _raise(self, found: FoundPod, cgroup: Path, own: int, high: int, now_ns: int) -> bool:
        name = label(found.pod)
        about = {"pod": name, "cgroup": str(cgroup)}
        if not self.node.config.enforce or self.node.config.holds:  # a hold would end with the value from before
            if cgroup not in self._told:
                self.tell("info", "would relax", **about, high_before=own, high=high)
            self._told.add(cgroup)
            return False
        with self._lock:
            if self._is_over:
                return False
            one = self._raised.get(cgroup)
            try:
                one = self._raised[cgroup] = one or self._open(found.pod.uid, name, cgroup, now_ns)
                if not self._write(one, found.cgroup, own, high):
                    return False
            except (OSError, MonitorError) as error:
                problem = str(getattr(error, "strerror", "") or error)
                self.tell("error", "memory.high of a pod cannot be raised", **about, problem=problem)
                if one is not None:
                    self._put_back(one, now_ns)
                return False
            one.raised_ns = one.stalled_ns = now_ns
        self.counted += 1
        self.tell("warning", "relaxed", **about, high_before=own, high=high)
        return True

    def _open(self, uid: str, name: str, cgroup: Path, now_ns: int) -> _Raised:
        """Raises OSError or MonitorError."""
        put_back_ns, last_ns = self._last.get(cgroup, (0, 0))
        ledger = BrakeLedger(uid, self._ledger)
        if obstacle := ledger.open(cgroup, HIGH):
            ledger.close()
            raise MonitorError(obstacle)
        return _Raised(uid, name, cgroup, ledger, stall.relaxed_for_ns(last_ns, now_ns - put_back_ns))

    def _write(self, one: _Raised, pod: Path, own: int, high: int) -> bool:
        """False: another program has just written it, or another process of outrace has changed limits of the pod, such
        as a hold. Raises OSError or MonitorError.
        """
        if self._ledger.others(pod) or one.ledger.files[HIGH].read() != str(own):
            return False
        one.ledger.put({HIGH: str(high)})
        return True

    def _put_back(self, one: _Raised, now_ns: int) -> None:
        change = one.ledger.changes.get(HIGH)
        outcome = dict(one.ledger.put_back()).get(HIGH, "")
        about = {"pod": one.name, "cgroup": str(one.cgroup), "high": change.old if change else ""}
        if one.ledger.changes:  # refused
            one.stalled_ns = now_ns - one.for_ns + stall.RELAX_PACE_NS
            self.log("error", "memory.high of a pod is not put back; trying again", **about)
            return
        one.ledger.close()
        del self._raised[one.cgroup]
        self._last = {cgroup: last for cgroup, last in self._last.items() if now_ns - last[0] <= last[1]}
        if one.raised_ns:
            self._last[one.cgroup] = now_ns, one.for_ns
        if outcome in (RESTORED, FOREIGN):
            self.log("info", "memory.high of a pod is put back", **about, outcome=outcome)

    def _put_back_all(self) -> None:
        with self._lock:
            self._is_over = True
            for one in list(self._raised.values()):
                self._put_back(one, 0)


def _times_above(cgroup: Path) -> int | None:
    """How often this very cgroup was above its memory.high; None: not known (cgroup v1, before Linux 5.2)."""
    try:
        lines = (cgroup / "memory.events.local").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("high ")), None)
    except (OSError, ValueError, IndexError):
        return None
