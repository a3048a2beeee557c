"""The hot process: ring record -> policy -> kill, in one thread over one raw epoll.

Nothing here may wait for a disk, a socket or another process. What blocks is in the helper process
(monitor/side/main.py), to which this process reports afterwards. asyncio and `selectors` cannot be used: both misread
EPOLLPRI descriptors.

This file only wires: each object is made with what it uses. The table of timers is in the order of work (what may kill
first, what only reports last); monitor/hot/loop.py defines a turn.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from monitor.errors import EXIT_FAILURE, EXIT_HOOK, MonitorError, remedy_of
from monitor.hot.decide import Decider
from monitor.hot.evictor import EvictionNote, Evictor
from monitor.hot.housekeeping import Housekeeping, Sweeps
from monitor.hot.loop import Guard, Loop, Timer
from monitor.hot.pod_sync import PodSync
from monitor.hot.records import BusyPoll, Records
from monitor.hot.report import Report
from monitor.hot.sd_notify import Service
from monitor.hot.supervise import Side, SideRestarts
from monitor.hot.trigger import Trigger
from monitor.kernel.pins import HOOKS
from monitor.kernel.sched import CAP_KILL, has, protect
from monitor.link.counters import SharedStats
from monitor.link.outbox import Outbox
from monitor.link.upgrade import is_replaced
from monitor.policy.ranking import EvictionOrder
from monitor.policy.releases import era
from monitor.settings.config import CONFIG_FD, STATS_FD, STEP, RunConfig
from monitor.sources.gauge import Gauge, NodeGone
from monitor.sources.registry import Registry
from monitor.sources.source import open_memory_source


class Hot:
    """The objects of the hot process, and what starts and ends them."""

    def __init__(self, config: RunConfig, config_fd: int) -> None:
        self.config = config
        self.is_ready = False  # all pods are counted, and decisions can be made: True from some moment on
        stats = SharedStats(int(os.environ[STATS_FD]))
        self.guard = guard = Guard(stats)
        self.loop = loop = Loop(guard, stats)
        self.service = Service()
        self.side = side = Side(config_fd, stats.fd, config.listen_fd)
        self.outbox = outbox = Outbox(lambda: side.sock, stats)
        source = open_memory_source(config, outbox)
        self.gauge = gauge = Gauge(source, config, config.thresholds(), outbox)
        self.registry = registry = Registry(gauge.table, STEP, EvictionOrder(era(config.policy).memory_key))
        in_kernel = config.kills and config.trigger == "kernel"  # not in mode hold, which refuses it
        self.trigger = trigger = Trigger(source.victim, registry, gauge.hierarchy.version, in_kernel)
        note = EvictionNote(source.eviction)
        self.evictor = evictor = Evictor(gauge, registry, trigger, outbox, loop, note)
        self.decider = decider = Decider(config, gauge, registry, trigger, evictor, outbox)
        self.sources = source.events
        events, kills = source.events[0], source.events[-1]
        self.records = records = Records(events, gauge, registry, decider, outbox, is_exact=source.is_exact)
        self.sweeps = sweeps = Sweeps(gauge, registry, outbox, events.read_events)
        self.housekeeping = housekeeping = Housekeeping(gauge, registry, evictor, decider, records, kills, sweeps)
        self.pods = pods = PodSync(guard, registry, decider, evictor, housekeeping, events.read_events, outbox)
        self.restarts = SideRestarts(
            side, outbox, loop, started=pods.begin, lost=decider.helper_lost, receive=pods.receive
        )
        self.report = Report(gauge, registry, decider, records, guard, outbox)
        loop.set_timers(self._timers())

    def _ready(self, now_ns: int) -> None:
        self.is_ready = self.decider.changed = True
        self.report.published_ns = 0  # published at once: others wait for it
        pods, protection = len(self.registry), self.protection
        self.outbox.stats.set("ready_ns", now_ns)
        self.service.ready(f"{pods} pods, hooks {self.config.rung}")
        self.outbox.log(
            "info",
            "ready",
            ready_ns=now_ns,
            pods=pods,
            armed=self.gauge.arming.armed,
            scheduler=protection.scheduler,
            mlocked=protection.mlocked,
            oom_score_adj=protection.oom_score_adj,
        )

    def _timers(self) -> tuple[Timer, ...]:
        """The table. What one timer does with more than one object is here."""
        decider, evictor, events = self.decider, self.evictor, self.records.source
        housekeeping, guarded, pending = self.housekeeping, self.guard, evictor.pending

        def rank_due_ns() -> int | None:
            return 0 if decider.pods.moved or decider.stirred else None

        def rank(now_ns: int) -> None:
            """Records were read: rank the pods that moved, prepare the next victim."""
            if not decider.pods.moved:
                decider.prepare()
                return
            guarded(decider.rank_moved)
            if decider.may_act:
                guarded(decider.holds.look_uncrossed, now_ns)
            guarded(decider.prepare)
            pending.hasten()
            decider.changed = True
            if decider.suspension.state is not None:
                guarded(decider.run_pass)  # what grows may be in a pod now

        def follow_eviction(now_ns: int) -> None:
            if decider.follow(now_ns, self.side.pid):
                events.pod_went()
                if evictor.stuck:
                    housekeeping.soon(now_ns)
                self.gauge.arming.next_look_ns = now_ns  # what was met may be met anew

        busy_poll = BusyPoll(self.gauge, decider, events.read_events, housekeeping.look)
        return (
            ("watchdog", self.service.due_ns, self.service.alive),
            *(("records", each.due_ns, each.go_on) for each in self.sources),
            *decider.holds.timers(rank_due_ns, lambda: guarded(decider.run_pass)),
            ("rank", rank_due_ns, rank),
            ("sample", decider.figures.due_ns, decider.figures.note),
            ("reread", lambda: decider.pods.reread_ns, lambda _: decider.reread()),
            ("eviction", evictor.due_ns, follow_eviction),
            ("return", pending.due_ns, lambda _: decider.follow_return()),
            ("pass", decider.pass_due_ns, lambda _: decider.run_pass()),
            ("sweep", self.sweeps.due_ns, lambda _: self.sweeps.go_on()),
            ("look", housekeeping.look_due_ns, housekeeping.look),
            ("retry", self.pods.retry_due_ns, self.pods.retry),
            ("housekeeping", housekeeping.due_ns, housekeeping.run),
            ("ready", lambda: 0 if decider.may_act and not self.is_ready else None, self._ready),
            ("report", self.report.due_ns, self.report.run),
            ("side", self.restarts.due_ns, self.restarts.go_on),
            ("busy-poll", busy_poll.due_ns, busy_poll.spin),
        )

    def start(self) -> None:
        """Everything before the loop: the helper, signals, rings, thresholds, protection."""
        loop, log = self.loop, self.outbox.log
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a pidfd for every process of a pod
        self.restarts.open()
        wake_fd, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGHUP, lambda *_: None)  # unhandled it would end the process
        # A parent may have had them blocked, which an exec inherits: SIGTERM would never end it. `outrace run` blocks
        # SIGHUP until here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)

        for each in self.sources:
            each.open(loop, self.records)
        self.records.opened()
        loop.register(wake_fd, self._take_wakeup)

        self.housekeeping.watch_thresholds()
        self.housekeeping.look(time.monotonic_ns())
        self.decider.run_pass()
        self.protection = protect()
        gc.disable()  # collected by hand in quiet moments
        for note in self.protection.notes:
            log("warning", note)
        if self.config.kills and not has(CAP_KILL):
            log("warning", "no CAP_KILL: processes of other users cannot be evicted; give it CAP_KILL")

    def _take_wakeup(self, fd: int) -> None:
        """Signals have arrived; their handlers have run."""
        with suppress(BlockingIOError):
            if signal.SIGHUP in os.read(fd, 64):
                remedy = "outrace config check with the service's options, then systemctl restart outrace"
                self.outbox.log("warning", "SIGHUP is ignored: a restart reads the configuration again", remedy=remedy)

    def stop(self, *_: Any) -> None:
        self.loop.is_stopping = True

    def run(self) -> None:
        self.start()
        loop = self.loop
        while not loop.is_stopping:
            loop.turn()

    def finish(self) -> None:
        """Detach, disarm the trigger, end the helper.

        The OOM programs stay attached: their records wait for the next start.
        """
        self.service.stopping()
        self.decider.holds.release_all()
        self.evictor.pending.flush()
        self.trigger.disarm()
        self.gauge.arming.detach()
        self.side.stop()


def _is_left_alone(config: RunConfig) -> bool:
    """Whether the next start does without BPF after a program failed: not where the operator named a hook, nor after an
    upgrade, which may have mended it (and has modules that must not be imported here).
    """
    return config.rung in HOOKS and config.hooks == "auto" and not is_replaced()


def main() -> int:
    config_fd = int(os.environ[CONFIG_FD])
    config = RunConfig.from_fd(config_fd)
    for fd in (config_fd, int(os.environ[STATS_FD]), *config.kept_fds):
        os.set_inheritable(fd, False)
    hot: Hot | None = None
    failed: MonitorError | None = None
    try:
        hot = Hot(config, config_fd)
        hot.run()
    except OSError as error:  # before the loop, which continues without what failed
        where = f"{error.filename}: " if error.filename else ""
        os.write(2, f"outrace: error: cannot start: {where}{error.strerror}; {remedy_of(error.errno, '')}\n".encode())
        return EXIT_FAILURE
    except MonitorError as error:
        os.write(2, f"outrace: error: {error}\n".encode())
        if hot is None or isinstance(error, NodeGone) or not _is_left_alone(config):
            # What had been working may work again; a service manager does not try again after 2 and 3.
            return error.exit_code if hot is None or not hot.is_ready else EXIT_FAILURE
        failed = error
    finally:
        if hot is not None:
            hot.finish()
    if failed is None:
        return 0
    from monitor.kernel import charging

    charging.remember_failed(Path(config.state_dir), f"{config.rung} failed while it ran: {failed.message}")
    return EXIT_HOOK


if __name__ == "__main__":
    sys.exit(main())
