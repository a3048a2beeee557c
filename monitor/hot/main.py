"""The hot process: ring record -> policy -> kill, in one thread over one raw epoll.

Nothing here may wait for a disk, a socket or another process. What blocks lives in the side process
(monitor/side/main.py), which is told what happened after it happened. asyncio and `selectors` are out of the
question: both misread EPOLLPRI descriptors.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor.actions.victim import SPARED
from monitor.errors import EXIT_FAILURE, MonitorError, remedy_of
from monitor.hot import ladder
from monitor.hot.busy_poll import Vigil
from monitor.hot.decide import Decider
from monitor.hot.eviction_note import EvictionNote
from monitor.hot.evictor import Evictor
from monitor.hot.gauge import SWEEP_NS, Gauge, NodeGone
from monitor.hot.guard import Guard
from monitor.hot.patience import Patience
from monitor.hot.registry import Registry
from monitor.hot.sd_notify import Service
from monitor.hot.sleep import Sleep
from monitor.hot.slow_signals import SlowSignals
from monitor.hot.supervise import Side
from monitor.hot.sweeps import Sweeps
from monitor.hot.trigger import Trigger
from monitor.kernel.sched import Protection, may_kill, protect
from monitor.kernel.troubles import TROUBLES
from monitor.link import channel
from monitor.link.counters import SharedStats
from monitor.link.heartbeat import Pulse
from monitor.link.resend import KINDS, Retold
from monitor.policy.eviction_order import EvictionOrder
from monitor.policy.releases import Era, era
from monitor.settings.config import CONFIG_FD, STATS_FD, RunConfig
from monitor.sources.source import open_memory_source

if TYPE_CHECKING:
    from monitor.hot.pass_record import Journal

HOUSEKEEPING_NS = 1_000_000_000
PUBLISH_NS = 250_000_000


class Hot:
    """The loop and what it listens to: two rings, the side, processes that end, signals."""

    def __init__(self, config: RunConfig, config_fd: int) -> None:
        self.config = config
        self.stats = SharedStats.inherit(STATS_FD)
        self.service = Service()
        self.retold = Retold()
        self.side = Side(config_fd, self.stats.fd, config.listen_fd)
        self.pulse = Pulse(self.stats, self.side.timer)
        self.guard = Guard(self.stats)
        self.unwatched: dict[str, dict[str, Any]] = {}  # uid -> the message of a pod that could not be watched yet
        self.epoll = select.epoll()
        self.sleep = Sleep(self.epoll)
        self.source = open_memory_source(config)
        pass_config = config.pass_config(kill_at_once=True)
        self.gauge = Gauge(self.source, config, pass_config.thresholds, self.stats, self.tell)
        policy = era(config.policy)
        eviction_order, self.journal = self._eviction_order(policy)
        self.registry = Registry(self.gauge.table, config.step, eviction_order)
        in_kernel = config.enforce and config.trigger == "kernel"
        self.trigger = Trigger(self.source.victim, self.registry, self.gauge.hierarchy.version, in_kernel)
        self.patience = Patience(self.gauge, self.registry, self.stats, self.tell)
        self.evictor = Evictor(
            self.gauge,
            self.registry,
            self.trigger,
            self.patience,
            self.stats,
            self.epoll,
            self.tell,
            EvictionNote(self.source.eviction),
        )
        self.slow = SlowSignals(config, policy, self.tell)
        self.decider = Decider(
            config,
            pass_config,
            self.gauge,
            self.registry,
            self.trigger,
            self.slow,
            self.evictor,
            self.patience,
            self.stats,
            self.tell,
            self.journal,
        )
        self.records = ladder.records(
            self.source, config, self.gauge, self.registry, self.decider, self.stats, self.tell
        )
        self.sweeps = Sweeps(self.gauge, self.registry, self.stats, self.records.read_events, self.log)
        self.housekeeping_ns = self.publish_ns = 0
        self.dirty = True  # the side does not know the latest state
        self.synced = self.ready = self.stopping = False
        self.protection = Protection("default", False, 0)

    def _eviction_order(self, policy: Era) -> tuple[EvictionOrder, Journal | None]:
        """Where the pods are ranked; while everything is recorded, one that notes its changes for the journal."""
        if not self.config.record:
            return EvictionOrder(policy.memory_key), None
        from monitor.hot.pass_record import Journal, RecordedEvictionOrder  # nobody else pays for them

        noted = RecordedEvictionOrder(policy.memory_key)
        return noted, Journal(noted, self.offer)

    # talking to the side

    def offer(self, message: dict[str, Any]) -> bool:
        """Send to the side without waiting; False if it cannot take it."""
        sock = self.side.sock
        return sock is not None and channel.send(sock, message)

    def tell(self, message: dict[str, Any]) -> None:
        """Send to the side without waiting; what it cannot take is dropped and counted."""
        if self.offer(message):
            self.stats.add("channel_sent")
            self.retold.note(message)
        elif message["t"] in KINDS and self.side.sock is None:
            self.retold.note(message)  # for the next side
        else:
            self.stats.dropped(message)

    def log(self, level: str, msg: str, **fields: Any) -> None:
        self.tell({"t": "log", "level": level, "msg": msg, **fields})

    def hear(self) -> None:
        """Take in what the side sent."""
        sock = self.side.sock
        if sock is None:
            return
        stale = False
        for message in channel.drain(sock, limit=128):
            if message is None:
                break  # closed: the pidfd says the rest
            kind = message["t"]
            if kind == "pod+":
                self.guard(self.put, message)
                self.resent.add(message["uid"])
                stale = True
            elif kind == "pod-":
                self.drop(message["uid"])
            elif kind == "synced":
                # A side that was started again does not know which pods went while nobody looked.
                for uid in self.registry.by_uid.keys() - self.resent:
                    self.drop(uid)
                self.synced = stale = True
            elif kind == "refresh":
                stale = True
            elif kind == "record":
                if self.journal is not None:
                    self.journal.restart()
                    self.decider.run_pass()  # a snapshot goes with a pass
            elif kind == "disks":
                self.decider.take_slow(message)
            elif kind == "stored":
                self.retold.stored(message["count"])
            elif kind == "reaped":
                self.evictor.reaped(message["id"])
            elif kind == "reclaimed":
                self.patience.reclaimed(message["id"])
            elif kind == "lives":
                self.patience.answered(message["id"], message["lives"])
            elif kind == "bad":
                self.log("error", "a message of the side could not be read", problem=message["problem"])
        self.stats.set("pods", len(self.registry))
        if stale and self.synced:  # at the start one sweep for all pods: 110 of them would take half a second
            self.sweeps.ask(self.pods_counted)  # a new domain's sums are complete after a sweep

    def pods_counted(self) -> None:
        """A sweep has been over all pods that were told of."""
        self.records.pods_came()
        if not self.decider.may_act:
            self._succeed()
            self.decider.begin()
            self.decider.evict_over_limit()
        self.decider.prepare()
        self.dirty = True

    def _succeed(self) -> None:
        """All pods are known: is one of them dying since before this daemon?"""
        if self.config.enforce:
            from monitor.hot.succession import succeed

            pulled_ns = getattr(self.records, "pulled_ns", 0)
            succeed(
                self.evictor,
                self.registry,
                self.trigger,
                self.patience,
                self.gauge,
                pulled_ns,
                self.decider.pressed,
                self.tell,
            )

    def put(self, message: dict[str, Any]) -> None:
        """Take in a pod. One that cannot be watched, for want of a descriptor say, is tried again."""
        uid, name = message["uid"], message["name"]
        again = self.unwatched.pop(uid, None) is not None
        problem = ""
        try:
            self.registry.put(message)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                self.log("warning", "a pod's cgroup is gone", pod=name, error=error.strerror)
            else:
                TROUBLES.note("pod", error, uid)
                problem = error.strerror or str(error)
        except MonitorError as error:
            problem = str(error)
        if problem:
            self.unwatched[uid] = message
            if not again:
                self.log("error", "a pod is not watched", pod=name, problem=problem)
        if "kubepods" in message["cgroup"] and self.gauge.find_kubepods((Path(message["cgroup"]), uid)):
            self.watch_thresholds()

    def put_again(self) -> None:
        """Once a second: the pods that could not be watched."""
        before = len(self.unwatched)
        for message in list(self.unwatched.values()):
            self.guard(self.put, message)
        if len(self.unwatched) < before:
            self.sweeps.ask(self.decider.prepare)

    def drop(self, uid: str) -> None:
        self.unwatched.pop(uid, None)
        entry = self.registry.by_uid.get(uid)
        if entry is not None:
            self.decider.dropped(entry)
        self.registry.drop(uid)
        self.trigger.forget(uid)
        self.gauge.sweep_soon()
        self.dirty = True

    def publish(self, now_ns: int) -> None:
        """Tell the side how things are, at most four times a second."""
        self.dirty = False
        self.publish_ns = now_ns
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.stats.set("cpu_ns", int((usage.ru_utime + usage.ru_stime) * 1e9))
        self.stats.set("published_ns", now_ns)
        outcome = self.decider.outcome
        first = self.registry.first()
        self.tell(
            {
                "t": "state",
                "conditions": sorted(outcome.conditions) if outcome else [],
                "met": [
                    {"signal": t.signal, "kind": "hard" if t.hard else "soft"}
                    for t in (outcome.observed if outcome else ())
                ],
                "armed": self.gauge.arming.armed,
                "bound_bytes": self.stats.get("bound_bytes"),
                "order": [c.uid for c in self.registry.order()[:10]],
                "victim": first.uid if first else None,
                "observation": {w.name: self.gauge.describe(w) for w in self.gauge.watches},
                "pods": len(self.registry),
                "spec_unknown": sum(entry.priority is None for entry in self.registry),
                "braked": self.decider.braked,
                "trigger": self.config.trigger,
                "ready": self.ready,
                **self._protected(),
            }
        )

    def _protected(self) -> dict[str, Any]:
        p = self.protection
        return {"scheduler": p.scheduler, "mlocked": p.mlocked, "oom_score_adj": p.oom_score_adj}

    # the node

    def look(self, now_ns: int) -> None:
        """Attach or detach the fine-grained programs by headroom."""
        changed = self.gauge.look(now_ns, self.sweeps.ask)
        if self.gauge.recapped:
            self.gauge.arm_thresholds()
            self.decider.run_pass()
            self.dirty = True
        if not changed:
            met = self.gauge.arming.rereads and self.gauge.headroom < 0
            if self.gauge.crossed or (met and not self.decider.pressed):
                self.decider.run_pass()  # what a hook on charges cannot see
            return
        self.dirty = True
        self.housekeeping_ns = now_ns
        if self.gauge.arming.armed:
            self.sweeps.ask(self.armed_counted)

    def armed_counted(self) -> None:
        """A sweep has been over everything since the programs were attached."""
        self.decider.run_pass()
        self.decider.prepare()

    # the loop

    def housekeeping(self, now_ns: int) -> None:
        """Once a second."""
        # Detached and with no limit that somebody could lower, there is nothing to look after so often.
        waiting = self.gauge.arming.armed or self.evictor.stuck
        quiet = not waiting and not self.unwatched and all(w.machine for w in self.gauge.watches)
        self.housekeeping_ns = now_ns + (SWEEP_NS if quiet else HOUSEKEEPING_NS)
        self.records.look_after()
        self.side.collect()
        if self.unwatched:
            self.put_again()
        self.evictor.follow_stuck(now_ns)  # also where what was evicted since has made it quiet
        if self.gauge.limits_changed():
            self.watch_thresholds()
            self.look(now_ns)
            self.decider.run_pass()
        if not self.gauge.arming.armed:
            return
        if now_ns >= self.gauge.sweep_due_ns:
            self.sweeps.ask(self.keep_house)
        else:
            self.gauge.reread()
            self.registry.refresh()
            self.keep_house()

    def keep_house(self) -> None:
        """Once a second while attached, on exact counters."""
        if self.decider.pressed:
            gc.collect(0)
        else:
            self.look(time.monotonic_ns())
            self.decider.run_pass()  # whatever the kernel may have missed
            gc.collect(1)
        self.decider.prepare()

    def watch_thresholds(self) -> None:
        """Compare thresholds in the kernel, once the sums they are compared with are complete."""
        self.registry.protected = {w.cgroup_id for w in self.gauge.watches}
        self.sweeps.ask(self.thresholds_counted)

    def thresholds_counted(self) -> None:
        self.gauge.arm_thresholds()
        self.records.watches = {w.index: w for w in self.gauge.watches}

    def deadline(self, now_ns: int) -> int:
        """When something is due although nothing happens."""
        if self.decider.moved:
            return now_ns  # records that were read after the last turn had ranked
        due = min(self.housekeeping_ns, self.service.next_ns)
        if self.sweeps.runs:
            due = min(due, self.sweeps.next_ns)
        if self.gauge.arming.looks:
            due = min(due, self.gauge.arming.next_look_ns)
        if self.decider.deadline_ns is not None:
            due = min(due, self.decider.deadline_ns)
        if self.decider.reread_ns is not None:
            due = min(due, self.decider.reread_ns)
        if self.evictor.current is not None:
            due = min(due, self.evictor.current.deadline_ns())
        if self.patience.active:
            due = min(due, self.patience.next_look_ns)
        if self.dirty or self.records.eventful:
            due = min(due, self.publish_ns + PUBLISH_NS)
        due = min(due, self.pulse.next_ns if self.side.pid else self.side.next_start_ns)
        left_ns = self.records.due_ns()
        return due if left_ns is None else min(due, left_ns)

    def start(self) -> None:
        """Everything before the loop: the side, signals, rings, thresholds, protection."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a pidfd for every process of a pod
        self.start_side()
        self.wake_fd, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

        ladder.tell(self.config, self.log)
        self.records.open(self.epoll)
        self.vigil = Vigil(self.gauge, self.decider, self.records.read_events, self.look)
        self.epoll.register(self.wake_fd, select.EPOLLIN)
        self.epoll.register(self.side.timer.fileno(), select.EPOLLIN)

        self.watch_thresholds()
        self.look(time.monotonic_ns())
        self.decider.run_pass()
        self.protection = protect()
        gc.disable()  # collected by hand in quiet moments
        for note in self.protection.notes:
            self.log("warning", note)
        if self.config.enforce and not may_kill():
            self.log("warning", "no CAP_KILL: processes of other users cannot be evicted; give it CAP_KILL")

    def start_side(self) -> None:
        """Raises OSError: it is tried again when the backoff is over."""
        now = time.monotonic_ns()
        self.resent: set[str] = set()  # pods this side has told of
        self.pulse.begin(now)
        if not self.side.adopt(now):
            self.side.start(now)
        assert self.side.sock is not None
        self.stats.add("side_starts")
        try:
            SPARED.add(self.side.pid)
            self.epoll.register(self.side.sock.fileno(), select.EPOLLIN)
            self.epoll.register(self.side.pidfd, select.EPOLLIN)
        except OSError:  # one that is not heard, or not spared, is none
            self.side.kill(now)
            self.side.leave()
            self._without_side()
            raise
        self._tell_again()

    def side_ended(self) -> None:
        """It is started again; the epoll forgets descriptors as they are closed."""
        hung, killed = self.hung, self.side.is_killed
        status = self.side.reap()
        self._without_side()
        if not self.stopping:
            why = f"{hung}: it was killed" if killed else f"ended (wait status {status})"
            self.complaint = f"the side process {why} and was started again"

    def _without_side(self) -> None:
        self.lost_side = True
        self._tell_again()
        self.slow.forget()
        self.decider.run_pass()  # what the side told of counts no more

    def look_at_side(self, now_ns: int) -> None:
        """A side that hangs is killed, and one that does not even die is not waited for."""
        if self.side.is_overdue(now_ns):
            self.complaint = f"the side process {self.hung}: it was killed, does not end, and another was started"
            self.side.leave()
            self._without_side()
            return
        self.side.forget_read()
        why = self.pulse.look(now_ns, self.side.pid)
        if why and not self.side.is_killed:
            self.hung = why
            self.stats.add("side_hangs")
            self.side.kill(now_ns)

    def _tell_again(self) -> None:
        """What the side that is gone had not stored goes first into the channel of the next one."""
        if self.lost_side and self.side.sock is not None:
            self.lost_side = False
            self.stats.add("channel_dropped", self.retold.again(self.offer))

    lost_side = False
    hung = ""  # why the side was killed
    complaint = ""  # for the next side to log

    def stop(self, *_: Any) -> None:
        self.stopping = True

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        self.start()
        guarded = self.guard
        while not self.stopping:
            self.guard.turn()
            guarded(self._sleep)
            now = time.monotonic_ns()
            self.stats.add("loops")
            self.service.alive(now)
            guarded(self._act, now)
            if self.gauge.recapped:
                self.gauge.arming.next_look_ns = now
            if self.gauge.arming.looks and now >= self.gauge.arming.next_look_ns:
                guarded(self.look, now)
            if now >= self.housekeeping_ns:
                guarded(self.housekeeping, now)
            guarded(self.report, now)
            if not self.side.pid and now >= self.side.next_start_ns:
                guarded(self.start_side)
            elif self.side.pid and now >= self.pulse.next_ns:
                guarded(self.look_at_side, now)
            guarded(self.vigil.keep)

    def _sleep(self) -> None:
        for fd in self.sleep.until(self.deadline(time.monotonic_ns())):
            self.guard(self.dispatch, fd)

    def _act(self, now: int) -> None:
        """What is due about the pods."""
        decider, guarded = self.decider, self.guard
        guarded(self.records.go_on, now)
        if decider.moved:
            guarded(decider.rank_moved)
            guarded(decider.prepare)
            self.patience.hasten()
            self.dirty = True
            if decider.braked is not None:
                guarded(decider.run_pass)  # what grows may be in a pod now
        elif decider.stirred:
            guarded(decider.prepare)
        if decider.reread_ns is not None and now >= decider.reread_ns:
            guarded(decider.reread)
        if self.evictor.current is not None and guarded(decider.follow, now, self.side.pid):
            self.records.pod_went()
            if self.evictor.stuck:
                self.housekeeping_ns = min(self.housekeeping_ns, now + HOUSEKEEPING_NS)
            self.gauge.arming.next_look_ns = now  # what was met may be met anew
        if self.patience.active and now >= self.patience.next_look_ns:
            guarded(decider.follow_return)
        if decider.deadline_ns is not None and now >= decider.deadline_ns:
            guarded(decider.run_pass)
        if self.sweeps.runs and now >= self.sweeps.next_ns:
            guarded(self.sweeps.go_on)

    def dispatch(self, fd: int) -> None:
        """One descriptor is ready; the rings first, they are what this process is for."""
        if self.records.consume(fd):
            return
        if self.side.sock is not None and fd == self.side.sock.fileno():
            self.hear()
        elif fd == self.side.pidfd:
            self.side_ended()
        elif fd == self.side.timer.fileno():
            self.pulse.missed()
        elif self.side.left(fd):
            pass  # killed long ago
        elif fd == self.wake_fd:
            with suppress(BlockingIOError):
                os.read(fd, 64)
        elif self.evictor.ended(fd):
            self.epoll.unregister(fd)  # it would be reported for ever; the next look sees who is left

    def report(self, now_ns: int) -> None:
        """What the side should know, when it is time."""
        if self.decider.may_act and not self.ready:
            self.ready = self.dirty = True
            self.publish_ns = 0  # whoever waits for this is told at once
            self.stats.set("ready_ns", now_ns)
            self.service.ready(f"{len(self.registry)} pods, hooks {self.config.rung}")
            self.log(
                "info",
                "ready",
                ready_ns=now_ns,
                pods=len(self.registry),
                armed=self.gauge.arming.armed,
                **ladder.unwatched(self.stats, now_ns),
                **self._protected(),
            )
        for trouble in self.guard.to_tell(now_ns):
            entry = self.registry.by_uid.get(trouble.whose)
            pod = {"pod": entry.title if entry is not None else trouble.whose} if trouble.whose else {}
            self.log("error", "a system call failed: going on without it", **pod, **trouble.fields)
        if self.decider.changed:
            self.decider.changed = False
            self.dirty = True
        if (self.dirty or self.records.eventful) and now_ns >= self.publish_ns + PUBLISH_NS:
            self.records.send_flight()
            if self.complaint and self.side.sock is not None:
                self.log("warning", self.complaint)
                self.complaint = ""
            self.publish(now_ns)

    def finish(self) -> None:
        """Detach, take the trigger away, end the side.

        The OOM programs stay attached: their records wait for the next start.
        """
        self.service.stopping()
        self.patience.flush()
        self.trigger.disarm()
        self.gauge.arming.detach()
        self.side.stop()

    def abandon(self) -> int:
        """Let go of everything because a program in the kernel failed; the pid of the side, which ends by itself."""
        self.patience.flush()
        with suppress(MonitorError, OSError):
            self.trigger.disarm()
            self.gauge.arming.detach()
        with suppress(MonitorError, OSError):
            self.records.drain()
        if self.side.sock is not None:
            self.side.sock.close()
        return self.side.pid


def main() -> int:
    config_fd = int(os.environ[CONFIG_FD])
    config = RunConfig.from_fd(config_fd)
    for fd in (config_fd, *config.kept_fds):
        os.set_inheritable(fd, False)
    hot: Hot | None = None
    try:
        hot = Hot(config, config_fd)
        hot.run()
    except OSError as error:  # before the loop, which goes on without what failed
        where = f"{error.filename}: " if error.filename else ""
        os.write(2, f"outrace: error: cannot start: {where}{error.strerror}; {remedy_of(error.errno, '')}\n".encode())
        return EXIT_FAILURE
    except MonitorError as error:
        if hot is not None and not isinstance(error, NodeGone) and ladder.may_step_down(config):
            failed, hot = hot, None
            ladder.step_down(config, failed.stats, error, failed.abandon())
        os.write(2, f"outrace: error: {error}\n".encode())
        # What had been working may work again; a service manager does not try again after 2 and 3.
        return error.exit_code if hot is None or not hot.ready else EXIT_FAILURE
    finally:
        if hot is not None:
            hot.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
