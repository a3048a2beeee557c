"""The hook ladder at work: which rung is taken at start, and how the daemon steps down from one that fails.

Chosen once, by trying: a BPF rung is taken when its programs load and attach, one without BPF when the kernel has what
it waits for. A daemon whose programs fail while it runs becomes itself again (execv) on the best rung without BPF, with
the same pid, lock, listening socket and counters; the pods and what is pressed are learnt anew, as after a restart.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from monitor.errors import CannotError, MonitorError
from monitor.kernel import python
from monitor.kernel.kmsg import Kmsg
from monitor.kernel.rungs import AUTO, BPF_RUNGS, NAMES, POLL, Rung, bpf_offers, choose, facts, rungs
from monitor.link.upgrade import is_replaced
from monitor.settings.config import CONFIG_FD, STATS_FD, RunConfig

if TYPE_CHECKING:
    from monitor.hot.decide import Decider
    from monitor.hot.parts import Core
    from monitor.hot.records import Records
    from monitor.link.counters import SharedStats
    from monitor.sources.source import MemorySource

#: Pid of the side that a process before this one left to end by itself.
_LEFT = "OUTRACE_LEFT"
#: The kernel's log, open since then: a kill while nobody watches is reported too.
_LOG_FD = "OUTRACE_LOG_FD"


def take(config: RunConfig) -> tuple[RunConfig, bool]:
    """The configuration with the rung that ``config.hooks`` allows and this machine can do, its programs loaded.

    And whether they were loaded now. Raises CannotError (exit code 3) where there is none, with the remedy.
    """
    needs_bpf = config.kills and config.trigger == "kernel"
    if needs_bpf and config.hooks == POLL:
        raise CannotError(
            f"--trigger kernel needs a BPF program, and --hooks {config.hooks} has none",
            f"use --trigger user, or --hooks {AUTO}",
        )
    wanted = NAMES if config.hooks == AUTO else (config.hooks,)
    if set(wanted) & set(BPF_RUNGS):
        from monitor.kernel import loader, mounts

        with suppress(MonitorError):  # reported when a rung that needs it is tried
            mounts.ensure()
        with suppress(MonitorError):  # likewise
            # The best one is pinned already: a quarter of a second for reading all of BTF is saved.
            if BPF_RUNGS[0] in wanted and BPF_RUNGS[0] in loader.pinned(Path(config.state_dir)):
                taken, loaded = _load(config, BPF_RUNGS[0])
                return dataclasses.replace(taken, missed=()), loaded
    bpf = (
        bpf_offers(Path(config.state_dir), wanted=config.hooks, signals=config.formulas)
        if set(wanted) & set(BPF_RUNGS)
        else ()
    )
    offered = rungs(facts(config.max_fill_rate, bpf))
    missed: list[dict[str, str]] = []
    tried: list[dict[str, str]] = []
    for rung in offered:
        if rung.name not in wanted:
            continue
        problem: MonitorError = CannotError(rung.detail, rung.remedy)
        if rung.ok:
            try:
                if rung.name in BPF_RUNGS:
                    taken, loaded = _load(config, rung.name)
                else:
                    taken, loaded = dataclasses.replace(config, rung=rung.name, pin_dir=""), False
                return dataclasses.replace(taken, missed=tuple(missed)), loaded
            except MonitorError as error:
                problem = error
        missed.append({"name": rung.name, "why": problem.message, "remedy": problem.remedy})
        tried += missed[-1:] if rung.ok else []
        if needs_bpf and rung.name == BPF_RUNGS[-1]:
            break
    if config.hooks != AUTO:
        raise CannotError(f"--hooks {config.hooks}: {missed[0]['why']}", missed[0]["remedy"])
    if needs_bpf:
        # What this kernel offers and something else kept from it is what can be mended; the rungs it does not offer are
        # reported only where there is none.
        best = _joined(tried or missed)
        raise CannotError(f"--trigger kernel needs a BPF program: {best['problem']}", best["remedy"])
    raise CannotError(f"no hooks can be used here: {missed[-1]['why']}", missed[-1]["remedy"])


def _load(config: RunConfig, rung: str) -> tuple[RunConfig, bool]:
    """Hold the instance, load and pin the programs of a BPF rung, and try whether they attach: the configuration with
    them, and whether they were loaded now.
    """
    from monitor.kernel import instances, loader, mounts
    from monitor.kernel.pins import Pins

    mounts.ensure()
    instance = instances.instance_directory(Path(config.state_dir))
    held = instances.hold(instance)
    try:
        directory, loaded = loader.ensure_loaded(Path(config.state_dir), rung, config.formulas)
        # Pins of an earlier start may be there for somebody who may not use them any more.
        pins = Pins.open(directory)
        os.close(pins.attach(pins.pressure[0]))
    except BaseException:
        instances.release(held, instance)
        raise
    return dataclasses.replace(config, rung=rung, pin_dir=str(directory), pins_fd=held), loaded


def records(source: MemorySource, core: Core, decider: Decider) -> Records:
    """What reads the events of this rung."""
    config, gauge, registry, stats, send = core.config, core.gauge, core.registry, core.stats, core.outbox.send
    if source.pins is not None:
        from monitor.hot.ring_records import RingRecords

        return RingRecords(source.pins, gauge, registry, decider, stats, send, Path(config.state_dir))
    from monitor.hot.polled_records import PolledRecords
    from monitor.sources.polled_table import PolledTable

    assert isinstance(source.table, PolledTable)
    log_fd = int(os.environ.pop(_LOG_FD, "-1"))
    if log_fd >= 0:
        os.set_inheritable(log_fd, False)
    return PolledRecords(config, source.table, source.arming, gauge, registry, decider, stats, send, log_fd)


def log_step_down(config: RunConfig, log: Callable[..., None]) -> None:
    """Log on which rung this is, and why on none above: one line."""
    if config.stepped_from:
        left = int(os.environ.pop(_LEFT, "0"))
        if left:  # ours to collect still
            threading.Thread(target=_collect, args=(left,), daemon=True).start()
        why = config.missed[-1]
        log(
            "warning",
            "stepped down the hook ladder while running",
            rung=config.rung,
            from_rung=config.stepped_from,
            problem=why["why"],
            remedy=why["remedy"],
        )


def unwatched(stats: SharedStats, now_ns: int) -> dict[str, int]:
    """How long nobody watched while it stepped down, ``unwatched_ns``, logged once when it is ready; or nothing."""
    began = stats.get("stepped_ns")
    stats.set("stepped_ns", 0)
    return {"unwatched_ns": now_ns - began} if began else {}


def _collect(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def announcement(config: RunConfig) -> dict[str, str]:
    """What is logged at start of the better rungs that could not be taken: nothing, or `problem` and `remedy`."""
    return _joined(config.missed) if config.missed else {}


def _joined(missed: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {
        "problem": "; ".join(f"{one['name']}: {one['why']}" for one in missed),
        "remedy": "; or ".join(dict.fromkeys(one["remedy"] for one in missed if one["remedy"])),
    }


def may_step_down(config: RunConfig) -> bool:
    """Whether a program that fails is a reason to go on without BPF: not where it was asked for by name, nor after an
    upgrade, because the next hot process would be of another version than what it is given.
    """
    return config.rung in BPF_RUNGS and config.hooks == AUTO and not is_replaced()


def below(config: RunConfig, offered: Sequence[Rung] | None = None) -> Rung:
    """The best rung without BPF. Raises CannotError."""
    return choose(rungs(facts(config.max_fill_rate, ())) if offered is None else offered, AUTO, (POLL,))


def step_down(config: RunConfig, stats: SharedStats, problem: MonitorError, side_pid: int) -> NoReturn:
    """Become the hot process of the best rung without BPF. Raises MonitorError.

    Nobody waits for the old side, ``side_pid``, which writes what it has and ends: a second without anybody watching
    may be the one that counts.
    """
    with suppress(MonitorError):  # reported when it is read
        log_fd = Kmsg().fileno()
        os.set_inheritable(log_fd, True)
        os.environ[_LOG_FD] = str(log_fd)
    stepped_ns = time.monotonic_ns()
    rung = below(config)
    missed = {"name": config.rung, "why": problem.message, "remedy": problem.remedy}
    lower = dataclasses.replace(
        config,
        rung=rung.name,
        missed=(*config.missed, missed),
        stepped_from=config.rung,
        pin_dir="",
        trigger="user",
    )
    os.environ[_LEFT] = str(side_pid)
    stats.add("step_downs")
    stats.set("stepped_ns", stepped_ns)
    for name in ("armed", "ready_ns", "published_ns"):
        stats.set(name, 0)
    config_fd = lower.to_memfd()
    for fd in (config_fd, *lower.kept_fds, stats.fd):
        os.set_inheritable(fd, True)
    os.environ[CONFIG_FD], os.environ[STATS_FD] = str(config_fd), str(stats.fd)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a handler again: a reload must not end the daemon
    os.execv(sys.executable, python.command("monitor.hot.main"))
