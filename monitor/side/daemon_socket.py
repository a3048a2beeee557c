"""The socket in the run directory on which commands ask this daemon about itself.

The helper answers: no request reaches the hot process. Only root may connect. Clients get a bounded number of
connections, bytes and seconds (`monitor.side.export.http`) and a bounded share of a CPU (`Shared`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from monitor import __version__
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
from monitor.side.endpoints import live_response, summary_response
from monitor.side.export.http import Server
from monitor.side.export.route import Response, Route, Shared
from monitor.side.reload import Reloader
from monitor.side.view import View

if TYPE_CHECKING:
    from monitor.side.races import Races

#: Connections at the same time. `outrace top` needs one.
MAX_COMMANDS = 16
_BACKLOG = 16
#: The part of a CPU that answers of one path may take. The summary of 500 pods takes some 10 ms, so that ten a second
#: are answered; `outrace top` asks for one.
CPU_SHARE = 0.1


class DaemonSocket:
    """Serves on a socket in the run directory from `open` to `close`. ``races()``: None until they are judged."""

    def __init__(self, view: View, reloader: Reloader, races: Callable[[], Races | None]) -> None:
        self._view = view
        self._reloader = reloader
        self._races = races
        self.path = Path(view.config.run_dir, SOCKET)
        self._inode = 0
        self._server: Server | None = None

    def open(self) -> None:
        """Serve. Without a usable run directory the daemon logs a warning and runs without a socket."""
        try:
            listener = self._bound()
        except OSError as error:
            problem = error.strerror or str(error)
            self._view.log.warning(
                "commands cannot ask this daemon: no socket in the run directory",
                run_dir=str(self.path.parent),
                problem=problem,
            )
            return
        routes: dict[str, Route] = {
            INFO_PATH: self._info,
            SUMMARY_PATH: lambda _: summary_response(self._view, self._races()),
            LIVE_PATH: lambda _: live_response(self._view, self._races()),
        }
        paced = {path: Shared({path: route}, self._failed, CPU_SHARE) for path, route in routes.items()}
        self._server = Server(listener, paced, self._failed, max_connections=MAX_COMMANDS, share=CPU_SHARE)
        self._server.start()

    def _failed(self, problem: str) -> None:
        self._view.log.error("request on the daemon's socket failed", problem=problem)

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
        view = self._view
        info = DaemonInfo(
            protocol=PROTOCOL,
            version=__version__,
            hot_pid=view.hot_pid,
            side_pid=view.side_pid,
            started=view.started,
            not_ready=view.not_ready(),
            conditions=list(view.conditions),
            config=json.loads(view.config.to_json()),
            reload=self._reloader.state._asdict(),
        )
        return Response(200, "application/json", info.to_json())
