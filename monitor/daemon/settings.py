"""From flags, the own `--config` file and a KubeletConfiguration to one checked `RunConfig`.

Precedence: flag > own file > kubelet configuration > default; the origin of every value is kept. The own file (YAML, or
TOML by its suffix) uses the option names without the dashes and is strict. The KubeletConfiguration is read as it is:
fields that are none of our business are ignored, but an unknown one that begins with ``eviction`` is a typing mistake
that would silently change the policy, so it is refused by name.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitor.daemon.config import HOOKS, LOG_FORMATS, TRIGGERS, RunConfig
from monitor.errors import ConfigError
from monitor.pods.spec import check_spec
from monitor.policy.errors import PolicyError
from monitor.policy.gosyntax import parse_duration
from monitor.policy.quantity import Quantity
from monitor.policy.signals import SIGNALS
from monitor.policy.thresholds import (
    DEFAULT_TRANSITION_PERIOD_NS,
    effective_hard,
    parse_flag_map,
    parse_thresholds,
)

#: What a node can reserve (`--system-reserved`, `--kube-reserved` of the kubelet).
_RESERVABLE = ("cpu", "memory", "ephemeral-storage", "pid")
_ENFORCEABLE = (
    "none",
    "pods",
    "system-reserved",
    "system-reserved-compressible",
    "kube-reserved",
    "kube-reserved-compressible",
)


def _choice(*choices: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} is not one of {', '.join(choices)}")
        return str(value)

    return parse


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is not true or false")
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a text")
    return value


def _path(value: Any) -> str:
    return os.path.abspath(_text(value))


def _size(value: Any) -> int:
    """Bytes from a quantity (``12Gi``) or a plain number; at least 1, at most 4Ei."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is not a quantity such as 1Mi")
    size = Quantity.parse(str(value))
    # Compared exactly: the whole value of a quantity beyond 64 bits is garbage, as in the kubelet.
    if not 0 < size.nanos <= 10**9 << 62:
        raise ValueError(f"{value!r} is not a size from 1 to 4Ei")
    return size.value


def _duration_ns(value: Any) -> int:
    period = parse_duration(_text(value))
    if period < 0:
        raise ValueError(f"{value!r} is negative")
    return period or DEFAULT_TRANSITION_PERIOD_NS  # the kubelet replaces a period of zero by its default


def _text_map(operator: str) -> Callable[[Any], dict[str, str]]:
    """A map as the kubelet's flag writes it (``key<value,...``) or as its configuration file does."""

    def parse(value: Any) -> dict[str, str]:
        if isinstance(value, str):
            return dict(parse_flag_map(value, operator))
        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r} is not a map of key to text")
        for key, item in value.items():
            if not isinstance(key, str) or not isinstance(item, str):
                raise ValueError(f'{key}: {item!r} is not a text; put it in quotes: {key}: "{item}"')
        return dict(value)

    return parse


def _reserved_memory(value: Any) -> int:
    """Bytes of memory in a reservation map; the other resources are checked by name and otherwise not ours."""
    reservation = _text_map("=")(value)
    for name, text in reservation.items():
        if name not in _RESERVABLE:
            raise ValueError(f"cannot reserve {name!r}; resources are {', '.join(_RESERVABLE)}")
        if not 0 <= Quantity.parse(text).nanos <= 10**9 << 62:
            raise ValueError(f"{name}: {text} is not an amount from 0 to 4Ei")
    return Quantity.parse(reservation.get("memory", "0")).value


def _enforceable(value: Any) -> tuple[str, ...]:
    names = [part for part in value.split(",") if part] if isinstance(value, str) else value
    if not isinstance(names, list):
        raise ValueError(f"{value!r} is not a list")
    for name in names:
        if name not in _ENFORCEABLE:
            raise ValueError(f"{name!r} is not one of {', '.join(_ENFORCEABLE)}")
    return tuple(names)


def _listen(value: Any) -> tuple[str, int]:
    host, colon, port = _text(value).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{value!r} is not HOST:PORT, for example 127.0.0.1:9469")
    return host, int(port)


def _pods(value: Any) -> str:
    kind, directory = check_spec(_text(value))
    if kind != "manifests":
        return kind
    if not os.path.isdir(directory):
        raise ValueError(f"{directory} is not a directory; make it, or name another one: --pods manifests:DIR")
    return f"manifests:{os.path.abspath(directory)}"


