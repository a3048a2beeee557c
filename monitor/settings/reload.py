"""Reading a configuration again for a daemon that runs: what it becomes, or why it stays as it is.

The files and the kubelet are read anew; flags and environment are those of the start. All or nothing: what is wrong,
or cannot change while running, refuses the whole.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import NamedTuple

from monitor.errors import ConfigError, MonitorError
from monitor.policy.signals import OWN_SIGNALS
from monitor.settings.config import RunConfig
from monitor.settings.options import SETTINGS
from monitor.settings.read import check_enforced, over_the_kernels_share, read

_LIVE = tuple(option for option in SETTINGS if option.live)
_FIXED = tuple(option for option in SETTINGS if not option.live)
#: Of what can change, that which a recording has to have from its beginning.
_RECORDED = tuple(option.name for option in _LIVE if option.name.startswith("eviction-"))
_RESTART = "restart outrace for that, or put back what it was"


class Reloaded(NamedTuple):
    """The configuration to put into force, and the options that differ from the one before."""

    config: RunConfig
    changed: tuple[str, ...]


def reread(current: RunConfig) -> Reloaded:
    """Read everything again. Raises MonitorError, with one line, where the ``current`` one has to stay."""
    fresh = read(**current.given["arguments"]).config
    return merged(current, over_the_kernels_share(fresh, current.kernels_share))


def merged(current: RunConfig, fresh: RunConfig) -> Reloaded:
    """``current``, which the daemon has completed as it started, with what may change from ``fresh``. MonitorError."""
    if fresh.kubelet_unread and not current.kubelet_unread:
        raise MonitorError(
            f"the kubelet's configuration cannot be read: {fresh.kubelet_unread}",
            "reload again when it can, or give --kubelet-config FILE",
        )
    if changes := _fixed(current, fresh):
        shown = "; ".join(f"{name} ({change})" for name, change in changes.items())
        raise ConfigError(f"cannot change while running: {shown}", _RESTART)
    taken = {option.field: getattr(fresh, option.field) for option in _LIVE}
    config = dataclasses.replace(
        current,
        **taken,
        origins=fresh.origins,
        inputs=fresh.inputs,
        given=fresh.given,
        kubelet_differs=fresh.kubelet_differs,
        kubelet_unread=fresh.kubelet_unread,
        hard_guessed=fresh.hard_guessed,
    )
    check_enforced(config)
    changed = tuple(o.name for o in _LIVE if _in_order(config, o.field) != _in_order(current, o.field))
    _check_thresholds(current, config, changed)
    return Reloaded(config, changed)


def _in_order(config: RunConfig, field: str) -> str:
    """Of the table of services the first pattern that fits counts, so its order does too."""
    return json.dumps(getattr(config, field))


def _fixed(current: RunConfig, fresh: RunConfig) -> dict[str, str]:
    """The options that cannot change while running and did, with both values and the origin of the new one. A default
    may be another one by itself: CPUs come.
    """
    changes: dict[str, str] = {}
    for option in _FIXED:
        name, origin = option.name, fresh.origins.get(option.field)
        values = [config.given["fixed"][name] for config in (current, fresh)]
        if values[0] != values[1] and not current.origins.get(option.field) == origin == "default":
            before, now = (json.dumps(value, ensure_ascii=False) for value in values)
            changes[name] = f"{before} -> {now}, {fresh.origins.get(option.field, name)}"
    if "mode" in changes:
        changes.pop("enforce", None)
    return changes


def _check_thresholds(current: RunConfig, config: RunConfig, changed: Sequence[str]) -> None:
    """What is right by itself and cannot be taken by this daemon. Raises ConfigError."""
    if current.record and (names := [name for name in changed if name in _RECORDED]):
        raise ConfigError(
            f"cannot change while everything is recorded ({current.record}): {', '.join(names)}",
            "restart outrace, with or without --record",
        )
    before, now = ({t.signal for t in one.thresholds() if t.signal in OWN_SIGNALS} for one in (current, config))
    if before != now:
        origin = config.origins["eviction_hard" if "eviction-hard" in changed else "eviction_soft"]
        raise ConfigError(
            f"{origin}: {', '.join(sorted(before ^ now))}: a formula of outrace's own cannot come or go while running",
            _RESTART,
        )
    was_own, is_own = (one.has_own_line(current.kubelet_found) for one in (current, config))
    if config.hold and current.kubelet_flags and was_own != is_own:
        raise ConfigError(
            f"{config.origins['eviction_hard']}: mode hold cannot leave or join the kubelet's line while running",
            _RESTART,
        )
