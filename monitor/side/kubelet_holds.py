"""Tells the hot process what the kubelet has of held pods, and which pods others evict.

The kubelet ranks pods by figures of its own that are up to 15 s old. A pod is held above its line until these show what
it holds (`monitor.policy.hold`); where they cannot be read, hot goes by their age. A request a second of the kubelet's
/stats/summary, and only while pods are held.
"""

from __future__ import annotations

import calendar
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from monitor.errors import MonitorError
from monitor.link.hold_messages import KubeletEviction, KubeletFigures

if TYPE_CHECKING:
    from monitor.side.view import View

LOOK_S = 1.0
#: After a request that failed.
RETRY_S = 5.0
#: Pods that somebody evicts, kept.
_MOST = 256
#: How the kubelet's message about an eviction for memory begins.
FOR_MEMORY = "The node was low on resource: memory."
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?Z")


class KubeletHolds:
    """``summary()`` is the kubelet's Summary as a dict; it may block, and raise MonitorError."""

    def __init__(self, view: View, summary: Callable[[], Mapping[str, Any]] | None) -> None:
        self._view = view
        self._summary = summary
        self._ending: dict[str, int] = {}  # uid of a pod that somebody evicts -> its hold that was told so
        self._wake = threading.Event()
        self._end = threading.Event()
        self._problem = ""
        if summary is not None:
            threading.Thread(target=self._run, name="kubelet figures", daemon=True).start()

    def held(self, uid: str, number: int) -> None:
        """A pod is held, or its brake changed. One that was asked to end before may use its grace."""
        while self._view.ending_early:
            self.evicted(self._view.ending_early.popleft(), "")
        if self._ending.get(uid, number) != number:
            self._ending[uid] = number
            self._view.send(KubeletEviction(uid, for_memory=False))
        self._wake.set()

    def evicted(self, uid: str, message: str) -> None:
        """The API server reports a pod as Evicted, or as about to go. From any thread. It may be held only later: one
        that flushes at SIGTERM grows, and a hot process that was started again holds it when it knows it.
        """
        held = self._view.holds.now.get(uid)
        self._ending[uid] = held.id if held is not None else 0
        for old in list(self._ending)[:-_MOST]:
            self._ending.pop(old, None)
        self._view.send(KubeletEviction(uid, message.startswith(FOR_MEMORY)))

    def close(self) -> None:
        self._end.set()
        self._wake.set()

    def _run(self) -> None:
        """Look while pods are held."""
        while not self._end.is_set():
            self._wake.wait()
            self._wake.clear()
            while self._view.holds.now and not self._end.is_set():
                self._end.wait(LOOK_S if self.look() else RETRY_S)

    def look(self) -> bool:
        """Ask once, and pass it on; whether there was an answer."""
        assert self._summary is not None
        try:
            found = figures(self._summary(), frozenset(self._view.holds.now), time.time(), time.monotonic_ns())
        except (MonitorError, LookupError, TypeError, ValueError, AttributeError) as error:
            problem = str(error) if isinstance(error, MonitorError) else f"{type(error).__name__}: {error}"
            if problem != self._problem:
                self._view.log.warning(
                    "the kubelet's own figures of held pods are not known: it is taken to see them 15 s later",
                    problem=problem,
                )
            self._problem = problem
            return False
        self._problem = ""
        if found:
            self._view.send(KubeletFigures(found))
        return True


def figures(summary: Mapping[str, Any], uids: frozenset[str], now: float, now_ns: int) -> dict[str, tuple[int, int]]:
    """Uid -> working set and when that was measured (CLOCK_MONOTONIC, ns), of these pods. ``now``, ``now_ns``: the same
    moment by the two clocks. Raises LookupError, TypeError or ValueError.
    """
    found = {}
    for pod in summary["pods"]:
        uid, memory = pod["podRef"]["uid"], pod.get("memory", {})
        if uid in uids and "workingSetBytes" in memory and "time" in memory:
            found[uid] = (int(memory["workingSetBytes"]), now_ns - round((now - _unix(memory["time"])) * 1e9))
    return found


def _unix(stamp: str) -> float:
    """Of RFC 3339 in UTC, as the kubelet writes it."""
    made = _STAMP.fullmatch(stamp)
    if made is None:
        raise ValueError(f"{stamp!r} is no time")
    whole = calendar.timegm(time.strptime(made[1], "%Y-%m-%dT%H:%M:%S"))
    return whole + float(made[2] or 0)


def kubelet_holds(view: View) -> KubeletHolds | None:
    """None where nobody is held or there is no cluster. Where the kubelet cannot be reached only evictions are passed
    on. Its figures are asked for where holds have two steps.
    """
    from monitor.pods.spec import CLUSTER, check_spec

    config = view.config
    if not config.holds or check_spec(config.pods)[0] not in CLUSTER:
        return None
    from monitor.kube.kubelet import KubeletClient
    from monitor.pods.access import Access

    try:
        access = Access.found(config)
        client = KubeletClient(access.kubelet_server("", access.api_server()[0].credentials))
    except MonitorError as error:
        if config.two_steps:
            view.log.warning("the kubelet's own figures of held pods cannot be read", problem=str(error))
        return KubeletHolds(view, None)
    return KubeletHolds(view, client.summary if config.two_steps else None)
