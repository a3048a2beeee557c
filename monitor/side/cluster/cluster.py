"""Reports to the API server what happens on its node: the status of evicted pods, events, node conditions and taints.

Two threads (with `--evict-by api` three), so that events and conditions do not delay a status. The connection is kept
open: a patch then takes one round trip.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from monitor.actions.status import EvictedPod, event, events_of, status_patch
from monitor.errors import MonitorError
from monitor.kernel.sched import hurry
from monitor.kube.client import ApiClient
from monitor.kube.cluster import ClusterConfig
from monitor.kube.retry import Retry, turning
from monitor.pods.access import Access
from monitor.policy.qos import is_mirror, is_static
from monitor.settings.config import RunConfig
from monitor.side.cluster.api_evictions import ApiEvictions
from monitor.side.cluster.node import NodeReport
from monitor.side.cluster.reports import TIMEOUT_S, Report, Reports
from monitor.side.disk_watch import DiskWatch
from monitor.side.export.log import Log
from monitor.side.node_state import NodeState, OtherEviction

#: An idle connection gets a request this often: an API server, and a proxy before it, close idle connections.
WARM_S = 30.0
#: How soon a change of the node's conditions is written.
_TURN_S = 1.0
#: How long the taints of the node get to be removed when the daemon ends, and one request of that.
_END_S = 2.0
_END_REQUEST_S = 1.0


def find_place(config: RunConfig, log: Log) -> tuple[ClusterConfig, str] | None:
    """The API server of the cluster that the pods come from, and the node's name there; None without access to it."""
    access, text = Access.found(config), "evictions are in the log and in incidents alone"
    try:
        (server, whose), node = access.api_server(), access.node
    except MonitorError as error:
        log.warning(text, problem=str(error))
        return None
    log.info("evictions are reported to the API server", server=str(server.server), by=whose, node=node)
    return server, node


@dataclass(eq=False)
class Cluster:
    """`evicting` may be called from any thread and never waits. ``report`` gets evictions by the API server."""

    server: ClusterConfig
    name: str  # of the node
    node: NodeState
    disks: DiskWatch
    report: Callable[[OtherEviction], object]
    log: Log
    on_status_not_taken: Callable[[Report, str, str], object] = lambda *_: None

    def __post_init__(self) -> None:
        self._stop, self._ended = threading.Event(), threading.Event()  # the second: no more requests
        self._client = client = ApiClient(self.server, self._stop)
        self.reports = Reports(client, self.log, self.on_status_not_taken)
        self._node_report = NodeReport(client, self.name, self.node, self.log)
        about = client, self.node, self.disks, self.report, self.log
        #: None but with `--evict-by api`.
        self.evictions = ApiEvictions(*about) if self.node.config.asks_api else None
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)
        self._warmth = Retry(self.log, first_s=2 * _TURN_S, cap_s=2 * _TURN_S)

    def start(self) -> None:
        threading.Thread(target=self._write_statuses, name="statuses", daemon=True).start()
        self._thread.start()
        if self.evictions is not None:
            about = self.evictions.turn, self._stop, self.evictions.woken
            threading.Thread(target=turning, args=about, name="evictions", daemon=True).start()

    def close(self) -> None:
        """What was not sent is lost. Our taints are removed, within `_END_S`."""
        self._stop.set()
        self.reports.event_due.set()
        self.reports.status_due.set()
        if self.evictions is not None:
            self.evictions.woken.set()
        self._client.close()
        if self._node_report.own_taints and self._thread.is_alive():
            self._thread.join(_END_S)
        self._ended.set()

    def evicting(self, eviction: EvictedPod, signalled_ns: int, in_grace: bool = False) -> None:
        """A pod was signalled at ``signalled_ns`` (CLOCK_MONOTONIC). ``in_grace``: with SIGTERM, and it may write on.
        Its events are sent at once, its status when it `ended`: a StatefulSet's controller deletes a Failed pod and
        starts the next one under its name, and kubelets since 1.22 report a terminal phase when all containers have
        ended.
        """
        pod, patch = eviction.pod, status_patch(eviction)
        report = Report(pod.namespace, pod.name, pod.uid, events_of(eviction), patch, in_grace)
        if is_static(pod) or is_mirror(pod):
            # Its kubelet reads the pod from a file and overwrites the mirror pod's status: ours would not stay.
            report.patch = None
        self.reports.add(report, _age_s(signalled_ns))

    def ended(self, uid: str, ended_ns: int) -> None:
        """The grace of a pod is over: it got its SIGKILL, or no process was left in it, at ``ended_ns``."""
        self.reports.ended(uid, _age_s(ended_ns))

    def pod_event(self, uid: str, title: str, reason: str, text: str, *, warns: bool) -> None:
        """An event on a pod, of now; it waits for the server."""
        namespace, _, name = title.rpartition("/")
        about = {"kind": "Pod", "namespace": namespace, "name": name, "uid": uid}
        made = event(about, reason, text, self.name, time.time(), warns=warns, suffix=f".{reason.lower()}")
        self.reports.add(Report(namespace, name, uid, [made]))

    def _write_statuses(self) -> None:
        hurry()  # ahead of ordinary threads: a kubelet's relist does not wait
        turning(self.reports.write_statuses, self._stop, self.reports.status_due)

    def _run(self) -> None:
        turning(self._turn, self._stop, self.reports.event_due)
        if self._node_report.own_taints:
            client = ApiClient(self.server, self._ended, timeout_s=_END_REQUEST_S, connect_s=_END_REQUEST_S)
            self._node_report.end(client)
            client.close()

    def _turn(self) -> float:
        self._warm()
        wait_s = self.reports.send_events()
        self._node_report.write_conditions()
        self._node_report.write_taints()
        return _TURN_S if wait_s is None else min(_TURN_S, wait_s)

    def _warm(self) -> None:
        if time.monotonic() < self._warmth.due:
            return
        try:
            self._client.warm(TIMEOUT_S)
        except MonitorError as error:
            self._warmth.failed(error, "the API server does not answer; status and events wait")
        else:
            self._warmth.works("the API server answers again", server=self._client.address)
            self._warmth.due = time.monotonic() + WARM_S


def _age_s(since_ns: int) -> float:
    return max(0.0, (time.monotonic_ns() - since_ns) / 1e9)
