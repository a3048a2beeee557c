"""The kubelet's Summary API, as parsed from JSON: what the eviction policy reads in it.

Sizes are bytes; every unsigned number is cast to 64 bits with a sign, as in a quantity of the kubelet (a wrapped
"available" is negative, and meets every threshold). Numbers are read on access. Answers are those of the daemon itself
or of a case of `conformance`: what is not of this shape raises the errors of Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from monitor.policy import signals as sig
from monitor.policy.compat import INT64_MAX, int64

#: The system container whose memory is that of the kubepods cgroup; the first of this name counts.
PODS_CONTAINER = "pods"

_EPOCH = datetime.fromtimestamp(0, UTC)


class PodStats:
    """The figures of one pod."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw

    @property
    def uid(self) -> str:
        return str(self._raw["podRef"]["uid"])

    def memory(self) -> int | None:
        """The working set; 0 if the memory figures lack it, None if there are no memory figures."""
        figures = self._raw.get("memory")
        return None if figures is None else _count(figures, "workingSetBytes") or 0

    def processes(self) -> int:
        """How many processes the pod has; 0 if not reported."""
        return _count(self._raw.get("process_stats"), "process_count") or 0

    def ephemeral_storage(self) -> int:
        """Bytes of local storage the whole pod uses; 0 if not reported."""
        return _count(self._raw.get("ephemeral-storage"), "usedBytes") or 0

    def reported(self, kinds: Sequence[str], key: str) -> list[tuple[str, int]]:
        """``key`` of these figures together, of each container that reports all of them."""
        found = []
        for raw in self._raw.get("containers") or ():
            parts = [_count(raw.get(kind), key) for kind in kinds]
            known = [part for part in parts if part is not None]
            if len(known) == len(parts):
                found.append((raw.get("name", ""), sum(known)))
        return found

    def files_each(self, kinds: Sequence[str], key: str) -> list[tuple[str, int]]:
        """`usedBytes` or `inodesUsed` (``key``) of each container by name, over `rootfs` and `logs` (``kinds``)."""
        found = []
        for item in self._raw.get("containers") or ():
            total = 0
            for kind in kinds:
                # A pass spends most of its time here, so ordinary figures are added up without a call.
                if figures := item.get(kind):
                    value = figures.get(key) or 0
                    total += value if value <= INT64_MAX else int64(value)
            found.append((item.get("name", ""), total))
        return found

    def volumes(self, names: Sequence[str], key: str) -> int:
        """`usedBytes` or `inodesUsed` of these volumes; the first figures of a name count."""
        first = {item.get("name", ""): item for item in reversed(self._raw.get("volume") or ())}
        return sum([_count(first[name], key) or 0 for name in names if name in first])

    def volumes_used(self) -> dict[str, int]:
        """Bytes by volume, where reported (a volume without would crash a real kubelet). The last of a name counts."""
        items = self._raw.get("volume") or ()
        return {item.get("name", ""): used for item in items if (used := _count(item, "usedBytes")) is not None}


class Summary:
    """One answer of the Summary API."""

    def __init__(self, obj: Mapping[str, Any]) -> None:
        self._node = obj.get("node") or {}
        self.observations: dict[str, sig.Observation] = dict(_observe(self._node))
        self.pods = {stats.uid: stats for stats in map(PodStats, obj.get("pods") or ())}

    def memory_usage(self, signal: str) -> int | None:
        """The bytes in use behind one of the two memory signals; None if not reported."""
        return _count(_memory(self._node, signal), "usageBytes")


def _observe(node: Mapping[str, Any]) -> Iterator[tuple[str, sig.Observation]]:
    for signal in (sig.MEMORY, sig.ALLOCATABLE_MEMORY):
        memory = _memory(node, signal)
        available, working_set = _count(memory, "availableBytes"), _count(memory, "workingSetBytes")
        if available is not None and working_set is not None:
            yield signal, sig.Observation(available, available + working_set, _stamp(memory))
    runtime, limits = node.get("runtime") or {}, node.get("rlimit")
    for fs, space, inodes in (
        (node.get("fs"), sig.NODEFS, sig.NODEFS_INODES),
        (runtime.get("imageFs"), sig.IMAGEFS, sig.IMAGEFS_INODES),
        (runtime.get("containerFs"), sig.CONTAINERFS, sig.CONTAINERFS_INODES),
    ):
        for signal, free, total in ((space, "availableBytes", "capacityBytes"), (inodes, "inodesFree", "inodes")):
            available, capacity = _count(fs, free), _count(fs, total)
            if available is not None and capacity is not None:
                yield signal, sig.Observation(available, capacity, _stamp(fs))
    most, running = _count(limits, "maxpid"), _count(limits, "curproc")
    if most is not None and running is not None:
        yield sig.PID, sig.Observation(most - running, most, _stamp(limits))


def _memory(node: Mapping[str, Any], signal: str) -> Mapping[str, Any] | None:
    """The figures of the node or of kubepods."""
    containers = node.get("systemContainers") or ()
    pods: Mapping[str, Any] = next((one for one in containers if one.get("name") == PODS_CONTAINER), {})
    return (node if signal == sig.MEMORY else pods).get("memory")


def _count(figures: Mapping[str, Any] | None, key: str) -> int | None:
    value = None if figures is None else figures.get(key)
    return None if value is None else int64(value)


def _stamp(figures: Mapping[str, Any] | None) -> int:
    """The time of a figure in ns since 1970, by the microsecond; 0 if it has none."""
    text = None if figures is None else figures.get("time")
    return 0 if text is None else (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1) * 1000
