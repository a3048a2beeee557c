"""Whether a command asks the daemon that runs here.

The rule for every command with these options: an option on the command line that describes a node or a daemon (its
node, pods, thresholds, state directory...) is used as it is; the command asks no daemon. Without any such option the
command asks the running daemon. A script that gives the options therefore works as it did before.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from monitor.cli.output import F
from monitor.errors import MonitorError
from monitor.link import daemon_socket
from monitor.link.daemon_socket import MAX_ANSWER, DaemonInfo, opened, run_dir
from monitor.owner import check_peer
from monitor.settings.config import STATE_DIR, RunConfig

#: How long to wait for an answer. It takes a millisecond; a side that is being started again takes 0.3 s, and longer
#: where it gets no CPU.
_TIMEOUT_S = 5.0
_AS_ROOT = "only root may ask a daemon: use sudo, or look without one: --no-daemon"


@dataclass(frozen=True)
class Daemon:
    """A daemon that runs here, and its own description."""

    socket: Path
    info: DaemonInfo
    config: RunConfig

    @property
    def name(self) -> str:
        """The last part of its state directory."""
        return os.path.basename(self.config.state_dir)

    def get(self, path: str) -> str:
        """Its answer to a path. Raises OSError if it is gone or hangs, ValueError for an answer of no use."""
        return _get(self.socket, path)

    def to_json(self) -> dict[str, Any]:
        """The key ``daemon`` of what commands print."""
        config = self.config
        return {
            "name": self.name,
            "pid": self.info.hot_pid,
            "side_pid": self.info.side_pid,
            "version": self.info.version,
            "mode": config.mode,
            "ready": not self.info.not_ready,
            "not_ready": self.info.not_ready or None,
            "node": config.node_cgroup or "machine",
            "pods": config.pods,
            "hooks": config.rung,
            "listen": f"{config.listen_host}:{config.listen_port}",
            "state_dir": config.state_dir,
            "started": self.info.started,
        }

    def __str__(self) -> str:
        node = self.config.node_cgroup or "the machine"
        return f"{self.name} (pid {self.info.hot_pid}, {node}, state dir {self.config.state_dir})"


def described(path: Path) -> Daemon:
    """The daemon at a socket, as it is now. Raises as `get`; TypeError for another release's configuration."""
    info = DaemonInfo.from_json(_get(path, daemon_socket.INFO_PATH))
    return Daemon(path, info, RunConfig.from_json(json.dumps(info.config)))


def no_daemon_option(command: F) -> F:
    """Give a click command `--no-daemon`, for `choose_daemon`."""
    return click.option("--no-daemon", is_flag=True, help="Read files with the defaults of `run`, without the daemon.")(
        command
    )


def state_dir_option(command: F) -> F:
    """Give a command the options that name a state directory, by default the running daemon's."""
    text = f"State directory of the daemon. [the daemon's, or {STATE_DIR}]"
    return click.option("--state-dir", metavar="DIR", help=text)(no_daemon_option(command))


def choose_daemon(describing: Collection[str], no_daemon: bool, without: str | None = None) -> Daemon | None:
    """The daemon to ask; None with `--no-daemon`, or where an option describes the node.

    ``describing`` are the parameters that describe a node or a daemon. In an environment variable such a parameter
    does instead of a daemon and does not hide one: the variables of a container are those of its daemon. Raises
    MonitorError where no daemon runs, or says on stderr what the command does ``without`` ("": nothing).
    """
    context = click.get_current_context()
    sources = {context.get_parameter_source(name) for name in describing}
    if no_daemon or ParameterSource.COMMANDLINE in sources:
        return None
    found = running()
    if found is None and ParameterSource.ENVIRONMENT not in sources:
        if without is None:
            problem = f"no outrace daemon runs here (no socket answers in {run_dir()})"
            raise MonitorError(problem, "start one (outrace run), or look without one: --no-daemon")
        if without:
            click.echo(f"outrace: no daemon runs here: {without}", err=True)
    return found


def running() -> Daemon | None:
    """The daemon that runs here. MonitorError where this user may not ask, or others could have put a socket."""
    directory = Path(run_dir())
    path = directory / daemon_socket.SOCKET
    try:
        with opened(directory) as fd:
            daemon_socket.check_directory(fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise MonitorError(f"{directory}: {error.strerror}", _AS_ROOT) from None
    except OSError as error:
        raise MonitorError(f"{directory}: {error.strerror}", "mend it, or look without a daemon: --no-daemon") from None
    try:
        return described(path)
    except (FileNotFoundError, ConnectionRefusedError):
        return None  # it has ended, or was killed
    except PermissionError as error:
        raise MonitorError(f"{path}: {error.strerror}", _AS_ROOT) from None
    except (OSError, ValueError, TypeError) as error:  # TypeError: its configuration is another release's
        click.echo(f"outrace: the daemon at {path} gave no usable answer: {error}", err=True)
        return None


def _connected(path: Path) -> socket.socket:
    """A connection to the socket. Raises OSError."""
    with opened(path.parent) as directory, ExitStack() as undone:
        connection = undone.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
        # Where the queue is full the kernel waits for room, which it does for no socket with a timeout of Python's.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_TIMEOUT_S), 0))
        connection.connect(daemon_socket.address(directory))
        check_peer(connection)
        connection.settimeout(_TIMEOUT_S)
        undone.pop_all()
    return connection


def _get(path: Path, target: str) -> str:
    """The body of an answer of 200. OSError, ValueError."""
    client = http.client.HTTPConnection("localhost")
    client.sock = _connected(path)
    try:
        client.request("GET", target)
        answer = client.getresponse()
        body = answer.read(MAX_ANSWER + 1)
    except http.client.HTTPException as error:
        raise ValueError(f"not HTTP: {error}") from error
    finally:
        client.close()
    if answer.status != 200 or len(body) > MAX_ANSWER:
        raise ValueError(f"HTTP status {answer.status}, {len(body)} bytes or more")
    return body.decode()
