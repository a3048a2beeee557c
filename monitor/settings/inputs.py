"""The layers that thresholds and reservations were made of, as JSON, as they were when the daemon read them. The daemon
carries them, so that `outrace config show` has the origins of what is in force also where a file has changed since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from monitor.policy.configuration import Given, Source
from monitor.settings.config import RunConfig
from monitor.settings.option import Option
from monitor.settings.options import KUBELET_KEYS, SETTINGS


def to_inputs(kubelets: Mapping[str, Given], file: Source | None, drop_ins: tuple[Source, ...]) -> dict[str, Any]:
    """``kubelets``: the kubelet's keys that outrace itself was given, parsed."""
    found = {
        "own": {key: list(given) for key, given in kubelets.items()},
        "file": None if file is None else _source(file),
        "drop_ins": [_source(one) for one in drop_ins],
    }
    # YAML has dates, JSON has none; no key of ours takes one.
    copied: dict[str, Any] = json.loads(json.dumps(found, default=str, skipkeys=True))
    return copied


def from_inputs(inputs: Mapping[str, Any]) -> tuple[dict[str, Given], Source | None, tuple[Source, ...]]:
    """The inverse of `to_inputs`; nothing was given where there are none."""
    own = {key: Given(value, origin) for key, (value, origin) in inputs.get("own", {}).items()}
    file = inputs.get("file")
    return own, None if file is None else Source(*file), tuple(Source(*one) for one in inputs.get("drop_ins", ()))


def given(config: RunConfig, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What `monitor.settings.reload` needs to read a configuration again: the ``arguments`` of `read`, and by name the
    values that cannot change while running, as they were read. (The daemon fills some in as it starts.)
    """
    fixed = {option.name: value_of(config, option) for option in SETTINGS if not option.live}
    copied: dict[str, Any] = json.loads(json.dumps({"arguments": arguments, "fixed": fixed}, default=str))
    return copied


def value_of(config: RunConfig, option: Option) -> Any:
    """The value of an option in a configuration."""
    if option.name == "listen":
        return f"{config.listen_host}:{config.listen_port}"
    return getattr(config, option.field)


def _source(source: Source) -> list[Any]:
    return [source.name, {key: value for key, value in source.content.items() if key in KUBELET_KEYS}]
