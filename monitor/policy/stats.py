"""The kubelet's Summary API, as parsed from JSON: what the eviction policy reads in it.

Sizes are bytes; every unsigned number is cast to 64 bits with a sign, as in a quantity of the kubelet (a wrapped
"available" is negative, and meets every threshold). Numbers are read on access.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from monitor.policy import signals as sig
from monitor.policy.compat import INT64_MAX, int64
from monitor.policy.errors import PolicyError
from monitor.policy.pods import stable_uid

#: The system container whose memory is that of the kubepods cgroup; the first of this name counts.
PODS_CONTAINER = "pods"

_RFC3339 = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))")
_EMPTY: Mapping[str, Any] = {}
_PATH = "pod stats"


class Memory(NamedTuple):
    """Memory figures of the node or of kubepods, in bytes; None is "not reported"."""

    available: int | None
    working_set: int | None
    usage: int | None
    stamp_ns: int


class PodStats:
    """The figures of one pod."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw

    @property
    def uid(self) -> str:
        """The uid in `podRef`, or the one `pod_from_object` makes for a pod without."""
        ref = _map(self._raw, "podRef", _PATH)
        return str(ref.get("uid") or stable_uid(str(ref.get("namespace") or "default"), str(ref.get("name", ""))))

    def memory(self) -> int | None:
        """The working set; 0 if the memory figures lack it, None if there are no memory figures."""
        figures = self._raw.get("memory")
        return None if figures is None else _count(_checked(figures, _PATH), "workingSetBytes", _PATH) or 0

    def processes(self) -> int:
        """How many processes the pod has; 0 if not reported."""
        return _count(_map(self._raw, "process_stats", _PATH), "process_count", _PATH) or 0

    def ephemeral_storage(self) -> int:
        """Bytes of local storage the whole pod uses; 0 if not reported."""
        return _count(_map(self._raw, "ephemeral-storage", _PATH), "usedBytes", _PATH) or 0

    def reported(self, kinds: Sequence[str], key: str) -> list[tuple[str, int]]:
        """``key`` of these figures together, of each container that reports all of them."""
        found = []
        for raw in _list(self._raw, "containers", _PATH):
            parts = [_count(_map(raw, kind, _PATH), key, _PATH) for kind in kinds]
            known = [part for part in parts if part is not None]
            if len(known) == len(parts):
                found.append((raw.get("name", ""), sum(known)))
        return found

    def files(self, kinds: Sequence[str], key: str) -> int:
        """`usedBytes` or `inodesUsed` (``key``) of all containers, over their `rootfs` and `logs` (``kinds``)."""
        return sum([used for _, used in self.files_each(kinds, key)])

    def files_each(self, kinds: Sequence[str], key: str) -> list[tuple[str, int]]:
        """`files` of each container that reports anything, beside its name."""
        found = []
        for item in _list(self._raw, "containers", _PATH):
            total = 0
            for kind in kinds:
                figures = item.get(kind)
                # A pass spends most of its time here, so well-formed figures are added up without a call.
                value = figures.get(key) if type(figures) is dict else None
                if type(value) is int and 0 <= value <= INT64_MAX:
                    total += value
                else:
                    total += _count(_map(item, kind, _PATH), key, _PATH) or 0
            found.append((item.get("name", ""), total))
        return found

    def volumes(self, names: Sequence[str], key: str) -> int:
        """`usedBytes` or `inodesUsed` of these volumes; the first figures of a name count."""
        first = {item.get("name", ""): item for item in reversed(_list(self._raw, "volume", _PATH))}
        return sum([_count(first[name], key, _PATH) or 0 for name in names if name in first])

    def volumes_used(self) -> dict[str, int]:
        """Bytes by volume, where reported (a volume without would crash a real kubelet). The last of a name counts."""
        items = _list(self._raw, "volume", _PATH)
        return {item.get("name", ""): used for item in items if (used := _count(item, "usedBytes", _PATH)) is not None}


