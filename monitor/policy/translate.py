"""Old kubelet flags to a KubeletConfiguration: today's fields, and for flags without one, why there is none."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from monitor.policy.configuration import HARD, MERGE_DEFAULTS, MIN_RECLAIM, SOFT, SOFT_GRACE
from monitor.policy.errors import PolicyError
from monitor.policy.gosyntax import parse_duration
from monitor.policy.releases import GATES
from monitor.policy.signals import IMAGEFS, NODEFS
from monitor.policy.thresholds import parse_flag_map

API_VERSION, KIND = "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"
#: What a kubelet uses when only one of the two is given, in percent of the disk.
_GC_HIGH, _GC_LOW = 85, 80
#: What the kubelet's flags take for a boolean (Go's strconv.ParseBool).
BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


_amounts = partial(parse_flag_map, operator="=")


class Translation(NamedTuple):
    """A KubeletConfiguration, a line for all that was not carried over, and the last place of each flag (if known)."""

    configuration: dict[str, Any]
    notes: list[str]
    origins: Mapping[str, str]


def _list(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _duration(text: str) -> str:
    parse_duration(text)
    return text


def _integer(text: str) -> int:
    """As Go reads the numbers of flags (strconv.ParseInt with base 0): `0x10` is 16, and `010` is 8."""
    try:
        if not text.isascii() or any(map(str.isspace, text)):
            raise ValueError(text)
        return int(re.sub(r"^([+-]?0)(?=[0-9_])", r"\1o", text), 0)
    except ValueError:
        raise PolicyError(f"{text!r} is not a whole number") from None


def _percent(text: str) -> int:
    percent = _integer(text)
    if not 0 <= percent <= 100:
        raise PolicyError(f"{text} is not a percentage from 0 to 100")
    return percent


def _boolean(text: str) -> bool:
    if text not in BOOLEANS:
        raise PolicyError(f"{text!r} is not true or false")
    return BOOLEANS[text]


def _gates(text: str) -> dict[str, bool]:
    """Those that outrace knows; others come and go."""
    pairs = (pair.partition("=") for pair in text.split(","))
    return {name.strip(): _boolean(value.strip()) for name, _, value in pairs if name.strip() in GATES}


_GATES_FLAG = "feature-gates"
#: Flag -> field of a KubeletConfiguration (the last two: `_succeed`), and how its value is read.
FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "eviction-hard": (HARD, parse_flag_map),
    "eviction-soft": (SOFT, parse_flag_map),
    "eviction-soft-grace-period": (SOFT_GRACE, _amounts),
    "eviction-minimum-reclaim": (MIN_RECLAIM, _amounts),
    "eviction-max-pod-grace-period": ("evictionMaxPodGracePeriod", _integer),
    "eviction-pressure-transition-period": ("evictionPressureTransitionPeriod", _duration),
    "kernel-memcg-notification": ("kernelMemcgNotification", _boolean),
    "experimental-kernel-memcg-notification": ("kernelMemcgNotification", _boolean),
    "local-storage-capacity-isolation": ("localStorageCapacityIsolation", _boolean),
    "system-reserved": ("systemReserved", _amounts),
    "kube-reserved": ("kubeReserved", _amounts),
    "system-reserved-cgroup": ("systemReservedCgroup", str),
    "kube-reserved-cgroup": ("kubeReservedCgroup", str),
    "enforce-node-allocatable": ("enforceNodeAllocatable", _list),
    "cgroups-per-qos": ("cgroupsPerQOS", _boolean),
    "qos-reserved": ("qosReserved", _amounts),
    "reserved-cpus": ("reservedSystemCPUs", str),
    "image-gc-high-threshold": ("imageGCHighThresholdPercent", _percent),
    "image-gc-low-threshold": ("imageGCLowThresholdPercent", _percent),
    "minimum-image-ttl-duration": ("imageMinimumGCAge", _duration),
    _GATES_FLAG: ("featureGates", _gates),
    "low-diskspace-threshold-mb": ("low-diskspace-threshold-mb", _integer),
    "outofdisk-transition-frequency": ("outofdisk-transition-frequency", _duration),
}
_DEAD_CONTAINERS = (
    "has no successor: dead containers were kept for their logs, which are files of their own now; they are removed "
    "when a disk runs short, as evictionHard nodefs.available says"
)
#: Flags without a field, and why.
WITHOUT: dict[str, str] = {
    "config": "has no field: its file was not read; give it with --file",
    "config-dir": "has no field: its files were not read; give each with --file",
    "maximum-dead-containers": _DEAD_CONTAINERS,
    "maximum-dead-containers-per-container": _DEAD_CONTAINERS,
    "minimum-container-ttl-duration": _DEAD_CONTAINERS,
    "reserved-memory": "has a list as its field, reservedMemory, with numaNode and limits of each: write that by hand",
    "experimental-allocatable-ignore-eviction": (
        "has no field: it stays a flag of the kubelet; in a file the copy of memory.available for allocatable memory "
        "goes away only together with the limit of kubepods, by enforceNodeAllocatable: [none]"
    ),
}
#: Those that matter here. The kubelet has 150 others, which come and go with its releases.
_OURS = (*FIELDS, *WITHOUT)
#: `difflib`'s ratio from which a flag is a misspelt one of ours. Of 200 flags of kubelets the most alike has 0.72.
_ALIKE = 0.8
#: Flags that may stand alone.
BOOLEAN_FLAGS = {flag for flag, (_, read) in FIELDS.items() if read is _boolean} | {
    "experimental-allocatable-ignore-eviction"
}


#: Of arguments: the kubelet has 150 flags, and places of a flag that is repeated are joined, which takes n^2 time.
_MOST = 2000
#: What to write, by how a value is read.
_REMEDIES: dict[Callable[[str], Any], str] = {
    parse_flag_map: "write SIGNAL<VALUE,... in quotes (a shell redirects at <), as in 'memory.available<100Mi'",
    _amounts: "write NAME=VALUE,..., as in memory=500Mi,cpu=100m, without blanks",
    _integer: "write a whole number",
    _percent: "write a whole number from 0 to 100",
    _duration: "write a duration such as 90s or 1m30s",
    _boolean: "write =true or =false",
    _gates: "write GATE=true,...",
}


def translate(arguments: Sequence[str], where: Sequence[str] = ()) -> Translation:
    """The configuration these flags of a kubelet make, ``--flag=value`` or ``--flag value``; ``where``: their places.
    A map or list given twice is added to, as in the kubelet. Flags of other things are noted. Raises PolicyError.
    """
    if len(arguments) > _MOST:
        raise PolicyError(f"{len(arguments)} flags and values, where {_MOST} are the most; give a kubelet's own")
    given: dict[str, Any] = {}
    notes: list[str] = []
    others: list[str] = []
    origins: dict[str, str] = {}
    for flag, text, place in _flags(arguments, where):
        if flag == _GATES_FLAG:
            if place:  # of a file: a shell has expanded the variables of a command line
                _check_literal(flag, text, place)
            gates = filter(None, map(str.strip, text.split(",")))
            others += [f"{flag}={gate}" for gate in gates if gate.partition("=")[0].strip() not in GATES]
        if flag in WITHOUT:
            notes.append(f"--{flag} {WITHOUT[flag]}")
        elif _is_carried_over(flag, text):
            given[FIELDS[flag][0]] = _value(flag, text, place, given)
            origins |= {flag: place} if place else {}
        elif flag != _GATES_FLAG:
            others.append(flag)
    notes += _succeed(given, origins)
    if others:
        listed = ", ".join(f"--{flag}" for flag in dict.fromkeys(others))
        notes.append(f"none of eviction, clean-up or reservation, and not carried over: {listed}")
    order = list(dict.fromkeys(field for field, _ in FIELDS.values()))
    fields = {field: given[field] for field in (*order[:1], MERGE_DEFAULTS, *order[1:]) if field in given}
    return Translation({"apiVersion": API_VERSION, "kind": KIND, **fields}, notes, origins)


def _value(flag: str, text: str, place: str, given: Mapping[str, Any]) -> Any:
    """The value of a flag, with what its field has already. Raises PolicyError."""
    field, read = FIELDS[flag]
    _check_literal(flag, text, place)
    try:
        value = read(text)
    except PolicyError as error:
        raise PolicyError(f"{_at(place)}--{flag}: {error}; {_REMEDIES[read]}") from None
    if isinstance(value, dict):
        return given.get(field, {}) | value
    return given.get(field, []) + value if isinstance(value, list) else value


def _check_literal(flag: str, text: str, place: str) -> None:
    if "$" in text:
        raise PolicyError(f"{_at(place)}--{flag}: its value has a variable; write what it stands for")


def _is_carried_over(flag: str, text: str) -> bool:
    """Whether this value of a flag matters here."""
    return flag in FIELDS and (flag != _GATES_FLAG or any(gate in text for gate in GATES))


def _at(place: str) -> str:
    return f"{place}: " if place else ""


def _flags(arguments: Sequence[str], where: Sequence[str]) -> list[tuple[str, str, str]]:
    """Names without dashes, values and places. A boolean may stand alone."""
    found = []
    rest = list(zip(arguments, where or [""] * len(arguments), strict=True))
    while rest:
        argument, place = rest.pop(0)
        at = _at(place)
        if short := re.fullmatch(r"-v=?(\d*)", argument):  # the one short flag of a kubelet
            argument = f"--v={short[1]}" if short[1] else "--v"
        if not argument.startswith("--") or argument == "--":
            raise PolicyError(f"{at}{argument!r} is not a flag of the kubelet: write --flag=value or --flag value")
        flag, equals, value = argument[2:].partition("=")
        flag = flag.replace("_", "-")  # the kubelet takes both
        if flag not in _OURS and (close := difflib.get_close_matches(flag, _OURS, 1, _ALIKE)):
            raise PolicyError(f"{at}--{flag}: is not known here; did you mean --{close[0]}?")
        if not equals:
            if flag in BOOLEAN_FLAGS and (not rest or rest[0][0] not in BOOLEANS):
                value = "true"
            elif rest and not re.match(r"-\D", rest[0][0]):  # -1 is a number
                value = rest.pop(0)[0]
            elif flag in _OURS:
                raise PolicyError(f"{at}--{flag}: has no value; write --{flag}=VALUE")
        found.append((flag, value, place))
    return found


def _succeed(given: dict[str, Any], origins: Mapping[str, str]) -> list[str]:
    """Write what flags of the time before eviction stand for today; the notes that go with it."""
    notes: list[str] = []
    named = HARD in given
    high, low = given.get("imageGCHighThresholdPercent"), given.get("imageGCLowThresholdPercent")
    upper, lower = _GC_HIGH if high is None else high, _GC_LOW if low is None else low
    if lower >= upper:
        place = origins.get("image-gc-low-threshold") or origins.get("image-gc-high-threshold", "")
        raise PolicyError(
            f"{_at(place)}--image-gc-low-threshold: {lower} must be less than --image-gc-high-threshold, {upper}; "
            "raise the one or lower the other"
        )
    megabytes = given.pop("low-diskspace-threshold-mb", None)
    for flag, old, field, signal, value in (
        ("--image-gc-high-threshold", high, HARD, IMAGEFS, f"{100 - upper}%" if upper < 100 else ""),
        ("--image-gc-low-threshold", low, MIN_RECLAIM, IMAGEFS, f"{upper - lower}%"),
        ("--low-diskspace-threshold-mb", megabytes, HARD, NODEFS, f"{megabytes}Mi" if (megabytes or 0) > 0 else ""),
    ):
        if old is not None:
            notes.append(f"{flag} {_added(given, field, signal, value)}")
    frequency = given.pop("outofdisk-transition-frequency", None)
    if frequency is not None:
        stays = "evictionPressureTransitionPeriod" in given
        given.setdefault("evictionPressureTransitionPeriod", frequency)
        notes.append(
            "--outofdisk-transition-frequency is evictionPressureTransitionPeriod today"
            + (", which is given already and stays" if stays else "")
        )
    if given.get(HARD) and not named:
        given[MERGE_DEFAULTS] = True
        notes.append(
            f"{MERGE_DEFAULTS}: true keeps the other default hard thresholds (Kubernetes 1.33 and later; with an older "
            f"kubelet name them in {HARD})"
        )
    return notes


def _added(given: dict[str, Any], field: str, signal: str, value: str) -> str:
    """What a flag with this value is today, once it is in the map ``field``."""
    if not value:
        return "switches itself off with this value: no threshold is made of it"
    if signal in given.get(field, {}):
        return f"is {field} {signal}: {value} today; {given[field][signal]} is given already and stays"
    given.setdefault(field, {})[signal] = value
    more = " (unused images are removed first, then pods are evicted)" if signal == IMAGEFS and field == HARD else ""
    return f"is {field} {signal}: {value} today{more}"
