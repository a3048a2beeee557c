"""Which eviction settings are in force, and where each came from, the way a kubelet puts them together.

Defaults, the configuration file, drop-ins, flags, in this order. A kubelet without a file has no default hard
thresholds at all; with one it has all of them or, if the file names any, none; drop-ins are merged key by key into what
that gave; a flag replaces its whole map.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from monitor.policy.errors import PolicyError
from monitor.policy.gosyntax import parse_duration
from monitor.policy.layout import DiskLayout, overlay_containerfs
from monitor.policy.signals import ALLOCATABLE_MEMORY, MEMORY
from monitor.policy.thresholds import (
    DEFAULT_HARD,
    DEFAULT_TRANSITION_PERIOD_NS,
    Threshold,
    parse_flag_map,
    parse_in_order,
)

DEFAULT = "default"
#: Key of a KubeletConfiguration -> the flag that replaces it, and how its pairs are written.
MAPS = {
    "evictionHard": ("eviction-hard", "<"),
    "evictionSoft": ("eviction-soft", "<"),
    "evictionSoftGracePeriod": ("eviction-soft-grace-period", "="),
    "evictionMinimumReclaim": ("eviction-minimum-reclaim", "="),
}
_MERGE = "mergeDefaultEvictionSettings"


class Entry(NamedTuple):
    """A value as it was written, and where: `default`, the name of a file, or a flag."""

    text: str
    origin: str


class Source(NamedTuple):
    """A KubeletConfiguration, or a drop-in of one, already parsed."""

    name: str
    content: Mapping[str, Any]


class Effective(NamedTuple):
    """A threshold in force and where it came from."""

    threshold: Threshold
    origin: str


@dataclass(frozen=True)
class EvictionSettings:
    """The settings in force: the four maps by signal, the transition period, the longest grace of a soft eviction."""

    maps: Mapping[str, Mapping[str, Entry]]
    transition_period_ns: int
    max_pod_grace_s: int
    enforce_node_allocatable: tuple[str, ...]

    def thresholds(self, layout: DiskLayout | None = None) -> list[Effective]:
        """Every threshold with its origin; the copies for allocatable memory are among them and, given the layout of
        the disks, those for the container file system. Raises PolicyError.
        """
        texts = {key: {signal: entry.text for signal, entry in found.items()} for key, found in self.maps.items()}
        grace, reclaim = texts["evictionSoftGracePeriod"], texts["evictionMinimumReclaim"]
        # All at once first: it is the whole that has to be right.
        parse_in_order(texts["evictionHard"], texts["evictionSoft"], grace, reclaim)
        found = []
        for signal, entry in self.maps["evictionHard"].items():
            found += [Effective(t, entry.origin) for t in parse_in_order({signal: entry.text}, None, None, reclaim)]
        for signal, entry in self.maps["evictionSoft"].items():
            found += [Effective(t, entry.origin) for t in parse_in_order(None, {signal: entry.text}, grace, reclaim)]
        if "pods" in self.enforce_node_allocatable:
            for t, origin in [e for e in found if e.threshold.signal == MEMORY and e.threshold.hard]:
                copy = Threshold(ALLOCATABLE_MEMORY, t.value, t.grace_ns, t.min_reclaim)
                found.append(Effective(copy, f"copy of {MEMORY} ({origin})"))
        return found if layout is None else _with_overlay(found, layout)


def _with_overlay(found: list[Effective], layout: DiskLayout) -> list[Effective]:
    overlay = overlay_containerfs([e.threshold for e in found], layout)
    result = []
    for i, t in enumerate(overlay.thresholds):
        if i < len(found) and t == found[i].threshold:
            result.append(found[i])
        elif t.operator:
            fs = "imagefs" if layout.image_fs and not layout.container_fs else "nodefs"
            source = t.signal.replace("containerfs", fs)
            origin = next(
                e.origin for e in reversed(found) if e.threshold.signal == source and e.threshold.hard == t.hard
            )
            result.append(Effective(t, f"copy of {source} ({origin})"))
    return result


def effective_settings(
    file: Source | None, drop_ins: Iterable[Source] = (), flags: Mapping[str, str] | None = None
) -> EvictionSettings:
    """The settings of a kubelet started with this configuration file, these drop-ins in order, and these flags.

    ``flags`` by name without dashes (`eviction-hard`). Raises PolicyError naming the source and the key.
    """
    flags = flags or {}
    maps: dict[str, dict[str, Entry]] = {key: {} for key in MAPS}
    plain: dict[str, Entry] = {}
    if file is not None:
        for key in MAPS:
            maps[key] = {
                signal: Entry(text, file.name) for signal, text in _texts(file, key).items() if text is not None
            }
        absent = file.content.get("evictionHard") is None
        if absent or file.content.get(_MERGE) is True:
            own = maps["evictionHard"]
            maps["evictionHard"] = {**{s: Entry(text, DEFAULT) for s, text in DEFAULT_HARD.items()}, **own}
        _plain(file, plain)
    for source in drop_ins:
        for key in MAPS:
            if key in source.content and source.content[key] is None:
                maps[key] = {}
            for signal, text in _texts(source, key).items():
                maps[key].pop(signal, None)
                if text is not None:
                    maps[key][signal] = Entry(text, source.name)
        _plain(source, plain)
    for key, (flag, operator) in MAPS.items():
        if flag in flags:
            pairs = parse_flag_map(flags[flag], operator)
            maps[key] = {signal: Entry(text, f"--{flag}") for signal, text in pairs.items()}
    for key, flag in (
        ("evictionPressureTransitionPeriod", "eviction-pressure-transition-period"),
        ("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period"),
    ):
        if flag in flags:
            plain[key] = Entry(flags[flag], f"--{flag}")
    return EvictionSettings(
        maps,
        _period(plain.get("evictionPressureTransitionPeriod")),
        _whole(plain.get("evictionMaxPodGracePeriod")),
        _enforced([file, *drop_ins] if file is not None else list(drop_ins)),
    )


def _texts(source: Source, key: str) -> dict[str, str | None]:
    """A map of signal to text; None is how a drop-in takes an entry out."""
    found = source.content.get(key)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise PolicyError(f"{source.name}: {key}: must be a map of signals to values")
    for signal, text in found.items():
        if not isinstance(text, str | None):
            raise PolicyError(f"{source.name}: {key}: {signal}: must be text (put it in quotes), not {text!r}")
    return dict(found)


def _plain(source: Source, plain: dict[str, Entry]) -> None:
    for key in ("evictionPressureTransitionPeriod", "evictionMaxPodGracePeriod"):
        if key in source.content:
            value = source.content[key]
            plain.pop(key, None)
            if value is not None:
                plain[key] = Entry(str(value), f"{source.name}: {key}")


def _period(entry: Entry | None) -> int:
    if entry is None:
        return DEFAULT_TRANSITION_PERIOD_NS
    try:
        # Zero is replaced: without it no condition would ever hold.
        return parse_duration(entry.text) or DEFAULT_TRANSITION_PERIOD_NS
    except PolicyError as error:
        raise PolicyError(f"{entry.origin}: {error}") from None


def _whole(entry: Entry | None) -> int:
    if entry is None:
        return 0
    try:
        return int(entry.text)
    except ValueError:
        raise PolicyError(f"{entry.origin}: {entry.text!r} is not a whole number of seconds") from None


def _enforced(sources: Sequence[Source]) -> tuple[str, ...]:
    """`enforceNodeAllocatable`: the last list named; without any, pods are."""
    for source in reversed(sources):
        found = source.content.get("enforceNodeAllocatable")
        if found is not None:
            if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
                raise PolicyError(f"{source.name}: enforceNodeAllocatable: must be a list such as [pods]")
            return tuple(found)
    return ("pods",)