def _record(value: Any) -> None:
    raise ValueError("recordings come with the incident store, which is not in this version; leave the option out")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its field of RunConfig, its name as an option and own-file key, the kubelet's key, its parser."""

    field: str
    option: str
    parse: Callable[[Any], Any]
    kubelet_key: str = ""


SETTINGS = (
    Setting("node_cgroup", "node-cgroup", _text),
    Setting("pods", "pods", _pods),
    Setting("enforce", "enforce", _boolean),
    Setting("trigger", "trigger", _choice(*TRIGGERS)),
    Setting("hooks", "hooks", _choice(*HOOKS)),
    Setting("listen", "listen", _listen),
    Setting("state_dir", "state-dir", _path),
    Setting("log_format", "log-format", _choice(*LOG_FORMATS)),
    Setting("record", "record", _record),
    Setting("eviction_hard", "eviction-hard", _text_map("<"), "evictionHard"),
    Setting("eviction_soft", "eviction-soft", _text_map("<"), "evictionSoft"),
    Setting("eviction_soft_grace_period", "eviction-soft-grace-period", _text_map("="), "evictionSoftGracePeriod"),
    Setting("eviction_minimum_reclaim", "eviction-minimum-reclaim", _text_map("="), "evictionMinimumReclaim"),
    Setting("eviction_max_pod_grace_period_s", "eviction-max-pod-grace-period", _integer, "evictionMaxPodGracePeriod"),
    Setting(
        "eviction_pressure_transition_period_ns",
        "eviction-pressure-transition-period",
        _duration_ns,
        "evictionPressureTransitionPeriod",
    ),
    Setting("enforce_node_allocatable", "enforce-node-allocatable", _enforceable, "enforceNodeAllocatable"),
    Setting("system_reserved", "system-reserved", _reserved_memory, "systemReserved"),
    Setting("kube_reserved", "kube-reserved", _reserved_memory, "kubeReserved"),
    Setting("kernel_memcg_notification", "kernel-memcg-notification", _boolean, "kernelMemcgNotification"),
    Setting("max_fill_rate", "max-fill-rate", _size),
    Setting("step", "step", _size),
)
_MERGE = "mergeDefaultEvictionSettings"
_KUBELET_CONFIG = "kubelet-config"


def build(
    flags: Mapping[str, Any], config_file: str | None = None, kubelet_config_file: str | None = None
) -> RunConfig:
    """The checked configuration of `outrace run`.

    ``flags`` maps option names (``eviction-hard``) to the values given on the command line; absent or None means not
    given. Raises ConfigError: one line with the option or file and key, what is wrong, and the remedy.
    """
    own = _read_own(config_file) if config_file else {}
    kubelet_config_file = kubelet_config_file or own.get(_KUBELET_CONFIG)
    kubelet = _read_kubelet(kubelet_config_file) if kubelet_config_file else {}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for setting in SETTINGS:
        if flags.get(setting.option) is not None:
            raw, origin = flags[setting.option], f"--{setting.option}"
        elif own.get(setting.option) is not None:
            raw, origin = own[setting.option], f"{config_file}: {setting.option}"
        elif setting.kubelet_key and kubelet.get(setting.kubelet_key) is not None:
            raw, origin = kubelet[setting.kubelet_key], f"{kubelet_config_file}: {setting.kubelet_key}"
        else:
            origins[setting.field] = "default"
            continue
        try:
            values[setting.field] = setting.parse(raw)
        except ValueError as error:  # PolicyError is one
            raise ConfigError(f"{origin}: {error}", _remedy(str(error))) from None
        origins[setting.field] = origin
    if kubelet.get(_MERGE) and origins["eviction_hard"] == f"{kubelet_config_file}: evictionHard":
        values["eviction_hard"] = effective_hard(values["eviction_hard"], merge_defaults=True)
    if "listen" in values:
        values["listen_host"], values["listen_port"] = values.pop("listen")
    config = RunConfig(**values, origins=origins)
    _check_thresholds(config)
    return config


