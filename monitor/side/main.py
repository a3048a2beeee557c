"""The helper process: everything of the daemon that may block. `python -m monitor.side.main`, started by the hot
process.

One `poll` loop owns the channel; what can block for real (manifests, files, a stuck stderr, process_mrelease, HTTP
clients) or takes long (the processes of pods) runs in threads. It keeps nothing that must survive: killed and started
again, it sends all pods anew. It ends when the channel closes, because then the hot process has ended.
"""

from __future__ import annotations

import gc
import os
from contextlib import suppress

if __name__ == "__main__":
    # Before anything else is imported: see `monitor.kernel.sched.STARTING`. The hot process, which is real-time and
    # resets on fork, leaves its child at 0; what it did about that could come after `started`, and stayed.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)

import select
import signal
import socket
import struct
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs, meminfo
from monitor.kernel.charging import POLL
from monitor.kernel.disks import find_disks
from monitor.kernel.sched import hurry, started
from monitor.kernel.timer import Timer
from monitor.link import channel
from monitor.link.counters import SharedStats
from monitor.link.heartbeat import HEARTBEAT_NS, Heartbeat
from monitor.link.upgrade import refuse_other_code
from monitor.pods.model import Ends
from monitor.pods.source import open_for
from monitor.pods.spec import CLUSTER, check_spec
from monitor.race.events import KubeletEvicted
from monitor.settings.config import CHANNEL_FD, CONFIG_FD, HEARTBEAT_FD, STATS_FD, RunConfig
from monitor.side.disk_watch import DiskWatch
from monitor.side.export.log import Log
from monitor.side.health import Health, HotWatch
from monitor.side.holds import Holds
from monitor.side.left_changes import LeftChanges
from monitor.side.message_handler import MessageHandler
from monitor.side.node_state import Figures, Inbox, NodeState
from monitor.side.pod_watch import PodSender, PodWatch
from monitor.side.process_watch import ProcessWatch
from monitor.side.worker import Worker

if TYPE_CHECKING:
    from monitor.side.cluster.cluster import Cluster
    from monitor.side.export.http import Server
    from monitor.side.export.metrics import Metrics
    from monitor.side.races import Races

#: How often a message that the hot process did not take is sent again.
_RESEND_S = 1.0
#: How long the first look at the pods may take before the rest is started beside it.
_FIRST_LOOK_S = 2.0
#: Lines of the log that may wait for their reader (1.5 KB each). Where 30 pods kept 2 CPUs busy a reader came so late
#: that 171 of 2900 in 8.5 s did not fit into 1024.
_LINES = 4096
#: How long the log and the state dir get to finish when the daemon ends, each of them.
_CLOSE_S = 2.0
#: The same for incidents: no other process knows of them. (`supervise.Side.stop` has to wait longer than all of it.)
_INCIDENTS_S = 8.0
#: How long a message to the hot process may wait for room.
_SEND_TIMEOUT_S = 2
#: New objects, some 5 MB, beyond which the interpreter looks for cycles. It does where most is allocated, at an
#: eviction, and that delays every thread: with its own 700, and all objects looked at, 10 to 60 ms with 10 pods.
NEW_OBJECTS = 50_000
#: How soon a thread gives way to another one: at the interpreter's own 5 ms each answer of the API server that a thread
#: has waited for costs up to 5 ms beside a thread that computes.
SWITCH_S = 0.0005


def collect_rarely() -> None:
    """Collect cycles only beyond `NEW_OBJECTS`, and never what exists now."""
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 10, 10)


