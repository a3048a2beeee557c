"""The node's conditions as outrace sees them, in the API server: `outrace.io/MemoryPressure` and so on, and
`outrace.io/PodHeld`.

Under types of their own: the three without a prefix are the kubelet's, which writes them over every 10 s, also where it
has no thresholds (then always False: the setters in pkg/kubelet/nodestatus).
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable, Collection
from typing import Any

from monitor.actions.status import timestamp
from monitor.errors import MonitorError
from monitor.kube.backoff import BackOff
from monitor.kube.client import ApiClient
from monitor.kube.resources import NODES
from monitor.kube.retry import Retry
from monitor.policy.signals import DISK_PRESSURE, MEMORY_PRESSURE, PID_PRESSURE
from monitor.side.export.log import Log

PREFIX = "outrace.io/"
#: As often a condition that does not change is written (the kubelet's nodeStatusReportFrequency).
HEARTBEAT_S = 300.0
#: Condition -> what is short.
_OF = {MEMORY_PRESSURE: "Memory", DISK_PRESSURE: "Disk", PID_PRESSURE: "PID"}
#: Pods are held (`--mode hold`, `--hard-grace`): written where that may be, and where a daemon before has left it True.
POD_HELD = "PodHeld"

#: The held pods are written no more often, seconds: a pod can be held and released twice a second.
HELD_S = 10.0

_SHORT = {MEMORY_PRESSURE: "memory", PID_PRESSURE: "PID"}


class NodeConditions:
    """``holding()``: the conditions that hold, None while that is not known. ``held()``: who is held, "" for nobody.
    `turn` writes what is due.
    """

    def __init__(
        self,
        client: ApiClient,
        node: str,
        holding: Callable[[], Collection[str] | None],
        log: Log,
        on_change: Callable[[str, bool, float], object] = lambda *_: None,
        clock: Callable[[], float] = time.time,
        jitter: float = 1.0,
        held: Callable[[], str] | None = None,
    ) -> None:
        self._client = client
        self._node = node
        self._holding = holding
        self._on_change = on_change
        self._held = held
        self._held_text = ""
        self._held_due = 0.0
        self._clock = clock
        self._retry = Retry(log, BackOff(cap_s=60.0, jitter=jitter, clock=clock), clock)
        self._since: dict[str, tuple[bool, float]] = {}  # condition -> what holds, since when (Unix seconds)
        self._written: dict[str, bool] = {}
        self._due = 0.0

    def turn(self) -> None:
        holding = self._holding()
        if holding is None:
            return
        now = self._clock()
        state = {name: name in holding for name in _OF}
        before, text = self._held_text, "" if self._held is None else self._held()
        if text != before and now >= self._held_due:
            self._held_text, self._held_due = text, now + HELD_S
        if self._held is not None or POD_HELD in self._since:
            state[POD_HELD] = bool(self._held_text)
        if not self._since:
            self._resume(state)
        for name, holds in state.items():
            if self._since.get(name, (None, 0.0))[0] != holds:
                if name in self._since and name in _OF:  # a pod that is held has events of its own
                    self._on_change(name, holds, now)
                self._since[name] = (holds, now)
        if now < self._due and (self._retry.problem or (state == self._written and before == self._held_text)):
            return
        try:
            self._client.patch(NODES, self._node, {"status": {"conditions": self._objects(now)}}, subresource="status")
        except MonitorError as error:
            self._retry.failed(error, "node conditions not written; trying again", node=self._node)
            self._due = self._retry.due
            return
        self._written, self._due = state, now + HEARTBEAT_S
        self._retry.works("node conditions are written again", node=self._node)

    def _resume(self, state: dict[str, bool]) -> None:
        """One that is as the daemon before has left it has been so since then."""
        now = self._clock()
        try:
            found = self._client.get(NODES, self._node)["status"].get("conditions", [])
        except (MonitorError, LookupError, AttributeError):
            return  # it begins now
        for one in found:
            name = str(one.get("type", "")).removeprefix(PREFIX)
            if name == POD_HELD and name not in state and one["type"] == PREFIX + name and one.get("status") == "True":
                self._since[name] = (True, now)  # of a daemon that held: it ends with the next turn
            if name in state and one["type"].startswith(PREFIX) and one.get("status") == str(state[name]):
                self._since[name] = (state[name], _unix(one.get("lastTransitionTime"), self._clock()))

    def _objects(self, now: float) -> list[dict[str, Any]]:
        return [
            {
                "type": f"{PREFIX}{name}",
                "status": str(holds),
                "reason": reason(name, holds) if name == POD_HELD else f"OutraceHas{reason(name, holds)}",
                "message": self._message(name, holds),
                "lastHeartbeatTime": timestamp(now),
                "lastTransitionTime": timestamp(since),
            }
            for name, (holds, since) in self._since.items()
        ]

    def _message(self, name: str, holds: bool) -> str:
        if name == POD_HELD:
            return f"outrace holds {self._held_text}" if holds else "outrace holds no pod"
        return _message(name, holds)


def _message(condition: str, holds: bool) -> str:
    if condition == DISK_PRESSURE:
        return f"outrace has {'' if holds else 'no '}disk pressure"
    return f"outrace has {'in' if holds else ''}sufficient {_SHORT[condition]} available"


def reason(condition: str, holds: bool) -> str:
    """As the kubelet calls it: InsufficientMemory, NoDiskPressure."""
    if condition == POD_HELD:
        return "OutraceHoldsPod" if holds else "OutraceHoldsNoPod"
    if condition == DISK_PRESSURE:
        return "DiskPressure" if holds else "NoDiskPressure"
    return f"{'Ins' if holds else 'S'}ufficient{_OF[condition]}"


def _unix(text: object, default: float) -> float:
    try:
        return float(calendar.timegm(time.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ")))
    except ValueError:
        return default
