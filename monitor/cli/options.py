"""The options of `outrace run` for click, for every command that reads a configuration the same way."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from monitor.errors import ConfigError
from monitor.pods.spec import SERVICES
from monitor.policy.translate import BOOLEANS
from monitor.settings.options import (
    GONE_OPTIONS,
    KEY,
    KUBELET_SWITCH,
    NUMBER,
    OPTIONS,
    OWN_KEY,
    SWITCH,
    TEXTS,
    Option,
    variable_of,
)

if TYPE_CHECKING:
    from monitor.kernel.disks import Disks
    from monitor.settings.config import RunConfig
    from monitor.settings.read import Resolved

F = TypeVar("F", bound=Callable[..., Any])

#: Options that change nothing about what is shown of a node.
_OF_RUN_ALONE = (
    *("enforce", "trigger", "hooks", "mode", "hold-limit", "hard-grace"),
    *("record", "log-format", "listen", "expose-metrics", "nodefs", "imagefs", "reclaim-images"),
)
_FILES = ("config", "kubelet-config")


def _click_option(option: Option) -> Callable[[F], F]:
    given: dict[str, Any] = {"help": option.help, "default": None, "envvar": variable_of(option.name)}
    if option.kind == SWITCH:
        return click.option(f"--{option.name}/--no-{option.name}", **given)
    if option.kind == KUBELET_SWITCH:
        given |= {"is_flag": False, "flag_value": "true", "metavar": "[true|false]"}
    elif option.kind == TEXTS:
        given |= {"multiple": True, "metavar": option.metavar}
    else:
        given |= {"type": int if option.kind == NUMBER else None, "metavar": option.metavar}
    return click.option(f"--{option.name}", **given)


def configuration_options(command: F, but: Collection[str] = ()) -> F:
    """Give a click command every option of the configuration; all arrive as keyword arguments, for `resolve`."""
    for option in reversed(
        [option for option in OPTIONS if option.kind not in (OWN_KEY, KEY) and option.name not in but]
    ):
        command = _click_option(option)(command)
    return command


def node_options(command: F) -> F:
    """The same for a command that shows a node, without those that change nothing about it."""
    return configuration_options(command, _OF_RUN_ALONE)


def with_disks(config: RunConfig) -> tuple[RunConfig, Disks]:
    """The configuration with the layout of this node's disks, and the disks. Raises ConfigError."""
    from monitor.kernel.disks import find_disks

    found = find_disks(config.nodefs, config.imagefs)
    return dataclasses.replace(config, layout_image_fs=found.layout_image_fs), found


def resolve(options: Mapping[str, Any]) -> Resolved:
    """The configuration of ``options``, by parameter name as click has them (None: not given). Raises ConfigError."""
    from monitor.settings.read import read

    for name, instead in GONE_OPTIONS.items():
        variable = variable_of(name)
        if variable in os.environ and variable != "OUTRACE_RUN_DIR":
            raise ConfigError(f"{variable}: {name} is gone: {instead}")
    context = click.get_current_context(silent=True)
    flags: dict[str, Any] = {}
    variables = {}
    for option in OPTIONS:
        parameter = option.name.replace("-", "_")
        value = options.get(parameter)
        if option.kind == KUBELET_SWITCH and isinstance(value, str):
            value = BOOLEANS.get(value, value)
        flags[option.name] = None if option.kind == TEXTS and not value else value
        if context is not None and context.get_parameter_source(parameter) is ParameterSource.ENVIRONMENT:
            variables[option.name] = variable_of(option.name)
    config, kubelet = (flags.pop(name) for name in _FILES)
    return read(flags, config, kubelet, variables, ask_kubelet=True)


def resolve_here(options: Mapping[str, Any]) -> Resolved:
    """`resolve`, with the default threshold that `outrace run` has on this machine. Raises MonitorError."""
    from monitor.settings.read import resolved_again

    resolved = resolve(options)
    config = with_default_threshold(resolved.config)
    return resolved if config is resolved.config else resolved_again(config)


def with_default_threshold(config: RunConfig, most: int | None = None) -> RunConfig:
    """With the default threshold that `outrace run` has on this machine: that of the whole machine without a kubelet
    leaves out what the kernel holds (`settings.read.over_the_kernels_share`), ``most`` bytes of it.
    """
    from monitor.settings.read import over_the_kernels_share

    share = kernels_share(config)
    return over_the_kernels_share(config, share if most is None else min(share, most))


def kernels_share(config: RunConfig) -> int:
    """Bytes that the kernel keeps from the processes of this machine; 0 where the default threshold has none."""
    from monitor.kernel import meminfo

    if config.node_cgroup is not None or as_settled(config).pods != SERVICES:
        return 0
    return meminfo.kernels_share(huge_pages_apart=config.huge_pages_apart)


def as_settled(config: RunConfig) -> RunConfig:
    """With ``--pods services`` where `auto` comes to that on this machine: there outrace evicts no pod for a disk."""
    from monitor.pods.source import is_services

    return dataclasses.replace(config, pods=SERVICES) if is_services(config) else config
