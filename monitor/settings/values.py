"""Reading one value as a user writes it. All raise ValueError (a PolicyError is one); the caller adds the origin."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from monitor.errors import ConfigError
from monitor.owner import changed_by, mend
from monitor.pods.spec import MANIFESTS, check_spec
from monitor.policy.errors import PolicyError
from monitor.policy.gosyntax import parse_duration
from monitor.policy.qos import MOST_PRIORITY
from monitor.policy.quantity import Quantity
from monitor.policy.stall import parse_rule
from monitor.policy.thresholds import DEFAULT_TRANSITION_PERIOD_NS, parse_flag_map

#: What a node can reserve (`--system-reserved`, `--kube-reserved` of the kubelet).
RESERVABLE = ("cpu", "memory", "ephemeral-storage", "pid")
_SLICES = ("system-reserved", "kube-reserved")
ENFORCEABLE = ("none", "pods", *(name for whose in _SLICES for name in (whose, f"{whose}-compressible")))
_LONGEST_NS = 24 * 3600 * 10**9
_LARGEST_NANOS = 10**9 << 62
ALERTMANAGER_PATH = "/api/v2/alerts"


def choice(choices: Sequence[str], gone: Mapping[str, str]) -> Callable[[Any], str]:
    """``gone``: a value of earlier versions -> what to write instead."""

    def parse(value: Any) -> str:
        if isinstance(value, str) and value in gone:
            raise ValueError(f"{value!r} is gone: write {gone[value]}")
        return str(_one_of(value, choices))

    return parse


def _one_of(value: Any, choices: Sequence[str]) -> Any:
    if value not in choices:
        raise ValueError(f"{value!r} is not one of {', '.join(choices)}")
    return value


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is not true or false")
    return value


def whole_number(value: Any) -> int:
    """As the kubelet holds one, in 32 bits; it may be negative."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    if not -(2**31) <= value < 2**31:
        raise ValueError(f"{value} is beyond 32 bits")
    return value


def text(value: Any) -> str:
    if not optional_text(value):
        raise ValueError("'' is not a text; leave it out for the default")
    return str(value)


def optional_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text" + ("; put it in quotes" if isinstance(value, int | float) else ""))
    return value


def path(value: Any) -> str:
    return os.path.abspath(text(value))


def absolute_path(value: Any) -> str:
    """A path that means the same wherever the daemon is started."""
    absolute = text(value)
    if not absolute.startswith("/"):
        raise ValueError(f"{value!r} is not an absolute path such as /var/lib/kubelet")
    return os.path.normpath(absolute)


#: Words that stand for a command which removes the images that a runtime does not use.
IMAGE_PRUNES = {"crictl": ("crictl", "rmi", "--prune"), "podman": ("podman", "image", "prune", "--all", "--force")}


def prunes_images(value: Any) -> tuple[str, ...]:
    """One of `IMAGE_PRUNES`, or a command and its arguments, from a list or from one text with the quoting of a shell.
    () for an empty one.
    """
    words = shlex.split(value) if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{value!r} is not a command such as 'crictl rmi --prune'")
    if words[:1] == [""]:
        raise ValueError("the command has no name")
    if len(words) != 1:
        return tuple(words)
    if words[0] == "cri" or words[0].startswith("cri:"):
        raise ValueError(f"outrace has no client of CRI any more: write crictl instead of {words[0]}")
    return IMAGE_PRUNES.get(words[0], (words[0],))


def size(value: Any) -> int:
    """Bytes from a quantity (``12Gi``) or a plain number; at least 1, at most 4Ei."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is not a quantity such as 1Mi")
    size = Quantity.parse(str(value))
    # Compared exactly: the whole value of a quantity beyond 64 bits is garbage, as in the kubelet.
    if not 0 < size.nanos <= _LARGEST_NANOS:
        raise ValueError(f"{value!r} is not a size from 1 to 4Ei")
    return size.value


def _period(value: Any) -> int:
    """Nanoseconds; a number would be of no unit."""
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f"{value!r} has no unit; write {value}s")
    return parse_duration(text(value))


def duration_ns(value: Any) -> int:
    period = _period(value)
    if period < 0:
        raise ValueError(f"{value!r} is negative")
    return period or DEFAULT_TRANSITION_PERIOD_NS  # the kubelet replaces a period of zero by its default


def positive_duration_ns(value: Any) -> int:
    """A duration of more than nothing, such as ``90s`` or ``2m``; at most a day."""
    period = _period(value)
    if not 0 < period <= _LONGEST_NS:
        raise ValueError(f"{value!r} is not a duration above 0 and of at most 24h, such as 30s or 2m")
    return period


def whole_seconds_ns(value: Any) -> int:
    """A `positive_duration_ns` of whole seconds, as a pod's grace is."""
    period = positive_duration_ns(value)
    if period % 1_000_000_000:
        raise ValueError(f"{value!r} is not a number of whole seconds, such as 30s")
    return period


def text_map(operator: str, example: str) -> Callable[[Any], dict[str, str]]:
    """A map as the kubelet's flag writes it (``key<value,...``) or as its configuration file does."""

    def parse(value: Any) -> dict[str, str]:
        if isinstance(value, str):
            return dict(parse_flag_map(value, operator))
        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r} is not a map of key to text; write {example.replace(operator, ': ')}")
        for key, item in value.items():
            if not isinstance(key, str) or not isinstance(item, str):
                raise ValueError(f'{key}: {item!r} is not a text; put it in quotes: {key}: "{item}"')
        return dict(value)

    return parse


