"""The hot process: ring record -> policy -> kill, in one thread over one raw epoll.

Nothing here may wait for a disk, a socket or another process. What blocks lives in the side process (monitor/daemon/side.py), which is told
what happened after it happened. asyncio and `selectors` are out of the question: both misread EPOLLPRI descriptors.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import sys
import time
from typing import Any

from monitor.actions.evict import Eviction, Victim, pids_below
from monitor.daemon import channel
from monitor.daemon.arming import Arming
from monitor.daemon.config import CONFIG_FD, RunConfig
from monitor.daemon.registry import PodEntry, Registry
from monitor.daemon.stats import SharedStats
from monitor.daemon.supervise import Side
from monitor.daemon.watch import (
    KUBEPODS_SIGNAL,
    NODE_SIGNAL,
    Watch,
    arm_thresholds,
    armed_bound,
    make_watch,
)
from monitor.kernel import cgroupfs, meminfo
from monitor.kernel.domains import DomainTable, Reading, Sweeper
from monitor.kernel.pins import Pins, Ring
from monitor.kernel.sched import Protection, protect
from monitor.kernel.wire import CROSS, EVENT, PAGE, SIGNAL, STEP, OomEvent
from monitor.pods.cgroup_tree import find_kubepods
from monitor.policy.synchronize import Observation, Outcome, State, synchronize

#: While a threshold is met the policy is run this often on fresh numbers (a pass costs 30 us: 0.1 % of a CPU).
TICK_NS = 25_000_000
#: The kubelet's loop: an observed decision for a threshold that stays met is repeated as rarely as the kubelet would.
REPEAT_NS = 10_000_000_000
#: Two observed decisions are at least this far apart, so that a working set trembling at the line does not flood the log.
QUIET_NS = 20_000_000
HOUSEKEEPING_NS = 1_000_000_000
SWEEP_NS = 10_000_000_000
PUBLISH_NS = 250_000_000
#: The kubelet waits this long for a killed pod to be gone before it goes on.
EVICTION_TIMEOUT_NS = 30_000_000_000
_PREPARED = 4  # pods kept ready to be killed


class Hot:
    """State of the process; `run` is the loop."""

    def __init__(self, config: RunConfig, config_fd: int) -> None:
        self.config = config
        self.stats = SharedStats.create()
        self.side = Side(config_fd, self.stats.fd, config.listen_fd)
        self.epoll = select.epoll()
        self.pins = Pins.open(config.pin_dir)
        self.table = DomainTable(self.pins)
        self.table.reset()
        self.sweeper = Sweeper(self.pins, self.table)
        self.registry = Registry(self.table, config.step)
        self.arming = Arming(self.pins, config.max_fill_rate)
        self.victim_word = memoryview(self.pins.mmap("victims", 32)).cast("Q")
        self.victim_word[0] = 0
        self.hierarchy = cgroupfs.detect()
        self.eviction_config = config.eviction_config()
        self.state = State.initial()
        self.outcome: Outcome | None = None
        self.watches = self._make_watches()
        self.by_index: dict[int, Watch] = {w.index: w for w in self.watches}
        self.prepared: dict[str, Victim] = {}
        self.eviction: Eviction | None = None
        self.moved: dict[int, int] = {}  # domain index -> working set, from step records not yet ranked
        self.generation_uid = ""
        self.decision_ns = 0
        self.decision_id = 0
        self.pass_deadline_ns: int | None = None
        self.housekeeping_ns = self.sweep_due_ns = self.publish_ns = 0
        self.dirty = True
        self.synced = False
        self.ready = False
        self.stopping = False
        self.away = True  # OOM records read before this is cleared happened while no daemon ran
        self.protection = Protection("default", False, 0)
        self.huge_pages = _huge_pages()
        self.cpus = os.cpu_count() or 1

    def _make_watches(self) -> list[Watch]:
        config, version = self.config, self.hierarchy.version
        total = meminfo.mem_total()
        node = cgroupfs.resolve(self.hierarchy, config.node_cgroup) if config.node_cgroup else None
        capacity = (cgroupfs.limit(node) if node else None) or total
        thresholds = self.eviction_config.thresholds
        watches = [make_watch(self.table, "node", NODE_SIGNAL, node, capacity, thresholds, version)]
        kubepods = find_kubepods(cgroupfs.Hierarchy(version, node) if node else self.hierarchy)
        if kubepods is not None:
            limit = cgroupfs.limit(kubepods) or max(0, capacity - config.reserved)
            watches.append(make_watch(self.table, "kubepods", KUBEPODS_SIGNAL, kubepods, limit, thresholds, version))
        return watches

    # talking to the side

    def tell(self, message: dict[str, Any]) -> None:
        """Send to the side without waiting; what it cannot take is dropped and counted."""
        sock = self.side.sock
        if sock is not None and channel.send(sock, message):
            self.stats.add("channel_sent")
        else:
            self.stats.add("channel_dropped")

    def log(self, level: str, msg: str, **fields: Any) -> None:
        self.tell({"t": "log", "level": level, "msg": msg, **fields})

    def hear(self) -> None:
        """Take in what the side sent."""
        sock = self.side.sock
        if sock is None:
            return
        added = False
        for message in channel.drain(sock, limit=128):
            if message is None:
                return  # closed: the pidfd says the rest
            kind = message["t"]
            if kind == "pod+":
                try:
                    self.registry.put(message)
                    added = True
                except OSError as error:
                    self.log("warning", "pod's cgroup is gone", pod=message["name"], error=error.strerror)
            elif kind == "pod-":
                self.registry.drop(message["uid"])
                gone = self.prepared.pop(message["uid"], None)
                if gone is not None and (self.eviction is None or self.eviction.victim is not gone):
                    gone.close()
                self.dirty = True
            elif kind == "synced":
                self.synced = added = True
            elif kind == "refresh":
                self.sweep()
        self.stats.set("pods", len(self.registry))
        if added:
            self.sweep()  # a new domain's sums are complete after a sweep
            self.dirty = True
            self.prepare()

    # counting

    def sweep(self) -> None:
        """Make every counter exact and rank by them. Ring records are read in between, so crossings do not wait."""
        self.sweeper.run(self.drain_events)
        self.registry.refresh()
        now = time.monotonic_ns()
        self.stats.add("sweeps")
        self.stats.set("sweep_ns", now)
        self.sweep_due_ns = now + SWEEP_NS

    def reading(self, watch: Watch) -> Reading:
        """The domain's memory at this moment, without a sweep. Exact while armed."""
        if watch.machine:
            self.sweeper.touch_root()
            return self.table.reading(watch.index)
        reading = self.table.reading(watch.index)
        return Reading(watch.usage_now(), reading.inactive_file, reading.active_file)

    def headroom(self) -> int:
        """Bytes until the nearest threshold; a lower bound while detached, made exact when that is too close."""
        lowest = 1 << 62
        for watch in self.watches:
            if not watch.thresholds:
                continue
            if watch.machine or self.arming.armed:
                used = self.reading(watch).working_set
            else:
                used = watch.usage_now()  # without the inactive cache: cheap, and never too optimistic
                if watch.capacity - watch.floor - used < self.arming.near:
                    self.sweep()
                    used = self.reading(watch).working_set
            lowest = min(lowest, watch.capacity - watch.floor - used)
        return lowest

    def look(self, now_ns: int) -> None:
        """Attach or detach the fine-grained programs by headroom."""
        self.stats.add("looks")
        if self.arming.decide(self.headroom(), now_ns):
            self.stats.add("arms" if self.arming.armed else "disarms")
            self.stats.set("armed", int(self.arming.armed))
            self.dirty = True
            if self.arming.armed:
                self.sweep()
                self.prepare()
                self.run_pass(0)
        self.stats.set(
            "bound_bytes",
            armed_bound(self.cpus, self.huge_pages) if self.arming.armed else self.arming.unseen_bytes(),
        )

    # the hot path

    def on_event(self, data: bytes) -> None:
        """One record of the pressure ring."""
        ts, cgroup_id, usage, inactive, active, generation, result, kind, index, threshold, _tgid, _cpu, _ = EVENT.unpack_from(data)
        self.stats.add("records")
        if kind == CROSS:
            self.stats.add("records_cross")
            watch = self.by_index.get(index)
            if watch is not None and watch.cgroup_id == cgroup_id and self.eviction is None:
                self.run_pass(ts, watch, Reading(usage * PAGE, max(0, inactive) * PAGE, max(0, active) * PAGE))
        elif kind == STEP:
            self.stats.add("records_step")
            self.moved[index] = max(0, usage - inactive) * PAGE
        elif kind == SIGNAL:
            self.stats.add("records_signal")
            self.on_kernel_signal(index, generation, result, ts)
        else:
            self.stats.add("records_bad")

    def rank_moved(self) -> None:
        """Give the pods that reported a step their new places."""
        if not self.moved:
            return
        for index, working_set in self.moved.items():
            entry = self.registry.by_index.get(index)
            if entry is None:
                continue
            if entry.evicted and self.eviction is None and pids_below(entry.cgroup):
                self.registry.set_evicted(entry, False)
                self.log("info", "an evicted pod runs again: it is a candidate again", pod=entry.title)
            self.registry.move(entry, working_set)
        self.moved.clear()

    def run_pass(self, crossed_ns: int, watch: Watch | None = None, reading: Reading | None = None) -> None:
        """One pass of the policy on numbers of this moment; acts on what it decides. ``crossed_ns`` 0: no crossing led here."""
        self.rank_moved()
        readings = {w.name: reading if w is watch and reading is not None else self.reading(w) for w in self.watches}
        now = time.monotonic_ns()
        observations = {w.signal: w.observation(readings[w.name], now) for w in self.watches if w.thresholds}
        self.state, outcome = synchronize(self.eviction_config, self.state, observations, now, self.rank)
        self.stats.add("passes")
        before, self.outcome = self.outcome, outcome
        self.pass_deadline_ns = outcome.next_deadline_ns
        if crossed_ns:
            self.stats.observe_us("detection_us", (time.monotonic_ns() - crossed_ns) // 1000)
        if outcome.victim is not None and self.eviction is None:
            self.decide(outcome, observations, readings, crossed_ns)
        if before is None or before.conditions != outcome.conditions:
            self.dirty = True
            self.log("info", "node conditions", conditions=sorted(outcome.conditions))
        elif before.observed != outcome.observed:
            self.dirty = True

    def rank(self, _signal: str) -> Any:
        return self.registry.order()

    def decide(self, outcome: Outcome, observations: dict[str, Observation], readings: dict[str, Reading], crossed_ns: int) -> None:
        """Evict the pod the policy chose (enforce), or say that it would be evicted (observe)."""
        assert outcome.victim is not None and outcome.starved is not None
        entry = self.registry.by_uid[outcome.victim.uid]
        decided_ns = time.monotonic_ns()
        trigger, signalled_ns = "user", None
        if self.config.enforce:
            fired = self.disarm_kernel()
            if fired is not None:
                trigger, entry = "kernel", fired
            victim = self.prepared.pop(entry.uid, None) or self.make_victim(entry)
            # A hard threshold waits for nobody: its second of grace in the kubelet's books is the smallest the pod worker takes.
            grace_s = 0 if outcome.starved.hard else max(0, outcome.grace_s)
            self.eviction = Eviction(victim, {}, grace_s, entry.usage or 0)
            signalled_ns = self.eviction.signalled_ns
            for fd in self.eviction.pidfds():
                self.epoll.register(fd, select.EPOLLIN)
            if crossed_ns:
                self.stats.observe_us("kill_us", (signalled_ns - crossed_ns) // 1000)
        else:
            since = decided_ns - self.decision_ns
            if since < (QUIET_NS if crossed_ns else REPEAT_NS):
                return
        self.decision_ns = decided_ns
        self.decision_id += 1
        self.stats.add("decisions")
        threshold = outcome.starved
        observation = observations[threshold.signal]
        watch = next(w for w in self.watches if w.signal == threshold.signal)
        message: dict[str, Any] = {
            "t": "decision",
            "id": self.decision_id,
            "signal": threshold.signal,
            "kind": "hard" if threshold.hard else "soft",
            "domain": watch.name,
            "quantity": threshold.quantity(observation.capacity),
            "available": observation.available,
            "capacity": observation.capacity,
            "usage": readings[watch.name].usage,
            "pod": entry.uid,
            "name": entry.title,
            "rank": 1,
            "grace_s": outcome.grace_s,
            "observed": not self.config.enforce,
            "trigger": trigger,
            "crossed_ns": crossed_ns or None,
            "decided_ns": decided_ns,
            "signalled_ns": signalled_ns,
            "working_set": self.table.working_set(entry.index),
            "request": entry.request,
            "containers": {name: self.table.working_set(at) for name, (_, at) in entry.containers.items()},
            "realtime": time.time(),
        }
        if self.eviction is not None:
            self.eviction.decision = message
        self.tell(message)
        self.dirty = True

    # victims

    def make_victim(self, entry: PodEntry) -> Victim:
        victim = Victim(entry.uid, entry.cgroup, self.hierarchy.version)
        victim.refresh()
        return victim

    def prepare(self) -> None:
        """Keep the first victim ready to be killed: pidfds open, and armed in the kernel where that was asked for."""
        if not self.config.enforce or self.eviction is not None or not self.arming.armed:
            return
        entry = self.registry.first()
        if entry is None:
            self.victim_word[0] = 0
            return
        now = time.monotonic_ns()
        victim = self.prepared.get(entry.uid)
        if victim is None:
            victim = self.prepared[entry.uid] = self.make_victim(entry)
            if len(self.prepared) > _PREPARED:
                oldest = min(self.prepared, key=lambda uid: self.prepared[uid].prepared_ns)
                self.prepared.pop(oldest).close()
        elif now - victim.prepared_ns > HOUSEKEEPING_NS:
            victim.refresh()
        if self.config.trigger == "kernel" and (self.generation_uid != entry.uid or not self.victim_word[0]):
            self.victim_word[0] = 0
            self.victim_word[1] = entry.cgroup_id
            self.generation_uid = entry.uid
            self.victim_word[0] = now  # the generation: never used before, also not by an earlier daemon

    def disarm_kernel(self) -> PodEntry | None:
        """Take the kernel's trigger away; the pod it was armed for if it had been pulled already."""
        armed = self.victim_word[0]
        self.victim_word[0] = 0
        fired, uid = self.victim_word[3], self.generation_uid
        self.victim_word[3] = 0
        if fired and not armed:
            return self.registry.by_uid.get(uid)
        return None

    def on_kernel_signal(self, index: int, generation: int, result: int, ts: int) -> None:
        """The victim was signalled inside its own charge. Usually its crossing was read before and the pod is being finished."""
        if result:
            self.log("warning", "the kernel refused the signal", error=os.strerror(-result), generation=generation)
        if self.eviction is None:
            watch = self.by_index.get(index)
            self.run_pass(ts, watch, self.table.reading(index))
        if self.eviction is None and not result:
            self.log("warning", "a victim was signalled in the kernel but the policy no longer asks for it", uid=self.generation_uid)

    def follow_eviction(self, now_ns: int) -> None:
        """Go on with the pod being evicted; when it is gone, look again at once."""
        eviction = self.eviction
        if eviction is None:
            return
        known = set(eviction.pidfds())
        gone = eviction.step(now_ns)
        for fd in set(eviction.pidfds()) - known:
            self.epoll.register(fd, select.EPOLLIN)
        late = not gone and now_ns - eviction.started_ns > EVICTION_TIMEOUT_NS + int(eviction.decision["grace_s"]) * 1_000_000_000  # type: ignore[call-overload]
        if not gone and not late:
            reap = eviction.to_reap(now_ns)
            if reap:
                self.tell({"t": "reap", "pids": reap})
            return
        self.eviction = None
        entry = self.registry.by_uid.get(eviction.victim.uid)
        eviction.victim.close()  # closing a pidfd takes it out of the epoll
        if late:
            self.stats.add("eviction_failures")
            self.log("error", "an evicted pod does not end", pod=eviction.decision.get("name"), pids=sorted(eviction.pids)[:20])
        else:
            self.stats.add("evictions")
            self.stats.observe_us("gone_us", (now_ns - eviction.started_ns) // 1000)
        working_set = self.table.working_set(entry.index) if entry else 0
        if entry is not None:
            self.registry.set_evicted(entry, True)
        self.tell({
            "t": "evicted",
            "id": eviction.decision.get("id"),
            "pod": eviction.victim.uid,
            "gone_ns": now_ns,
            "pids": sorted(eviction.pids),
            "freed": max(0, eviction.usage_before - working_set),
        })  # fmt: skip
        self.run_pass(0)
        self.prepare()

    # the OOM killer's side

    def on_oom(self, data: bytes) -> None:
        event = OomEvent.decode(data)
        self.stats.add("records")
        self.stats.add({"mark": "records_oom", "kill": "records_kill", "exit": "records_exit"}[event.kind])
        if event.kind == "mark":
            self.stats.add("oom_exiting" if event.exiting else "oom_kills")
        pod = self.registry.owner_of_cgroup(event.victim_cgroup)
        self.tell({
            "t": "oom",
            **event.as_dict(),
            "pod": pod.uid if pod else None,
            "pod_name": pod.title if pod else None,
            "while_away": self.away,
        })  # fmt: skip

    # the loop

    def drain_events(self) -> None:
        self.events.consume()

    def publish(self, now_ns: int) -> None:
        """Tell the side how things are, at most four times a second."""
        self.dirty = False
        self.publish_ns = now_ns
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.stats.set("cpu_ns", int((usage.ru_utime + usage.ru_stime) * 1e9))
        self.stats.set("published_ns", now_ns)
        outcome = self.outcome
        first = self.registry.first()
        self.tell({
            "t": "state",
            "conditions": sorted(outcome.conditions) if outcome else [],
            "met": [{"signal": t.signal, "kind": "hard" if t.hard else "soft"} for t in (outcome.observed if outcome else ())],
            "armed": self.arming.armed,
            "bound_bytes": self.stats.get("bound_bytes"),
            "order": [c.uid for c in self.registry.order()[:10]],
            "victim": first.uid if first else None,
            "observation": {w.name: self._observation(w) for w in self.watches},
            "pods": len(self.registry),
            **self._protected(),
            "trigger": self.config.trigger,
            "ready": self.ready,
        })  # fmt: skip

    def _protected(self) -> dict[str, Any]:
        p = self.protection
        return {"scheduler": p.scheduler, "mlocked": p.mlocked, "oom_score_adj": p.oom_score_adj}

    def _observation(self, watch: Watch) -> dict[str, int]:
        reading = self.table.reading(watch.index)
        return {
            "cgroup_id": watch.cgroup_id,
            "usage": reading.usage,
            "inactive_file": reading.inactive_file,
            "active_file": reading.active_file,
            "working_set": reading.working_set,
            "available": watch.capacity - reading.working_set,
            "capacity": watch.capacity,
        }

    def housekeeping(self, now_ns: int) -> None:
        """Once a second while armed: is that still needed, is the victim still prepared."""
        self.housekeeping_ns = now_ns + HOUSEKEEPING_NS
        if self.outcome is None or not self.outcome.observed:
            self.look(now_ns)
            gc.collect(1)
        if self.arming.armed and now_ns >= self.sweep_due_ns:
            self.sweep()
        self.prepare()

    def deadline(self, now_ns: int) -> int:
        """When something is due although nothing happens."""
        due = self.housekeeping_ns if self.arming.armed else self.arming.next_look_ns
        if self.outcome is not None and self.outcome.observed:
            due = min(due, now_ns + TICK_NS)
        if self.pass_deadline_ns is not None:
            due = min(due, self.pass_deadline_ns)
        if self.eviction is not None:
            due = min(due, self.eviction.deadline_ns(now_ns))
        if self.dirty:
            due = min(due, self.publish_ns + PUBLISH_NS)
        if not self.side.pid:
            due = min(due, self.side.next_start_ns)
        return due

    def start(self) -> None:
        """Everything before the loop: rings, thresholds, protection."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.start_side()
        wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.wake_fd = wake_r
        self.epoll.register(wake_r, select.EPOLLIN)

        self.events = Ring(self.pins, "events", lambda data: None)
        self.events.consume()  # what an earlier daemon left unread means nothing any more
        self.events.close()
        self.events = Ring(self.pins, "events", self.on_event)
        self.ooms = Ring(self.pins, "ooms", self.on_oom)
        self.ooms.consume()  # but every OOM kill since then does
        self.away = False
        for ring in (self.events, self.ooms):
            self.epoll.register(ring.fileno(), select.EPOLLIN)

        self.sweep()
        for watch in self.watches:
            arm_thresholds(self.table, watch, self.config.enforce and self.config.trigger == "kernel")
        self.look(time.monotonic_ns())
        self.run_pass(0)
        self.protection = protect()
        gc.disable()  # collected by hand in quiet moments
        for note in self.protection.notes:
            self.log("warning", note)

    def start_side(self) -> None:
        self.side.start(time.monotonic_ns())
        assert self.side.sock is not None
        self.stats.add("side_starts")
        self.epoll.register(self.side.sock.fileno(), select.EPOLLIN)
        self.epoll.register(self.side.pidfd, select.EPOLLIN)

    def stop(self, *_: Any) -> None:
        self.stopping = True

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        self.start()
        monotonic_ns = time.monotonic_ns
        events_fd, ooms_fd = self.events.fileno(), self.ooms.fileno()
        while not self.stopping:
            now = monotonic_ns()
            due = self.deadline(now)
            for fd, _ in self.epoll.poll(max(0.0, (due - now) / 1e9)):
                if fd == events_fd:
                    self.events.consume()
                elif fd == ooms_fd:
                    self.ooms.consume()
                elif self.side.sock is not None and fd == self.side.sock.fileno():
                    self.hear()
                elif fd == self.side.pidfd:
                    self.side_ended()
                elif fd == self.wake_fd:
                    os.read(fd, 64)
                elif self.eviction is not None and fd in self.eviction.pidfds():
                    self.epoll.unregister(fd)  # gone, and would be reported for ever; the step below sees who is left
            now = monotonic_ns()
            self.stats.add("loops")
            if self.moved:
                self.rank_moved()
                self.prepare()
                self.dirty = True
            if self.eviction is not None:
                self.follow_eviction(now)
            elif self.outcome is not None and self.outcome.observed and now >= due:
                self.run_pass(0)
            elif self.pass_deadline_ns is not None and now >= self.pass_deadline_ns:
                self.run_pass(0)
            if now >= (self.housekeeping_ns if self.arming.armed else self.arming.next_look_ns):
                self.housekeeping(now)
            if self.synced and not self.ready:
                self.ready = self.dirty = True
                self.stats.set("ready_ns", now)
                self.log("info", "ready", ready_ns=now, pods=len(self.registry), armed=self.arming.armed, **self._protected())
            if self.dirty and now >= self.publish_ns + PUBLISH_NS:
                self.publish(now)
            if not self.side.pid and now >= self.side.next_start_ns:
                self.start_side()
        self.finish()

    def side_ended(self) -> None:
        status = self.side.reap()
        if not self.stopping:
            os.write(2, f"outrace: the side process ended (status {status}); starting it again\n".encode())

    def finish(self) -> None:
        """Detach, take the trigger away, end the side. The OOM programs stay attached: their records wait for the next start."""
        self.victim_word[0] = 0
        self.arming.detach()
        self.side.stop()


def _huge_pages() -> bool:
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
            return "[never]" not in file.read()
    except OSError:
        return False


def main() -> int:
    config_fd = int(os.environ[CONFIG_FD])
    config = RunConfig.from_fd(config_fd)
    os.set_inheritable(config_fd, False)
    os.set_inheritable(config.lock_fd, False)
    os.set_inheritable(config.listen_fd, False)
    Hot(config, config_fd).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