class Side:
    # From `run` on, when the hot process knows its pods.
    races: Races
    messages: MessageHandler

    def __init__(
        self, config: RunConfig, sock: socket.socket, stats: SharedStats, listener: socket.socket, timer: Timer
    ) -> None:
        self.config = config
        self.heartbeat = Heartbeat(stats, timer)
        self.heartbeat.ping()
        self.sock = sock
        self.listener = listener
        self.lines = Worker("log", _LINES)
        self.log = Log(config.log_format, worker=self.lines)
        hierarchy = cgroupfs.detect()
        self.left_changes = LeftChanges(config, hierarchy, self.log)
        self.cluster: Cluster | None = None
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.send = partial(channel.send, sock)
        self.inbox = Inbox(self.wake)
        disks, mem_total = find_disks(config.nodefs, config.imagefs), meminfo.mem_total()
        limit = cgroupfs.limit(Path(config.node_cgroup)) if config.node_cgroup else None
        about = mem_total if limit is None else limit, os.getppid(), os.getpid()
        self.node = node = NodeState(config, hierarchy, *about, thresholds=config.thresholds())
        self.holds = Holds(node, self.log, self.send, config.holds)
        self._failure: Exception | None = None  # that one of the threads died of
        self.disks = DiskWatch(config, disks, lambda: node.pods, self.send, self._failed, self.log)
        found = hierarchy, mem_total, node.node_path, (node.hot_pid, node.side_pid), Path(config.state_dir)
        ends = Ends(self._kubelet_evicted, self.holds.evicted)
        self.watch = PodWatch(open_for(config, *found, ends), self.wake, self._failed)
        self.figures = figures = Figures(node, stats, self.send)
        self.health = Health(node, figures, self.wake, self.watch, self.disks)
        self.processes = ProcessWatch(node, figures, self.log, self.watch.doubt, self._failed)
        self.pods = PodSender(node, self.watch, sock, self.log)
        self._poll = select.poll()
        self._ending = False

    def run(self) -> None:
        # The hot process waits for the pods. What it does not wait for comes after them, imports too.
        self.watch.start()
        self.left_changes.at_start()
        self._wait_for_pods()
        self.pods.turn()
        self._open_pins()
        self.processes.open()
        self._open_doors()
        self.disks.start()
        started()  # the hot process has what it waits for
        self.processes.start()
        self._open_races()
        self._open_cluster()
        parts = self.figures, self.holds, self.disks, self.log
        self.messages = MessageHandler(*parts, self.races.handle, self.cluster)
        for fd in (self.sock.fileno(), self._wake_fd, self.races.fileno()):
            if fd is not None:
                self._poll.register(fd, select.POLLIN)
        collect_rarely()
        if not hurry():
            self.log.warning("incidents and alerts may be seconds late on busy CPUs; give it CAP_SYS_NICE")
        while not self._ending:
            self.heartbeat.ping()
            ready = self._poll.poll(1000 * min(self._due_s(), HEARTBEAT_NS / 1e9))
            self._turn({fd for fd, _ in ready})

    def _turn(self, ready: set[int]) -> None:
        self.health.turns += 1
        if self.sock.fileno() in ready:
            self._read_channel()
            if self.node.state is not None and self.node.state.ready:
                self.left_changes.at_ready()
        self.log.budget.flush()
        if (log_fd := self.races.fileno()) in ready:
            self.races.read_log()
            if log_fd is not None and self.races.fileno() is None:
                self._poll.unregister(log_fd)
        if self._wake_fd in ready:
            self._pods_changed()
        elif self.pods.pending:
            self.pods.send()
        if self.races.due_s() <= 0:
            self.races.turn()

    def _pods_changed(self) -> None:
        os.eventfd_read(self._wake_fd)
        if self._failure is not None:
            raise self._failure
        before = self.node.pods
        self.pods.turn()
        if self.node.pods is not before:
            self.disks.pods_changed()
            self.processes.wake()

    def _open_doors(self) -> None:
        """HTTP for scrapers and for commands; and the watch for a hot process that hangs."""
        from monitor.side.endpoints import Summary, serve, serve_commands

        HotWatch(self.node.hot_pid, self.health, self.log).start()
        summary = Summary(self.node, self.figures, self.health, lambda: getattr(self, "races", None))
        serve(self.listener, self.health, summary, self._metrics, self.log)
        serve_commands(self.node, self.health, summary, self.log)

    def _wait_for_pods(self) -> None:
        deadline = time.monotonic() + _FIRST_LOOK_S
        while time.monotonic() < deadline and not self.watch.wait_known(HEARTBEAT_NS / 2e9):
            self.heartbeat.ping()

    def _due_s(self) -> float:
        due_s = self.races.due_s()
        return max(0.0, min(due_s, _RESEND_S) if self.pods.pending else due_s)

    def wake(self) -> None:
        """Make the loop turn, from another thread: pods or disks changed, or a probe wants to see it turn."""
        os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        self.heartbeat.ping()
        self.processes.close(_CLOSE_S)
        self.messages.soft_brakes.close(_CLOSE_S)
        self.disks.close(_CLOSE_S)
        if self.cluster is not None:
            self.cluster.close()
        self.log.budget.flush(at_once=True)
        self.races.close(_CLOSE_S, _INCIDENTS_S)
        self.left_changes.at_end(self.listener)
        self.lines.close(_CLOSE_S)

    def stop(self) -> None:
        self._ending = True

    def _read_channel(self) -> None:
        for message in channel.drain(self.sock):
            self.heartbeat.ping()
            if message is None:
                self._ending = True
                return
            self.messages.handle(message)
            self.processes.handle(message)  # by the node's state, which has the message now

    def _open_pins(self) -> None:
        """Open the BPF table; without it the figures come from the cgroup files."""
        if self.config.rung == POLL:
            return
        try:
            self.figures.open()
        except MonitorError as error:
            self.log.warning("memory figures come from the cgroup files", problem=str(error))

    def _metrics(self, server: Server) -> Metrics:
        from monitor.side.export.metrics import Metrics

        parts = self.health, self.holds, self.log, self.processes
        return Metrics(*parts, server, lambda: (getattr(self, "races", None), self.cluster))

    def _open_races(self) -> None:
        """The code that judges races is imported when the hot process knows its pods."""
        from monitor.side.races import Races

        self.races = Races(self.node, self.figures, self.holds, self.inbox, self.log, self.send)
        self.races.stalls.start()

    def _open_cluster(self) -> None:
        """Report to the cluster that the pods come from, if any; its client, some MB, is imported only then."""
        if check_spec(self.config.pods)[0] in CLUSTER:
            from monitor.side.cluster.cluster import Cluster, find_place

            if (place := find_place(self.node.config, self.log)) is not None:
                parts = *place, self.node, self.disks, self.inbox.report, self.log
                self.cluster = Cluster(*parts, self.races.status_not_taken)
                self.cluster.start()

    def _kubelet_evicted(self, uid: str, name: str, message: str) -> None:
        self.inbox.report(KubeletEvicted(time.monotonic_ns(), uid, name, message))

    def _failed(self, error: Exception) -> None:
        self._failure = error
        self.wake()


def main() -> int:
    """Run as the hot process starts it: its descriptors are named in the environment."""
    refuse_other_code()
    config, sock = RunConfig.from_fd(int(os.environ[CONFIG_FD])), socket.socket(fileno=int(os.environ[CHANNEL_FD]))
    # Reading never waits (MSG_DONTWAIT). Sending may, but not for ever on a hot process that is stopped.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SEND_TIMEOUT_S, 0))
    stats, listener = SharedStats(int(os.environ[STATS_FD])), socket.socket(fileno=config.listen_fd)
    # Both reach the whole process group or unit; the hot process ends first (Ctrl-C), or logs it (SIGHUP).
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    Path("/proc/self/comm").write_text("outrace-side")
    try:
        timer = Timer(int(os.environ[HEARTBEAT_FD]) if HEARTBEAT_FD in os.environ else None)
        side = Side(config, sock, stats, listener, timer)
        signal.signal(signal.SIGTERM, lambda *_: side.stop())
        side.run()
    except MonitorError as error:
        Log(config.log_format).error(str(error), process="side")
        return error.exit_code
    side.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