def reserved(name: str, amount: str) -> Quantity:
    """One entry of a reservation: a resource that can be reserved, and how much of it."""
    if name not in RESERVABLE:
        raise ValueError(f"cannot be reserved; resources are {', '.join(RESERVABLE)}")
    quantity = Quantity.parse(amount)
    if not 0 <= quantity.nanos <= _LARGEST_NANOS:
        raise ValueError("not an amount from 0 to 4Ei")
    return quantity


def check_fits(amount: str) -> None:
    """Refuse a quantity that the kubelet lets through and no machine has: beyond 64 bits it is garbage as a number."""
    if Quantity.parse(amount).nanos > _LARGEST_NANOS:
        raise PolicyError("quantities must be at most 4Ei")


def enforceable(value: Any) -> tuple[str, ...]:
    names = [part for part in value.split(",") if part] if isinstance(value, str) else value
    if not isinstance(names, list):
        raise ValueError(f"{value!r} is not a list")
    return tuple(_one_of(name, ENFORCEABLE) for name in names)


def listen(value: Any) -> tuple[str, int]:
    host, colon, port = text(value).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{value!r} is not HOST:PORT, for example 127.0.0.1:9469")
    if any(len(label) > 63 for label in host.split(".")):
        raise ValueError(f"{value!r}: a part of a host's name has at most 63 characters")
    return host, int(port)


def pods(value: Any) -> str:
    kind, directory = check_spec(text(value))
    if kind != MANIFESTS:
        return text(value)
    if not os.path.isdir(directory):
        raise ValueError(f"{directory} is not a directory; make it, or name another one: --pods manifests:DIR")
    problem = changed_by(Path(directory))
    if problem:
        raise ValueError(f"{problem}, who could have any pod killed; {mend(problem)}, or name another directory")
    return f"manifests:{os.path.abspath(directory)}"


def services(value: Any) -> dict[str, dict[str, Any]]:
    """The table `services:`: pattern of names -> ``priority``, ``request`` (bytes from a quantity), ``grace``
    (seconds), ``never``.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f'{value!r} is not a table of patterns, such as "system/batch*": {{priority: -10}}')
    found: dict[str, dict[str, Any]] = {}
    for pattern, rule in value.items():
        if not isinstance(pattern, str) or not pattern:
            raise ValueError(f"{pattern!r} is not a pattern of names, such as system/batch*; put it in quotes")
        if not isinstance(rule, Mapping) or not rule:
            raise ValueError(f"{pattern}: {rule!r} is not a map; keys are {', '.join(_SERVICE_KEYS)}")
        found[pattern] = {str(key): _service_value(pattern, key, item) for key, item in rule.items()}
    return found


def _service_value(pattern: str, key: Any, value: Any) -> Any:
    if key not in _SERVICE_KEYS:
        raise ValueError(f"{pattern}: unknown key {key!r}; keys are {', '.join(_SERVICE_KEYS)}")
    try:
        found = _SERVICE_KEYS[key](value)
    except ValueError as error:
        raise ValueError(f"{pattern}: {key}: {error}") from None
    if key == "priority" and found > MOST_PRIORITY:
        raise ValueError(f"{pattern}: priority: {value} is above {MOST_PRIORITY}; never: true protects for good")
    return found


_SERVICE_KEYS: dict[str, Callable[[Any], Any]] = {
    "priority": whole_number,
    "request": size,
    "grace": lambda value: whole_seconds_ns(value) // 10**9,
    "never": boolean,
}


def record(value: Any) -> str:
    path = os.path.abspath(text(value))
    if os.path.isdir(path):
        raise ValueError(f"{path} is a directory; name a file in it")
    if not os.path.isdir(os.path.dirname(path)):
        raise ValueError(f"the directory {os.path.dirname(path)} does not exist; make it, or name another one")
    if os.geteuid() == 0:
        with suppress(FileNotFoundError):  # each directory on the way has been looked at by then
            if problem := changed_by(Path(path)):
                raise ValueError(f"{problem}: root writes there; {mend(problem)}, or name another file")
    return path


def stall_rules(value: Any) -> tuple[str, ...]:
    """One rule, or a list of them, one of each scope; "none" for none."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(rule, str) for rule in found):
        raise ValueError(f"{value!r} is not a rule like pod>50%,grace=10s, or a list of them")
    if list(found) == ["none"]:
        return ()
    scopes = [parse_rule(rule).scope for rule in found]
    if len(set(scopes)) < len(scopes):
        raise ValueError("two rules have the same scope; write one for each of pod, kubepods, machine and swap.used")
    return tuple(found)


def alertmanagers(value: Any) -> tuple[str, ...]:
    """One URL, or a list of them. Raises ConfigError for one that is none."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(url, str) for url in found):
        raise ValueError(f"{value!r} is not a URL, or a list of them")
    return tuple(check_url(url) for url in found)


def check_url(text: str) -> str:
    """The URL of an Alertmanager as it is used (no slash at the end). Raises ConfigError when it is none."""
    from monitor.kube.cluster import parse_server  # ssl takes 20 ms to import

    if "/api/v" in parse_server(text, "--alertmanager", login=True).prefix:
        remedy = f"give the base URL; {ALERTMANAGER_PATH} is added to it"
        raise ConfigError("--alertmanager: /api/v... is the address of the API", remedy)
    return text.rstrip("/")