def _check_thresholds(config: RunConfig) -> None:
    """Parse every entry by itself first: the kubelet's own messages often do not say which entry they mean.

    And refuse what the kubelet lets through and no machine has: beyond 64 bits a quantity is garbage as a number.
    """
    soft, grace = config.eviction_soft, config.eviction_soft_grace_period
    checks: tuple[tuple[str, Mapping[str, str], Callable[[dict[str, str]], object]], ...] = (
        ("eviction_hard", config.eviction_hard, lambda one: parse_thresholds(one, {}, {}, {}, ())),
        ("eviction_soft_grace_period", grace, lambda one: parse_thresholds({}, {}, one, {}, ())),
        (
            "eviction_minimum_reclaim",
            config.eviction_minimum_reclaim,
            lambda one: parse_thresholds({}, {}, {}, one, ()),
        ),
        ("eviction_soft", soft, lambda one: parse_thresholds({}, one, grace, {}, ())),
    )
    for name, entries, parse in checks:
        for signal, value in entries.items():
            try:
                parse({signal: value})
                if name != "eviction_soft_grace_period" and not value.endswith("%"):
                    _check_fits(value)
            except PolicyError as error:
                raise ConfigError(f"{config.origins[name]}: {signal}: {value}: {error}", _remedy(str(error))) from None
    try:
        config.thresholds()
    except PolicyError as error:  # whatever only shows in the whole
        raise ConfigError(f"eviction thresholds: {error}") from None


def _check_fits(text: str) -> None:
    if Quantity.parse(text).nanos > 10**9 << 62:
        raise PolicyError("quantities must be at most 4Ei")


def _remedy(problem: str) -> str:
    """What to do about one of the kubelet's messages."""
    if problem.startswith("unsupported eviction signal"):
        return f"signals are {', '.join(SIGNALS)}"
    if problem.startswith("grace period must be specified"):
        return "give it one: --eviction-soft-grace-period SIGNAL=30s (evictionSoftGracePeriod)"
    if problem.startswith("malformed pair"):
        return "write --eviction-hard 'memory.available<100Mi', --eviction-minimum-reclaim 'memory.available=0Mi'"
    if problem.startswith("time:"):
        return "write a duration such as 90s or 1m30s"
    if problem.startswith(("quantities must", "unable to parse", "strconv")):
        return "write a quantity such as 100Mi, or a percentage such as 5%"
    return ""


def _read(path: str, toml: bool = False) -> dict[str, Any]:
    """The mapping in a YAML, JSON (a subset of YAML) or TOML file. Raises ConfigError."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key given twice, which YAML forbids and PyYAML lets through; the kubelet refuses it too."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise ConfigError(f"{path}: line {key.start_mark.line + 1}: key {key.value!r} is given twice")
                seen.add(str(key.value))
            return super().construct_mapping(node, deep)

    try:
        text = Path(path).read_text(encoding="utf-8")
        if toml:
            import tomllib

            return tomllib.loads(text)
        data = yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # bad UTF-8, TOML and dates are ValueErrors
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: is not a map of keys to values")
    return data


def _read_own(path: str) -> dict[str, Any]:
    data = _read(path, toml=path.endswith(".toml"))
    known = [setting.option for setting in SETTINGS] + [_KUBELET_CONFIG]
    for key in data:
        if key not in known:
            raise ConfigError(f"{path}: unknown key {key!r}", _did_you_mean(key, known))
    if not isinstance(data.get(_KUBELET_CONFIG, ""), str):
        raise ConfigError(f"{path}: {_KUBELET_CONFIG}: {data[_KUBELET_CONFIG]!r} is not the name of a file")
    return data


def _read_kubelet(path: str) -> dict[str, Any]:
    data = _read(path)
    api, kind = data.get("apiVersion"), data.get("kind")
    if kind != "KubeletConfiguration" or not str(api).startswith("kubelet.config.k8s.io/"):
        raise ConfigError(
            f"{path}: is not a KubeletConfiguration (apiVersion {api!r}, kind {kind!r})",
            "name the file the kubelet is started with: --config",
        )
    known = [setting.kubelet_key for setting in SETTINGS if setting.kubelet_key]
    for key in data:
        if str(key).lower().startswith("eviction") and key not in known:
            raise ConfigError(f"{path}: unknown key {key!r}", _did_you_mean(key, known))
    if not isinstance(data.get(_MERGE, False), bool | None):
        raise ConfigError(f"{path}: {_MERGE}: {data[_MERGE]!r} is not true or false")
    return data


def _did_you_mean(key: Any, known: list[str]) -> str:
    matches = difflib.get_close_matches(str(key), known, 1) or [
        name for name in known if name.lower() == str(key).lower()
    ]
    return f"did you mean {matches[0]!r}?" if matches else f"known keys are {', '.join(known)}"
