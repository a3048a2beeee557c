"""The HTTP endpoints of the daemon: /metrics, /healthz, /readyz, /stats/summary; and the socket in the run directory on
which commands ask this daemon about itself. Requests make the hot process sweep at most.

A module of its own: the helper imports it only after it has sent the hot process the pods, because the import takes 17
ms. /stats/summary is the part of the kubelet's Summary API that is about memory, with exact numbers: same names, same
shape, bytes, RFC 3339 times, so that what reads a kubelet's answer can read this one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor import __version__
from monitor.actions.status import timestamp
from monitor.kernel.cgroupfs import Reading
from monitor.link.daemon_socket import (
    INFO_PATH,
    PROTOCOL,
    SOCKET,
    SUMMARY_PATH,
    DaemonInfo,
    address,
    check_directory,
    opened,
)
from monitor.pods.model import FoundPod
from monitor.race.badness import Victim
from monitor.side.export.http import FRESH_S, RENDER_SHARE, Response, Route, Server, Shared, text
from monitor.side.export.log import Log, LogBudget
from monitor.side.health import Health
from monitor.side.node_state import Figures, NodeState

if TYPE_CHECKING:
    from monitor.side.export.metrics import Metrics
    from monitor.side.races import Races


def serve(
    listener: socket.socket, health: Health, summary: Summary, metrics: Callable[[Server], Metrics], log: Log
) -> None:
    """Answer on ``listener`` (bound already). ``metrics`` makes them."""

    budget = LogBudget(log)  # clients decide how often it fails

    def failed(problem: str) -> None:
        budget("error", "http request failed", problem=problem)

    @cache
    def made() -> Metrics:
        """Made at the first scrape, by the thread that renders: prometheus_client costs 4 MB on top of the server."""
        return metrics(server)

    def healthz(_accept: str) -> Response:
        if not health.side_lives():
            return text(503, "the helper's main loop stands still")
        return text(200, "ok") if health.hot_lives() else text(503, "the hot loop stands still")

    def readyz(_accept: str) -> Response:
        reason = health.not_ready()
        return text(503, reason) if reason else text(200, "ok")

    renderings = {
        "/metrics": lambda accept: made().render(accept),
        "/stats/summary": lambda _: summary.respond(),
    }
    routes = {path: Shared({path: route}, failed) for path, route in {"/healthz": healthz, "/readyz": readyz}.items()}
    routes |= dict.fromkeys(renderings, Shared(renderings, failed, RENDER_SHARE, FRESH_S))
    server = Server(listener, routes, failed, summary.node.config.expose_metrics)
    server.start()


@dataclass(frozen=True)
class Summary:
    """``races()``: None until they are judged."""

    node: NodeState
    figures: Figures
    health: Health
    races: Callable[[], Races | None]

    def respond(self) -> Response:
        """Of this moment; from any thread, without a request to the hot process. Far from every threshold the counters
        stand still, and the figures are those of the cgroup files then.
        """
        return Response(200, "application/json", json.dumps(self.made()).encode())

    def made(self) -> dict[str, Any]:
        """The Summary object: node, its "pods" system container (kubepods), and every pod with its containers."""
        node, races = self.node, self.races()
        now, started = timestamp(time.time()), timestamp(node.started)
        domains = self.figures.domains()
        containers = [
            {"name": "pods", "startTime": started, "memory": _memory(domains[name], now)}
            for name in domains.keys() & {"kubepods"}
        ]
        shown = {"nodeName": os.uname().nodename, "startTime": started, "memory": _memory(domains["node"], now)}
        # The key "outrace" is ours; a reader of a kubelet's summary ignores keys that it does not know.
        ours = {
            "braked": node.braked,
            "held": node.shown_holds(),
            "kernel_victim": None if races is None else _victim(races.kernels_victim(waits=True)[0]),
            "stalls": {} if races is None else {uid: round(share, 3) for uid, share in races.stalls.shares.items()},
            "status": self._status(),
        }
        pods = [self._pod(found, now) for found in node.pods.values()]
        return {"node": shown | {"systemContainers": containers}, "pods": pods, "outrace": ours}

    def _status(self) -> dict[str, Any]:
        """How the daemon works and what it has lost, for `outrace top`."""
        node, stats = self.node, self.figures.stats
        return {
            "mode": node.config.mode,
            "rung": node.config.rung,
            "trigger": None if node.state is None else node.config.trigger,
            "armed": bool(stats.get("armed")),
            "bound_bytes": self.figures.bound().unseen_bytes,
            "not_ready": self.health.not_ready() or None,
            "conditions": list(node.conditions),
            "lost": self.figures.lost(),  # where -> records
        }

    def _pod(self, found: FoundPod, now: str) -> dict[str, Any]:
        pod, used = found.pod, partial(self.figures.used, limited=True)
        started = timestamp(self.node.first_seen.get(pod.uid, self.node.started))
        read = {name: reading for name, path in found.containers.items() if (reading := used(path)) is not None}
        whole = used(found.cgroup)
        return {
            "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "startTime": started,
            "containers": [
                {"name": name, "startTime": started, "memory": _memory(reading, now)} for name, reading in read.items()
            ],
        } | ({} if whole is None else {"memory": _memory(whole, now)})


def _victim(found: Victim | None) -> dict[str, Any] | None:
    if found is None:
        return None
    process = found.process
    names = {"pid": process.pid, "comm": process.comm, "pod": process.pod_name, "uid": process.pod}
    return {**names, "points": found.points, "rss": process.rss, "oom_score_adj": process.oom_score_adj}


def _memory(reading: Reading, now: str) -> dict[str, Any]:
    # inactiveFileBytes and activeFileBytes are ours: the kubelet leaves out what its working set is made of.
    memory: dict[str, Any] = {
        "time": now,
        "usageBytes": reading.usage,
        "workingSetBytes": reading.working_set,
        "inactiveFileBytes": reading.inactive_file,
        "activeFileBytes": reading.active_file,
    }
    if reading.available is not None:
        memory["availableBytes"] = reading.available
    return memory


#: Connections at the same time. `outrace top` needs one.
MAX_COMMANDS = 16
_BACKLOG = 16
#: The part of a CPU that answers of one path may take. The summary of 500 pods takes some 10 ms, so that ten a second
#: are answered; `outrace top` asks for one.
CPU_SHARE = 0.1


def serve_commands(node: NodeState, health: Health, summary: Summary, log: Log) -> None:
    """Serve root on a socket in the run directory. Without a usable one the daemon logs a warning and runs without.
    What is left of it when this process has ended refuses clients, and the next helper replaces it.

    Clients get a bounded number of connections, bytes and seconds (`monitor.side.export.http`) and a bounded share of
    a CPU (`Shared`).
    """
    path, budget = Path(node.config.run_dir, SOCKET), LogBudget(log)
    try:
        listener = _bound(path.parent)
    except OSError as error:
        about = {"run_dir": str(path.parent), "problem": error.strerror or str(error)}
        log.warning("commands cannot ask this daemon: no socket in the run directory", **about)
        return

    def failed(problem: str) -> None:
        budget("error", "request on the daemon's socket failed", problem=problem)

    routes: dict[str, Route] = {
        INFO_PATH: lambda _: _info(node, health),
        SUMMARY_PATH: lambda _: summary.respond(),
    }
    paced = {name: Shared({name: route}, failed, CPU_SHARE) for name, route in routes.items()}
    Server(listener, paced, failed, max_connections=MAX_COMMANDS, share=CPU_SHARE).start()


def _bound(run_dir: Path) -> socket.socket:
    """A listening socket under its name, of mode 0600 before a client can connect. Raises OSError."""
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with opened(run_dir) as directory:
        check_directory(directory)
        with contextlib.suppress(FileNotFoundError):  # of a helper that has ended
            os.unlink(SOCKET, dir_fd=directory)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address(directory))
        os.chmod(SOCKET, 0o600, dir_fd=directory)
        listener.listen(_BACKLOG)
    return listener


def _info(node: NodeState, health: Health) -> Response:
    info = DaemonInfo(
        protocol=PROTOCOL,
        version=__version__,
        hot_pid=node.hot_pid,
        side_pid=node.side_pid,
        started=node.started,
        not_ready=health.not_ready(),
        conditions=list(node.conditions),
        config=json.loads(node.config.to_json()),
    )
    return Response(200, "application/json", info.to_json())
