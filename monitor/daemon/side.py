"""The side process: everything of the daemon that may block. `python -m monitor.daemon.side`, started by the hot
process.

One `poll` loop owns the channel, the pod source and the ring of new processes; what can block for real (files, a stuck
stderr, process_mrelease, HTTP clients) runs in threads with bounded queues. It keeps nothing that must survive: killed
and started again, it sends all pods anew. It ends when the channel closes, because then the hot process has ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor.actions.oomadj import OomScores
from monitor.actions.status import Eviction, StatusStore
from monitor.daemon import channel
from monitor.daemon.config import CHANNEL_FD, CONFIG_FD, STATS_FD, RunConfig
from monitor.daemon.stats import SharedStats
from monitor.errors import MonitorError
from monitor.kernel import cgroupfs, meminfo
from monitor.pods.cgroup_tree import find_kubepods
from monitor.pods.source import Change, FoundPod, PodSource, open_source, pod_message
from monitor.policy.messages import eviction_message
from monitor.policy.pods import Pod
from monitor.policy.qos import qos_class
from monitor.policy.quantity import Quantity
from monitor.policy.signals import RESOURCE
from monitor.report.log import Log
from monitor.report.view import View
from monitor.report.worker import Worker

if TYPE_CHECKING:
    from monitor.actions.procfeed import ProcessFeed

#: How often the pod source is looked at where no event announces a change, or the hot process did not take all of it.
_POLL_S = 1.0
#: Pause between two tries to write to a state dir that is full or read-only.
_RETRY_S = 5.0
#: Evictions whose outcome is awaited; there is at most one per pass, so this is far beyond what can be under way.
_MAX_EVICTIONS = 256
#: si_code of a signal that the kernel itself sent (SI_KERNEL): the OOM killer, or a BPF program.
_SI_KERNEL = 128
#: Messages taken from the channel before the other descriptors have their turn.
_BATCH = 64
#: How long the log and the state dir get to finish when the daemon ends.
_CLOSE_S = 2.0
#: How long a message to the hot process may wait for room.
_SEND_TIMEOUT_S = 2


class Side:
    """The state of the side process and its main loop."""

    def __init__(self, config: RunConfig, sock: socket.socket, stats: SharedStats, listener: socket.socket) -> None:
        self.config = config
        self.sock = sock
        self.listener = listener
        self.lines = Worker("log")
        self.log = Log(config.log_format, worker=self.lines)
        self.files = Worker(
            "files",
            retry_s=_RETRY_S,
            on_error=self._state_dir_failed,
            on_recovered=lambda: self.log.info("state directory can be written again", path=config.state_dir),
        )
        self.reaper = Worker("reaper")
        self.store = StatusStore(Path(config.state_dir))
        hierarchy = cgroupfs.detect()
        mem_total = meminfo.mem_total()
        limit = cgroupfs.limit(Path(config.node_cgroup)) if config.node_cgroup else None
        self.view = View(
            config=config,
            hierarchy=hierarchy,
            capacity=mem_total if limit is None else limit,
            stats=stats,
            send=lambda message: channel.send(sock, message),
            hot_pid=os.getppid(),
            side_pid=os.getpid(),
        )
        self.scores = OomScores(hierarchy, self.view.capacity, config.enforce, self.log)
        self.source: PodSource = open_source(config.pods, hierarchy, mem_total)
        self.feed: ProcessFeed | None = None
        self.thresholds = config.thresholds()
        self._evictions: dict[str, Eviction] = {}
        self._ending = False
        self._reap_told: set[int] = set()
        self._by_cgroup: dict[int, str] = {}  # cgroup id of a pod or container -> uid
        self._untold: dict[str, dict[str, Any]] = {}  # uid -> the message about it that is yet to be sent
        self._handlers: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "log": self._on_log,
            "state": self._on_state,
            "decision": self._on_decision,
            "evicted": self._on_evicted,
            "reap": self._on_reap,
            "oom": self._on_oom,
        }

    # the loop

    def run(self) -> None:
        """Serve until the channel closes."""
        # The hot process waits for the pods. What it does not wait for comes after them, imports too.
        first = Change()
        try:
            first = self._learn()
        except MonitorError as error:
            self.log.error(str(error))
        self._open_pins()
        self._open_feed()  # before the pods' processes: one that appears while they are looked at must not be missed
        from monitor.daemon.endpoints import Endpoints

        Endpoints(self.listener, self.view, self.scores, self.files, self.lines, self.log)
        self.view.kubepods = self._kubepods(self.view.hierarchy)
        self._examine(first, {})
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        source_fd = self.source.fileno()
        if source_fd is not None:
            poll.register(source_fd, select.POLLIN)
        if self.feed is not None:
            poll.register(self.feed.fileno(), select.POLLIN)
        next_poll = time.monotonic() + self._pause_s()
        while not self._ending:
            self._guarded(self.scores.settle)
            due_ns = self.scores.due_ns()
            timeout = next_poll - time.monotonic()
            if due_ns is not None:
                timeout = min(timeout, due_ns / 1e9)
            ready = {fd for fd, _ in poll.poll(max(0.0, timeout * 1000))}
            if self.sock.fileno() in ready:
                self._read_channel()
            if self.feed is not None and self.feed.fileno() in ready:
                self._guarded(self.feed.consume)
            if source_fd in ready or time.monotonic() >= next_poll:
                self._guarded(self._poll_source)
                next_poll = time.monotonic() + self._pause_s()

    def _pause_s(self) -> float:
        """How long to wait for an event before the pods are looked at without one."""
        return _POLL_S if self._untold or not self.view.synced else max(_POLL_S, self.source.due_s())

    def close(self) -> None:
        """Let the queued files and log lines out, for a moment."""
        self.files.close(_CLOSE_S)
        self.lines.close(_CLOSE_S)

    def stop(self) -> None:
        """End the loop at its next turn."""
        self._ending = True

    def _guarded(self, step: Callable[[], object]) -> None:
        """One failed look at the world is an error in the log; the next look comes anyway."""
        try:
            step()
        except MonitorError as error:
            self.log.error(str(error))

    def _read_channel(self) -> None:
        for _ in range(_BATCH):
            try:
                data = self.sock.recv(channel.MAX_PACKET, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self._ending = True
                return
            message: dict[str, Any] = json.loads(data)
            handler = self._handlers.get(message.get("t", ""))
            if handler is None:
                self.log.warning("unknown message from the hot process", type=message.get("t"))
                continue
            self._guarded(lambda handler=handler, message=message: handler(message))  # type: ignore[misc]

    # kernel objects

    def _kubepods(self, hierarchy: cgroupfs.Hierarchy) -> Path | None:
        """The kubepods directory, if it belongs to the node that is watched."""
        path = find_kubepods(hierarchy)
        if path is None or (self.config.node_cgroup and not path.is_relative_to(self.config.node_cgroup)):
            return None
        return path

    def _open_pins(self) -> None:
        """Open the BPF table; without it the figures come from the cgroup files."""
        if not self.config.pin_dir:
            self.log.warning("no BPF objects: memory figures come from the cgroup files")
            return
        from monitor.kernel.domains import DomainTable
        from monitor.kernel.pins import Pins

        try:
            pins = Pins.open(self.config.pin_dir)
            self.view.table = DomainTable(pins)
            self.view.pins = pins
        except MonitorError as error:
            self.log.warning("memory figures come from the cgroup files", problem=str(error))

    def _open_feed(self) -> None:
        from monitor.actions import procfeed

        try:
            self.feed = procfeed.open_feed(self.view.pins, self.scores, self.log)
        except MonitorError as error:
            self.log.warning("new processes in pods are only seen when a pod changes", problem=str(error))

    # pods

    def _poll_source(self) -> None:
        before = self.view.pods
        self._examine(self._learn(), before)

    def _learn(self) -> Change:
        """What changed; the hot process is told first of all."""
        change = self.source.poll()
        if change.updated or change.removed:
            self._take(change)
        self._tell_hot()
        return change

    def _take(self, change: Change) -> None:
        pods = dict(self.view.pods)
        seen = dict(self.view.first_seen)
        for uid in change.removed:
            pods.pop(uid, None)
            seen.pop(uid, None)
            self._untold[uid] = {"t": "pod-", "uid": uid}
        for found in change.updated:
            uid = found.pod.uid
            pods[uid] = found
            seen.setdefault(uid, time.time())
            self._untold[uid] = pod_message(found)
        self.view.pods = pods
        self.view.first_seen = seen
        self._by_cgroup = {number: uid for uid, found in pods.items() for number in found.cgroup_ids}
        # Searching for it walks the whole tree, so only when a pod says that there is one.
        if self.view.kubepods is None and any("kubepods" in str(found.cgroup) for found in change.updated):
            self.view.kubepods = self._kubepods(self.view.hierarchy)

    def _examine(self, change: Change, before: Mapping[str, FoundPod]) -> None:
        """Log what changed since ``before``, and look at the processes of the pods."""
        for problem in change.problems:
            self.log.warning(problem)
        for uid in change.removed:
            self.scores.remove_pod(uid)
            self.log.info("pod gone", pod=_label(before[uid]) if uid in before else uid, uid=uid)
        for found in change.updated:
            uid = found.pod.uid
            if uid not in before:
                self.log.info(
                    "pod found", pod=_label(found), uid=uid, qos=qos_class(found.pod), cgroup=str(found.cgroup)
                )
            self._guarded(lambda found=found: self.scores.set_pod(found))  # type: ignore[misc]

    def _tell_hot(self) -> None:
        """Send what the hot process does not know yet; what does not get through is tried again at the next look."""
        for uid, message in list(self._untold.items()):
            if not channel.send(self.sock, message):
                self.log.warning("the hot process takes no messages; trying again", waiting=len(self._untold))
                return
            del self._untold[uid]
        if not self.view.synced:
            self.view.synced = channel.send(self.sock, {"t": "synced"})

    # messages of the hot process

    def _on_log(self, message: Mapping[str, Any]) -> None:
        fields = {key: value for key, value in message.items() if key not in ("t", "level", "msg")}
        self.log(message["level"], message["msg"], **fields)

    def _on_state(self, message: Mapping[str, Any]) -> None:
        before = self.view.state.get("conditions", [])
        self.view.state = message
        if message["conditions"] != before:
            self.log.warning("node conditions changed", conditions=message["conditions"], before=before)

    def _on_decision(self, message: Mapping[str, Any]) -> None:
        self.view.decisions[message["signal"]] += 1
        found = self.view.pods.get(message["pod"])
        fields = {key: value for key, value in message.items() if key not in ("t", "pod", "name")}
        fields["uid"] = message["pod"]
        if found is None:
            self.log.error("decided on a pod unknown here", **fields)
            return
        text, annotations = eviction_message(
            found.pod,
            RESOURCE[message["signal"]],
            self._quantity(message),
            message["available"],
            message["containers"],
            message["working_set"],
        )
        fields |= {"pod": _label(found), "message": text}
        self.log.warning("would evict" if message["observed"] else "evicting", **fields)
        if message["observed"]:
            return
        eviction = Eviction(
            id=str(message["id"]),
            pod=found.pod,
            qos=qos_class(found.pod),
            message=text,
            annotations=annotations,
            started=self.view.first_seen[found.pod.uid],
            decided=message["realtime"],
            node=os.uname().nodename,
        )
        while len(self._evictions) >= _MAX_EVICTIONS:
            self._evictions.pop(next(iter(self._evictions)))
        self._evictions[eviction.id] = eviction
        self.files.submit(lambda: self.store.write(eviction))

    def _quantity(self, decision: Mapping[str, Any]) -> Quantity | int:
        """The threshold's value in the spelling it was configured with, as the kubelet prints it."""
        for threshold in self.thresholds:
            same = threshold.signal == decision["signal"] and threshold.hard == (decision["kind"] == "hard")
            if same and threshold.quantity(decision["capacity"]) == decision["quantity"]:
                return threshold.value.shown(decision["capacity"])
        return int(decision["quantity"])

    def _on_evicted(self, message: Mapping[str, Any]) -> None:
        eviction = self._evictions.pop(str(message["id"]), None)
        fields = {key: value for key, value in message.items() if key not in ("t", "pod")}
        fields |= {"uid": message["pod"], "pod": _label_of(eviction.pod) if eviction is not None else None}
        self.log.info("evicted", **fields)
        if eviction is not None:
            self.files.submit(lambda: self.store.finish(eviction, message))

    def _state_dir_failed(self, error: OSError) -> None:
        self.log.error(
            "state directory cannot be written; trying again",
            path=str(error.filename or self.config.state_dir),
            errno=error.errno,
            problem=error.strerror,
            every_s=_RETRY_S,
        )

    def _on_reap(self, message: Mapping[str, Any]) -> None:
        pids = list(message["pids"])
        self.reaper.submit(lambda: self._reap(pids))

    def _reap(self, pids: list[int]) -> None:
        from monitor.actions.reap import reap

        for code in reap(pids).failed:
            if code not in self._reap_told:
                self._reap_told.add(code)
                self.log.warning(
                    "process_mrelease failed; the kernel frees by itself", errno=code, problem=os.strerror(code)
                )

    def _on_oom(self, message: Mapping[str, Any]) -> None:
        """One step of an OOM kill: ``mark`` (the kernel chose a victim), ``kill`` (SIGKILL generated), ``exit``."""
        uid = message["pod"] or self._by_cgroup.get(message["victim_cgroup"])
        found = self.view.pods.get(uid) if uid is not None else None
        pod = _label(found) if found is not None else message["pod_name"]
        if message["kind"] != "mark":
            # Only the mark knows whose limit was hit and what the victim held.
            known = {key: message[key] for key in ("ts_ns", "victim_pid", "victim_comm", "victim_cgroup")}
            if message["kind"] == "exit":
                self.log.info("a killed process is gone", pod=pod, **known)
            elif message["si_code"] == _SI_KERNEL:
                self.log.info("SIGKILL by the kernel", pod=pod, **known)
            elif message["invoker_pid"] != self.view.hot_pid:  # our own kills are reported as evictions
                sender = {key: message[key] for key in ("invoker_pid", "invoker_comm", "si_code")}
                self.log.info("SIGKILL by a process: no OOM kill", pod=pod, **known, **sender)
            return
        fields = {key: value for key, value in message.items() if key not in ("t", "kind", "pod", "pod_name")}
        scope = "memcg" if message["oom_cgroup"] else "global"
        if message["exiting"]:
            self.log.info("OOM killer chose a process that was exiting anyway", pod=pod, scope=scope, **fields)
            return
        self.view.oom_kills[scope] += 1
        self.log.warning("the kernel's OOM killer killed a process", pod=pod, scope=scope, **fields)


def _label(found: FoundPod) -> str:
    return _label_of(found.pod)


def _label_of(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"


def main() -> int:
    """Run as the hot process starts it: three descriptors named in the environment."""
    config = RunConfig.from_fd(int(os.environ[CONFIG_FD]))
    sock = socket.socket(fileno=int(os.environ[CHANNEL_FD]))
    # Reading never waits (MSG_DONTWAIT). Sending may, but not for ever on a hot process that is stopped.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SEND_TIMEOUT_S, 0))
    stats = SharedStats(int(os.environ[STATS_FD]))
    listener = socket.socket(fileno=config.listen_fd)
    listener.setblocking(False)  # a client that hangs up between readiness and accept must not hold up the others
    # Ctrl-C reaches the whole process group; the hot process ends first and says so through the channel.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Path("/proc/self/comm").write_text("outrace-side")
    try:
        side = Side(config, sock, stats, listener)
        signal.signal(signal.SIGTERM, lambda *_: side.stop())
        side.run()
    except MonitorError as error:
        Log(config.log_format).error(str(error), process="side")
        return error.exit_code
    side.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