class Summary:
    """One answer of the Summary API. Raises PolicyError naming the key, also later, when a figure turns out wrong."""

    def __init__(self, obj: Mapping[str, Any]) -> None:
        self._node = _map(_checked(obj, "summary"), "node", "summary")
        self.observations: dict[str, sig.Observation] = dict(_observe(self._node))
        self.pods: dict[str, PodStats] = {}
        for raw in _list(obj, "pods", "summary"):
            stats = PodStats(raw)
            self.pods[stats.uid] = stats

    def memory(self, signal: str) -> Memory | None:
        """The figures behind one of the two memory signals; None if there are none at all."""
        return _memory(self._node) if signal == sig.MEMORY else _memory(_pods_container(self._node))


def _observe(node: Mapping[str, Any]) -> Iterator[tuple[str, sig.Observation]]:
    for signal, memory in ((sig.MEMORY, _memory(node)), (sig.ALLOCATABLE_MEMORY, _memory(_pods_container(node)))):
        if memory is not None and memory.available is not None and memory.working_set is not None:
            yield signal, sig.Observation(memory.available, memory.available + memory.working_set, memory.stamp_ns)
    runtime = _map(node, "runtime", "summary.node")
    for parent, key, space, inodes in (
        (node, "fs", sig.NODEFS, sig.NODEFS_INODES),
        (runtime, "imageFs", sig.IMAGEFS, sig.IMAGEFS_INODES),
        (runtime, "containerFs", sig.CONTAINERFS, sig.CONTAINERFS_INODES),
    ):
        fs = _map(parent, key, "summary.node")
        for signal, free, total in ((space, "availableBytes", "capacityBytes"), (inodes, "inodesFree", "inodes")):
            available, capacity = _count(fs, free, key), _count(fs, total, key)
            if available is not None and capacity is not None:
                yield signal, sig.Observation(available, capacity, _stamp(fs, key))
    limits = _map(node, "rlimit", "summary.node")
    most, running = _count(limits, "maxpid", "rlimit"), _count(limits, "curproc", "rlimit")
    if most is not None and running is not None:
        yield sig.PID, sig.Observation(most - running, most, _stamp(limits, "rlimit"))


def _pods_container(node: Mapping[str, Any]) -> Mapping[str, Any]:
    for i, item in enumerate(_list(node, "systemContainers", "summary.node")):
        if item.get("name") == PODS_CONTAINER:
            return _checked(item, f"summary.node.systemContainers[{i}]")
    return _EMPTY


def _memory(parent: Mapping[str, Any]) -> Memory | None:
    if parent.get("memory") is None:
        return None
    figures = _map(parent, "memory", "summary.node")
    available, working_set, usage = (
        _count(figures, key, "memory") for key in ("availableBytes", "workingSetBytes", "usageBytes")
    )
    return Memory(available, working_set, usage, _stamp(figures, "memory"))


def _checked(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise PolicyError(f"{path}: must be a map, not {type(value).__name__}")
    return value


def _map(parent: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
    value = parent.get(key)
    if value is None:
        return _EMPTY
    return value if isinstance(value, dict) else _checked(value, f"{path}.{key}")


def _list(parent: Mapping[str, Any], key: str, path: str) -> Sequence[Mapping[str, Any]]:
    value = parent.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise PolicyError(f"{path}.{key}: must be a list of maps")
    for item in value:
        if not isinstance(item, dict):
            raise PolicyError(f"{path}.{key}: must be a list of maps")
    return value


def _count(parent: Mapping[str, Any], key: str, path: str) -> int | None:
    value = parent.get(key)
    if value is None:
        return None
    if type(value) is not int:
        raise PolicyError(f"{path}.{key}: must be a whole number, not {value!r}")
    return int64(value)


def _stamp(parent: Mapping[str, Any], path: str) -> int:
    """The time of a figure in ns since 1970; 0 if it has none."""
    text = parent.get("time")
    if text is None:
        return 0
    match = _RFC3339.fullmatch(text) if isinstance(text, str) else None
    if match is None or not int(match[1]) or not 1 <= int(match[2]) <= 12:
        raise PolicyError(f"{path}.time: must be a time such as 2026-01-01T00:00:05Z, not {text!r}")
    *numbers, fraction, sign, hours, minutes = match.groups("0")
    moment = tuple(map(int, numbers))
    offset = (int(hours) * 60 + int(minutes)) * 60
    return (timegm(moment) + (offset if sign == "-" else -offset)) * 10**9 + int(fraction.ljust(9, "0")[:9])
