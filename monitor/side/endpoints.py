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
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor import __version__
from monitor.actions.status import timestamp
from monitor.kernel.cgroupfs import Reading
from monitor.link.daemon_socket import (
    INFO_PATH,
    LIVE_PATH,
    PROTOCOL,
    SOCKET,
    SUMMARY_PATH,
    DaemonInfo,
    address,
    check_directory,
    opened,
)
from monitor.pods.model import FoundPod
from monitor.side.export.http import FRESH_S, RENDER_SHARE, Response, Route, Server, Shared, text
from monitor.side.export.log import Log
from monitor.side.health import Health
from monitor.side.node_state import Figures, NodeState
from monitor.side.reload import Reloader

if TYPE_CHECKING:
    from monitor.side.export.metrics import Metrics
    from monitor.side.races import Races


def serve(
    listener: socket.socket, health: Health, summary: Summary, metrics: Callable[[Server], Metrics], log: Log
) -> None:
    """Answer on ``listener`` (bound already). ``metrics`` makes them."""

    def failed(problem: str) -> None:
        log.error("http request failed", problem=problem)

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

    def respond(self, *, is_live: bool = False) -> Response:
        """Of this moment; from any thread. May wait 0.5 s for counters that are brought up to date, unless ``is_live``:
        without a request to the hot process. Far from every threshold the counters stand still, and the figures are
        those of the cgroup files then.
        """
        if not is_live:
            self.figures.refresh()
        counted = not is_live or self.figures.is_counted()
        return Response(200, "application/json", json.dumps(self.made(counted)).encode())

    def made(self, counted: bool = True) -> dict[str, Any]:
        """The Summary object: node, its "pods" system container (kubepods), and every pod with its containers.
        ``counted``: by the kernel programs, where they count.
        """
        node, races = self.node, self.races()
        now = timestamp(time.time())
        domains = self.figures.domains(counted)
        shown: dict[str, Any] = {
            "nodeName": os.uname().nodename,
            "startTime": timestamp(node.started),
            "memory": _memory(domains["node"], now),
            "systemContainers": [],
        }
        if "kubepods" in domains:
            shown["systemContainers"].append(
                {"name": "pods", "startTime": timestamp(node.started), "memory": _memory(domains["kubepods"], now)}
            )
        pods = [self._pod(found, now, counted) for found in node.pods.values()]
        # The key "outrace" is ours; a reader of a kubelet's summary ignores keys that it does not know.
        forecasts = [] if races is None else races.forecaster.report()
        ours = {"braked": node.braked, "held": node.shown_holds(), "forecasts": forecasts}
        shares = {} if races is None else {uid: round(share, 3) for uid, share in races.stalls.shares.items()}
        ours |= {"stalls": shares, "status": self._status()}
        return {"node": shown, "pods": pods, "outrace": ours}

    def _status(self) -> dict[str, Any]:
        """How the daemon works and what it has lost, for `outrace top`."""
        node, stats = self.node, self.figures.stats
        return {
            "mode": node.config.mode,
            "rung": node.config.rung,
            "trigger": None if node.state is None else node.config.trigger,
            "armed": bool(stats.get("armed")),
            "bound_bytes": stats.get("bound_bytes"),
            "not_ready": self.health.not_ready() or None,
            "conditions": list(node.conditions),
            "lost": self.figures.lost(),  # where -> records
        }

    def _pod(self, found: FoundPod, now: str, counted: bool) -> dict[str, Any]:
        pod = found.pod
        started = timestamp(self.node.first_seen.get(pod.uid, self.node.started))
        result: dict[str, Any] = {
            "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "startTime": started,
            "containers": [],
        }
        reading = self.figures.used(found.cgroup, counted, limited=True)
        if reading is not None:
            result["memory"] = _memory(reading, now)
        for name, path in found.containers.items():
            reading = self.figures.used(path, counted, limited=True)
            if reading is not None:
                result["containers"].append({"name": name, "startTime": started, "memory": _memory(reading, now)})
        return result


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


class DaemonSocket:
    """Serves root on a socket in the run directory from `open` to `close`.

    Clients get a bounded number of connections, bytes and seconds (`monitor.side.export.http`) and a bounded share of
    a CPU (`Shared`).
    """

    def __init__(self, node: NodeState, health: Health, summary: Summary, reloader: Reloader, log: Log) -> None:
        self._node, self._health, self._summary, self._reloader, self._log = node, health, summary, reloader, log
        self.path = Path(node.config.run_dir, SOCKET)
        self._inode = 0
        self._server: Server | None = None

    def open(self) -> None:
        """Serve. Without a usable run directory the daemon logs a warning and runs without a socket."""
        try:
            listener = self._bound()
        except OSError as error:
            problem = error.strerror or str(error)
            self._log.warning(
                "commands cannot ask this daemon: no socket in the run directory",
                run_dir=str(self.path.parent),
                problem=problem,
            )
            return
        routes: dict[str, Route] = {
            INFO_PATH: self._info,
            SUMMARY_PATH: lambda _: self._summary.respond(),
            LIVE_PATH: lambda _: self._summary.respond(is_live=True),
        }
        paced = {path: Shared({path: route}, self._failed, CPU_SHARE) for path, route in routes.items()}
        self._server = Server(listener, paced, self._failed, max_connections=MAX_COMMANDS, share=CPU_SHARE)
        self._server.start()

    def _failed(self, problem: str) -> None:
        self._log.error("request on the daemon's socket failed", problem=problem)

    def close(self) -> None:
        """Remove the socket, unless the next helper has replaced it already."""
        if self._server is None:
            return
        with contextlib.suppress(OSError), opened(self.path.parent) as directory:
            if os.stat(self.path.name, dir_fd=directory, follow_symlinks=False).st_ino == self._inode:
                os.unlink(self.path.name, dir_fd=directory)
        self._server.close()

    def _bound(self) -> socket.socket:
        """A listening socket under its name. Raises OSError.

        It has another name until it listens and its mode is 0600: so a socket that refuses connections always belongs
        to a dead daemon.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with opened(self.path.parent) as directory:
                check_directory(directory)
                coming = f".{SOCKET}"
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(coming, dir_fd=directory)
                listener.bind(address(directory, coming))
                try:
                    os.chmod(coming, 0o600, dir_fd=directory)
                    listener.listen(_BACKLOG)
                    self._inode = os.stat(coming, dir_fd=directory).st_ino
                    os.rename(coming, self.path.name, src_dir_fd=directory, dst_dir_fd=directory)
                except OSError:
                    os.unlink(coming, dir_fd=directory)
                    raise
        except OSError:
            listener.close()
            raise
        return listener

    def _info(self, _accept: str) -> Response:
        node = self._node
        info = DaemonInfo(
            protocol=PROTOCOL,
            version=__version__,
            hot_pid=node.hot_pid,
            side_pid=node.side_pid,
            started=node.started,
            not_ready=self._health.not_ready(),
            conditions=list(node.conditions),
            config=json.loads(node.config.to_json()),
            reload=self._reloader.state._asdict(),
        )
        return Response(200, "application/json", info.to_json())
