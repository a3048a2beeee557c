"""`--mode`, and the options that only one of the modes has: which of them go together."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from monitor.errors import CannotError, ConfigError
from monitor.settings.config import ENFORCE, HOLD, RunConfig


def settle_mode(found: MutableMapping[str, Any], origins: MutableMapping[str, str]) -> None:
    """Make the fields `enforce` and `hold` of what `--mode` and its short form `--enforce` say. Raises ConfigError
    where both are given and differ.
    """
    mode = found.pop("mode", None)
    if mode is None:
        return
    if "enforce" in found and found["enforce"] != (mode == ENFORCE):
        short = "--enforce" if found["enforce"] else "--no-enforce"
        raise ConfigError(
            f"{origins['mode']}: {mode} differs from {short} ({origins['enforce']})",
            "give one of them: --enforce is short for --mode enforce",
        )
    found["enforce"], found["hold"] = mode != "observe", mode == HOLD
    origins["enforce"] = origins["mode"]


def check_mode(config: RunConfig) -> None:
    """Raises ConfigError for an option that the mode has no use for."""
    origins = config.origins
    if origins.get("hold_limit_ns", "default") != "default" and not config.holds:
        raise ConfigError(f"{origins['hold_limit_ns']}: nothing is held in mode {config.mode}", "give --mode hold too")
    if config.hard_grace_ns:
        _check_hard_grace(config, origins)
    if config.hold and config.trigger == "kernel":
        raise ConfigError(
            f"{origins['trigger']}: kernel kills at the crossing, where mode hold ({origins['enforce']}) brakes",
            "leave --trigger out, or give --mode enforce",
        )


def _check_hard_grace(config: RunConfig, origins: Mapping[str, str]) -> None:
    no_kill = f"no pod is killed at a hard threshold in mode {config.mode}"
    for refused, why, remedy in (
        (config.mode != ENFORCE, no_kill, "--mode enforce"),
        (not config.kills, "with --evict-by api the kubelet gives the grace", "--evict-by kill"),
        (config.trigger == "kernel", "--trigger kernel kills without any grace", "--trigger user"),
    ):
        if refused:
            raise ConfigError(f"{origins['hard_grace_ns']}: {why}", f"give {remedy}, or leave --hard-grace out")


def check_kernel(config: RunConfig, cgroup_version: int) -> None:
    """Raises CannotError for an option that this version of cgroups has no brake for."""
    if config.hard_grace_ns and cgroup_version == 1:
        why = "a braked pod cannot answer SIGTERM on cgroup v1, which has no memory.high"
        remedy = "leave --hard-grace out, or boot with systemd.unified_cgroup_hierarchy=1"
        raise CannotError(f"{config.origins['hard_grace_ns']}: {why}", remedy)
