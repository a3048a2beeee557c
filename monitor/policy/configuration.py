"""Which settings are in force, and where each entry of them came from. Nothing else in outrace decides that.

Later ones win: defaults, the kubelet's file, its drop-ins (JSON merge patches, RFC 7396), outrace's options. A file
that names a hard threshold has no defaults unless it asks for them (`mergeDefaultEvictionSettings`). A flag replaces
its map. Without any file a kubelet has no hard thresholds; outrace has the defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from monitor.policy.errors import PolicyError
from monitor.policy.layout import SINGLE_DISK, DiskLayout, overlay_containerfs
from monitor.policy.releases import CURRENT, Era
from monitor.policy.signals import ALLOCATABLE_OF
from monitor.policy.thresholds import LESS_THAN, OFF, Threshold, place

DEFAULT = "default"
MERGE_DEFAULTS = "mergeDefaultEvictionSettings"
HARD, SOFT = "evictionHard", "evictionSoft"
SOFT_GRACE, MIN_RECLAIM = "evictionSoftGracePeriod", "evictionMinimumReclaim"
THRESHOLDS = (HARD, SOFT, SOFT_GRACE, MIN_RECLAIM)
SYSTEM_RESERVED, KUBE_RESERVED = "systemReserved", "kubeReserved"
ENFORCE = "enforceNodeAllocatable"
#: Keys of a KubeletConfiguration that hold a map of texts, and so are merged entry by entry.
TEXT_MAPS = (*THRESHOLDS, SYSTEM_RESERVED, KUBE_RESERVED)


class Source(NamedTuple):
    """A KubeletConfiguration, or a drop-in of one, already parsed; `name` is that of its file."""

    name: str
    content: Mapping[str, Any]


class Given(NamedTuple):
    """A value, or an entry of a map, as it was written, and where: `default`, `FILE: key` or `--flag`."""

    value: Any
    origin: str


class Effective(NamedTuple):
    """A threshold in force, as written, and where. `copy`: for allocatable memory; `overlay`: for containers' disk."""

    threshold: Threshold
    text: str
    min_reclaim: str | None
    origin: str
    copy: bool = False
    overlay: bool = False


@dataclass(frozen=True)
class Settings:
    """What is in force, by key of a KubeletConfiguration: `maps` (every key of `TEXT_MAPS`, `origins`: the last place
    that said something of it), `values` (the others given); default hard thresholds `switched_off`, and where.
    """

    maps: Mapping[str, Mapping[str, Given]]
    values: Mapping[str, Given]
    origins: Mapping[str, str]
    switched_off: Mapping[str, str]

    def texts(self, key: str) -> dict[str, str]:
        """A map without its origins."""
        return {name: entry.value for name, entry in self.maps[key].items()}

    def thresholds(self, rules: Era = CURRENT, layout: DiskLayout = SINGLE_DISK) -> tuple[Effective, ...]:
        """Every threshold with its origin, in the order of `RunConfig.thresholds`. Raises PolicyError."""
        hard, soft, grace, reclaim = map(self.texts, THRESHOLDS)
        parsed = rules.parse_thresholds(hard, soft, grace, reclaim, self.enforced(), in_order=True, own=True)
        entries = [entry for key in (HARD, SOFT) for entry in self.maps[key].values() if entry.value not in OFF]
        found = [
            Effective(t, value, reclaim.get(t.signal), origin)
            for t, (value, origin) in zip(parsed, entries, strict=False)
        ]
        copied = [e for e in found if e.threshold.signal in ALLOCATABLE_OF and e.threshold.hard]
        for original, t in zip(copied, parsed[len(entries) :], strict=False):
            origin = f"copy of {original.threshold.signal} ({original.origin})"
            found.append(original._replace(threshold=t, origin=origin, copy=True))
        found.sort(key=lambda e: place(e.threshold))
        return _overlaid(found, layout) if rules.containerfs else tuple(found)

    def enforced(self) -> tuple[str, ...]:
        """`enforceNodeAllocatable`; pods, if it is not given."""
        given = self.values.get(ENFORCE)
        return ("pods",) if given is None else tuple(given.value)


