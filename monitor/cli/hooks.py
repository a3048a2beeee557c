"""Which hook a start takes: the best one whose programs load and attach.

A daemon whose programs fail later ends, and what started it starts it again: for ten minutes that start polls
(`monitor.kernel.charging.failed`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from monitor.errors import CannotError, MonitorError
from monitor.kernel import cgroupfs, charging
from monitor.kernel.charging import AUTO, POLL, bpf_offers
from monitor.kernel.domains import MAX_LEVEL
from monitor.settings.config import RunConfig


def take(config: RunConfig) -> tuple[RunConfig, bool]:
    """The configuration with the best hook of this machine, and whether it was loaded now. Raises CannotError."""
    from monitor.kernel import mounts

    state_dir = Path(config.state_dir)
    if config.hooks == AUTO and charging.failed(state_dir):
        config = dataclasses.replace(config, trigger="user")  # a service without its trigger is better than none
    missed, tried = list[dict[str, str]](), list[dict[str, str]]()
    if config.hooks != POLL:
        with suppress(MonitorError):  # reported when a hook that needs it is tried
            mounts.ensure()
        too_deep = _too_deep(config.node_cgroup)
        offers = bpf_offers(state_dir, wanted=config.hooks)
        for offer in (offer for offer in offers if config.hooks in (AUTO, offer.name)):
            try:
                if too_deep:
                    raise CannotError(too_deep, f"name a cgroup further up, or run with --hooks {POLL}")
                if not offer.ok:
                    raise CannotError(offer.why, offer.remedy)
                taken, loaded = _load(config, offer.name)
            except MonitorError as against:
                missed.append({"name": offer.name, "why": against.message, "remedy": against.remedy})
                tried += missed[-1:] if offer.ok else []
            else:
                return dataclasses.replace(taken, missed=tuple(missed)), loaded
    _check_polling(config, missed, tried)
    return dataclasses.replace(_polling(config), missed=tuple(missed)), False


def _check_polling(config: RunConfig, missed: Sequence[Mapping[str, str]], tried: Sequence[Mapping[str, str]]) -> None:
    """Raises CannotError where a hook without BPF will not do."""
    if config.hooks not in (AUTO, POLL):
        raise CannotError(f"--hooks {config.hooks}: {missed[0]['why']}", missed[0]["remedy"])
    if not config.kills or config.trigger != "kernel":
        return
    if config.hooks == POLL:
        problem = f"--trigger kernel needs a BPF program, and --hooks {POLL} has none"
        raise CannotError(problem, f"use --trigger user, or --hooks {AUTO}")
    # What this kernel offers and something else kept from it is what can be mended; the hooks it does not offer are
    # reported only where there is none.
    found = joined(tried or missed)
    raise CannotError(f"--trigger kernel needs a BPF program: {found['problem']}", found["remedy"])


def _too_deep(node_cgroup: str | None) -> str:
    """Why no BPF program counts this node; "" if there is nothing of the kind."""
    if node_cgroup is None or len(Path(node_cgroup).relative_to(cgroupfs.detect().root).parts) <= MAX_LEVEL:
        return ""
    return f"{node_cgroup} is not counted by the BPF programs, which look at {MAX_LEVEL} levels of cgroups"


def _load(config: RunConfig, rung: str) -> tuple[RunConfig, bool]:
    """Load and pin the programs of a BPF rung, and try whether they attach; whether they were loaded now."""
    from monitor.kernel import instances, loader, mounts
    from monitor.kernel.pins import Pins

    mounts.ensure()
    instance = instances.instance_directory(Path(config.state_dir))
    held = instances.hold(instance)
    try:
        directory, loaded = loader.ensure_loaded(Path(config.state_dir), rung, config.formulas)
        # Pins of an earlier start may exist although this process may no longer use them.
        pins = Pins(directory)
        os.close(pins.attach(pins.pressure[0]))
    except BaseException:
        instances.release(held, instance)
        raise
    return dataclasses.replace(config, rung=rung, pin_dir=str(directory), pins_fd=held), loaded


def _polling(config: RunConfig) -> RunConfig:
    """Where programs of an earlier start are pinned and can be used, they record OOM kills: no kill is lost between two
    daemons, whatever their hooks, and none is reported by both.
    """
    from monitor.kernel import instances, loader
    from monitor.kernel.pins import Pins

    polling = dataclasses.replace(config, rung=POLL, pin_dir="")
    for directory in loader.pinned(Path(config.state_dir)).values():
        with suppress(MonitorError):
            os.close(Pins(directory).fd("map_ooms"))
            return dataclasses.replace(polling, pin_dir=str(directory), pins_fd=instances.hold(directory.parent))
    return polling


def joined(missed: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Why hooks could not be taken, and what to do about it, for a line of log or an error."""
    return {
        "problem": "; ".join(f"{one['name']}: {one['why']}" for one in missed),
        "remedy": "; or ".join(dict.fromkeys(one["remedy"] for one in missed if one["remedy"])),
    }
