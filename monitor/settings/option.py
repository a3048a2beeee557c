"""One option of `outrace run`: what it is called, how its value is written, its default and why, when it may change.

`monitor.settings.options` is the table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monitor.settings import values

#: How an option is written on the command line: with a text, with a number, with a text and several times,
#: ``--x/--no-x``, and as the kubelet's own switches: ``--x``, ``--x=true``, ``--x=false``.
TEXT, NUMBER, TEXTS, SWITCH, KUBELET_SWITCH = "text", "number", "texts", "switch", "kubelet switch"
#: ... what only the own file has, and what only a KubeletConfiguration has.
TABLE, KEY = "table", "key"


@dataclass(frozen=True, slots=True)
class Value:
    """`parse` raises ValueError for a wrong value. `unit`: how it is written; `metavar`: the same in the help."""

    parse: Callable[[Any], Any]
    unit: str
    metavar: str = ""


FILE_NAME = Value(values.text, "name of a file or directory", "FILE")
DIRECTORY = Value(values.path, "path of a directory", "DIR")
ABSOLUTE_PATH = Value(values.absolute_path, "absolute path", "PATH")
NAME = Value(values.text, "text", "NAME")
OPTIONAL_PATH = Value(values.optional_text, 'path; may be ""')
RECORDING = Value(values.record, "path of a file", "FILE")
PODS = Value(values.pods, "source of pods", "SOURCE")
BOOLEAN = Value(values.boolean, "true or false")
SECONDS = Value(values.whole_number, "seconds", "SECONDS")
DURATION = Value(values.positive_duration_ns, "duration such as 90s, 1m30s; at most 24h", "DURATION")
WHOLE_SECONDS = Value(values.whole_seconds_ns, "duration of whole seconds such as 30s; at most 24h", "DURATION")
PERIOD = Value(values.duration_ns, "duration such as 90s, 5m; 0 is the default", "DURATION")
_WRITTEN = "or a command: a list, or one text split as a shell does"
IMAGE_PRUNE = Value(values.prunes_images, f"crictl, podman, {_WRITTEN}", "crictl|podman|COMMAND")
LISTEN = Value(values.listen, "HOST:PORT", "HOST:PORT")
ENFORCEABLE = Value(values.enforceable, "list")
SERVICES = Value(
    values.services,
    "table of patterns: priority (a number; lower goes first), request (bytes), grace (as 90s), never (true or false)",
)


@dataclass(frozen=True, slots=True)
class Option:
    """`default` is what the help shows; the default itself is that of RunConfig's `field` ("": a file to read, not a
    setting). `kubelet_key`: where a KubeletConfiguration has it. `why`: why it is there, and why its default is that.
    `example`: a value for who has none to copy; None: the default is one. `live`: a running daemon takes another value
    at `outrace reload`.
    """

    name: str
    value: Value
    help: str
    metavar: str = ""
    why: str = ""
    default: str = ""
    kind: str = TEXT
    kubelet_key: str = ""
    field: str = ""
    own_file: bool = True
    example: Any = None
    live: bool = False

    @property
    def parse(self) -> Callable[[Any], Any]:
        return self.value.parse

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return variable_of(self.name)


def variable_of(name: str) -> str:
    return "OUTRACE_" + name.upper().replace("-", "_")


def setting(
    name: str,
    value: Value,
    help: str,  # noqa: A002
    metavar: str = "",
    *,
    kubelet: bool = False,
    **rest: Any,
) -> Option:
    """``kubelet``: a KubeletConfiguration has it too, by the same name in camel case."""
    first, *others = name.split("-")
    key = first + "".join(map(str.capitalize, others)) if kubelet else ""
    return Option(
        name, value, help, metavar or value.metavar, kubelet_key=key, **{"field": name.replace("-", "_"), **rest}
    )


def key(name: str, value: Value, help: str, **rest: Any) -> Option:  # noqa: A002
    """A key of a KubeletConfiguration that is no option of ours."""
    return setting(name, value, help, kubelet=True, kind=KEY, own_file=False, **rest)


def switch(name: str, help: str, **rest: Any) -> Option:  # noqa: A002
    return setting(name, BOOLEAN, help, **{"kind": SWITCH, "default": "false", **rest})


def choice(
    name: str,
    choices: Sequence[str],
    help: str,  # noqa: A002
    metavar: str = "",
    gone: Mapping[str, str] | None = None,
    **rest: Any,
) -> Option:
    """``gone``: a value of earlier versions -> what to write instead."""
    value = Value(values.choice(choices, gone or {}), f"one of {', '.join(choices)}")
    return setting(name, value, help, metavar or "|".join(choices), **{"default": choices[0], **rest})


def text_map(name: str, operator: str, what: str, example: str, **rest: Any) -> Option:
    """A map of signals or resources to amounts, as a kubelet's file or flag has it."""
    parse = values.text_map(operator)
    unit = "durations by signal" if "grace" in name else "quantities or percentages by signal"
    if "reserved" in name:
        unit = "quantities by resource"
    value = Value(parse, unit)
    return setting(
        name, value, f"{what}, such as '{example}'.", "MAP", kubelet=True, **{"example": parse(example), **rest}
    )


def urls(name: str, help: str, **rest: Any) -> Option:  # noqa: A002
    value = Value(values.urls(f"--{name}"), "URL, or a list of them")
    return setting(name, value, help, "URL", kind=TEXTS, field=f"{name}s", **rest)