def _overlaid(found: list[Effective], layout: DiskLayout) -> tuple[Effective, ...]:
    """`overlay_containerfs` with origins: what it put in place of, or after, the thresholds given."""
    result = []
    for i, t in enumerate(overlay_containerfs([e.threshold for e in found], layout)):
        if i < len(found) and t is found[i].threshold:
            result.append(found[i])
        elif t.operator == LESS_THAN:
            source = t.signal.replace("containerfs", layout.containers_on)
            # The last one, as in the overlay.
            original = [e for e in found if e.threshold.signal == source and e.threshold.hard == t.hard][-1]
            origin = f"overlay: copy of {source} ({original.origin})"
            result.append(original._replace(threshold=t, origin=origin, overlay=True))
    return tuple(result)


def in_force(
    file: Source | None = None,
    drop_ins: Iterable[Source] = (),
    own: Mapping[str, Given] | None = None,
    rules: Era = CURRENT,
) -> Settings:
    """The settings of a configuration file, its drop-ins in order, and outrace's ``own`` options (by key, already of
    the right type), with the defaults of ``rules``. Raises PolicyError naming source and key of a wrong type.
    """
    maps: dict[str, dict[str, Given]] = {key: {} for key in TEXT_MAPS}
    values: dict[str, Given] = {}
    origins = dict.fromkeys(TEXT_MAPS, DEFAULT)
    off: dict[str, str] = {}
    for n, source in enumerate((file or Source("", {}), *drop_ins)):
        patched = _checked(source, patch=n > 0)
        for key, value in patched.items():
            origin = f"{source.name}: {key}"
            if key not in maps:
                values |= {key: Given(value, origin)}
                continue
            origins[key] = origin
            # An entry that was there keeps its place, as in the JSON; a new one comes last.
            entries = maps[key] | {name: Given(text, origin) for name, text in (value or {}).items()}
            maps[key] = {} if value is None else {name: e for name, e in entries.items() if e.value is not None}
        if n == 0 and (HARD not in patched or source.content.get(MERGE_DEFAULTS)):
            maps[HARD] = {**{signal: Given(text, DEFAULT) for signal, text in rules.default_hard.items()}, **maps[HARD]}
        elif n == 0:
            off = {signal: origins[HARD] for signal in rules.default_hard if signal not in maps[HARD]}
    values = {key: given for key, given in values.items() if given.value is not None}
    for key, given in (own or {}).items():
        if key in maps:
            maps[key] = {name: Given(text, given.origin) for name, text in given.value.items()}
            origins[key] = given.origin
            if key == HARD:
                off = dict.fromkeys(rules.default_hard, given.origin)
        else:
            values[key] = given
    off = {signal: origin for signal, origin in off.items() if signal not in maps[HARD]}
    return Settings(maps, values, origins, off)


def _checked(source: Source, patch: bool) -> dict[str, Any]:
    """What a file says, once it is of the right types. In a ``patch`` null takes away what was there before."""
    said = {key: value for key, value in source.content.items() if patch or value is not None}
    for key, found in said.items():
        if key == ENFORCE and not isinstance(found, list | None):
            raise PolicyError(f"{source.name}: {key}: must be a list such as [pods], not {found!r}")
        if key not in TEXT_MAPS or found is None:
            continue
        if not isinstance(found, Mapping):
            raise PolicyError(f"{source.name}: {key}: must be a map such as {{memory.available: 100Mi}}, not {found!r}")
        for name, text in found.items():
            origin = f"{source.name}: {key}: {name}"
            if text is None and not patch:
                raise PolicyError(f"{origin}: has no value; give it one, or leave it out")
            if not isinstance(name, str) or not isinstance(text, str | None):
                raise PolicyError(f'{origin}: {text!r} is not a text; put it in quotes: {name}: "{text}"')
    return said
