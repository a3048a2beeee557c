"""Which daemon a command asks: the one that runs here, the one chosen with `--daemon NAME`, or none.

The rule for every command with these options: an option on the command line that describes a node or a daemon (its
node, pods, thresholds, state directory...) is used as it is, and no daemon is asked. Without any such option the
command asks the running daemon. A script that gives the options therefore works as it did before.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from monitor.errors import ConfigError, MonitorError
from monitor.link import daemon_socket
from monitor.link.daemon_socket import INFO_PATH, MAX_ANSWER, DaemonInfo
from monitor.owner import check_peer
from monitor.settings.config import RunConfig

F = TypeVar("F", bound=Callable[..., Any])

#: How long to wait for an answer. It takes a millisecond; a side that is being started again takes 0.3 s, and longer
#: where it gets no CPU.
_TIMEOUT_S = 5.0
#: Pause before connecting again to a socket whose queue is full.
_BUSY_S = 0.01
_DIRECTORY = RunConfig().run_dir
_AS_ROOT = "only root may ask a daemon: use sudo, or look without one: --no-daemon"


@dataclass(frozen=True)
class Daemon:
    """A daemon that runs here, and its own description."""

    socket: Path
    info: DaemonInfo
    config: RunConfig

    @property
    def name(self) -> str:
        return self.info.name

    def get(self, path: str) -> str:
        """Its answer to a path. Raises OSError if it is gone or hangs, ValueError for an answer of no use."""
        return _get(self.socket, path)

    def again(self) -> Daemon:
        """The daemon as it is now: started again, or with another configuration. Raises as `get` does; TypeError where
        its configuration is another release's.
        """
        return described(self.socket)

    def to_json(self) -> dict[str, Any]:
        """As `outrace daemons -o json` has it, and the key ``daemon`` of what other commands print."""
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
    """The daemon at a socket. Raises OSError, ValueError, TypeError."""
    info = DaemonInfo.from_json(_get(path, INFO_PATH))
    return Daemon(path, info, RunConfig.from_json(json.dumps(info.config)))


def daemon_options(command: F) -> F:
    """Give a click command `--daemon` and `--no-daemon`, for `choose_daemon`; they arrive as ``daemon`` and
    ``no_daemon``.
    """
    no_daemon = click.option("--no-daemon", is_flag=True, help="Ask no daemon: read files, with the defaults of `run`.")
    daemon = click.option("--daemon", metavar="NAME", help="Ask this one: name, pid or state dir. [the only one]")
    return daemon(no_daemon(command))


def run_dir_option(command: F) -> F:
    """`--run-dir`, for a command that does not have it among the options of `outrace run`."""
    return click.option(
        "--run-dir",
        metavar="DIR",
        default=_DIRECTORY,
        envvar="OUTRACE_RUN_DIR",
        help=f"Where the sockets of the daemons are. [{_DIRECTORY}]",
    )(command)


def choose_daemon(
    describing: Collection[str], run_dir: str | None, daemon: str | None, no_daemon: bool
) -> Daemon | None:
    """The daemon to ask; None with `--no-daemon`, or where an option describes the node.

    ``describing`` are the parameters that describe a node or a daemon. In an environment variable such a parameter
    does instead of a daemon and does not hide one: the variables of a container are those of its daemon. Raises
    NoDaemonError where no daemon runs, ConfigError where several do and none is chosen, or where `--daemon` stands
    beside such a parameter.
    """
    given = [name for name in describing if _source(name) is ParameterSource.COMMANDLINE]
    if daemon is not None and (given or no_daemon):
        other = f"--{given[0].replace('_', '-')}" if given else "--no-daemon"
        raise ConfigError(f"--daemon {daemon} and {other}: a daemon has its own", "leave out one of them")
    if given or no_daemon:
        return None
    directory = Path(run_dir or _DIRECTORY)
    found = list(find(directory))
    if daemon is not None:
        return _chosen(found, daemon, directory)
    if len(found) > 1:
        raise ConfigError(f"{len(found)} daemons run here", f"choose one with --daemon: {'; '.join(map(str, found))}")
    if not found and not any(_source(name) is ParameterSource.ENVIRONMENT for name in describing):
        raise NoDaemonError(f"no outrace daemon runs here (no socket answers in {directory})")
    return found[0] if found else None


class NoDaemonError(MonitorError):
    """No option describes a node, and no daemon runs."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "start one (outrace run), or look without one: --no-daemon")


def _source(name: str) -> ParameterSource | None:
    return click.get_current_context().get_parameter_source(name)


def _chosen(found: list[Daemon], text: str, directory: Path) -> Daemon:
    path = os.path.realpath(text)
    named = [one for one in found if text in (one.name, str(one.info.hot_pid)) or one.config.state_dir in (text, path)]
    if len(named) == 1:
        return named[0]
    if named:
        raise ConfigError(
            f"{len(named)} daemons are called {text}",
            f"give --daemon the pid or the state dir: {'; '.join(map(str, named))}",
        )
    there = f"running: {'; '.join(map(str, found))}" if found else f"none runs here (no socket answers in {directory})"
    raise MonitorError(f"no daemon {text!r}", there)


def find(directory: Path) -> Iterator[Daemon]:
    """The daemons with a socket there, by name; sockets of dead daemons are removed. MonitorError where this user may
    not ask, or where anybody could have put a socket there.
    """
    try:
        names = _sockets(directory)
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError as error:
        raise MonitorError(f"{directory}: {error.strerror}", _AS_ROOT) from None
    except OSError as error:
        raise MonitorError(
            f"{directory}: {error.strerror}", "name another one with --run-dir, or --no-daemon"
        ) from None
    for name in names:
        path = directory / name
        try:
            yield described(path)
        except ConnectionRefusedError:
            _remove(path)
        except FileNotFoundError:
            continue  # the daemon ended meanwhile
        except PermissionError as error:
            raise MonitorError(f"{path}: {error.strerror}", _AS_ROOT) from None
        except (OSError, ValueError, TypeError) as error:  # TypeError: its configuration is another release's
            click.echo(f"outrace: the daemon at {path} gave no usable answer: {error}", err=True)


def _sockets(directory: Path) -> list[str]:
    with _opened(directory) as fd:
        daemon_socket.check_directory(fd)
        return [name for name in daemon_socket.sockets(fd) if not name.startswith(".")]


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _remove(path: Path) -> None:
    """Remove the socket of a daemon that was killed, unless a new daemon has just replaced it."""
    with contextlib.suppress(OSError), _opened(path.parent) as directory:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a side holds it while it makes its socket
        if daemon_socket.is_dead(directory, path.name):
            os.unlink(path.name, dir_fd=directory)


def _connected(path: Path) -> socket.socket:
    """A connection to the socket. Raises OSError."""
    with _opened(path.parent) as directory:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.settimeout(_TIMEOUT_S)
            deadline = time.monotonic() + _TIMEOUT_S
            while True:
                try:
                    connection.connect(daemon_socket.address(directory, path.name))
                    check_peer(connection)
                    break
                except BlockingIOError:  # the queue is full: a socket with a timeout does not wait for room
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(_BUSY_S)
        except OSError:
            connection.close()
            raise
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
    if answer.status != 200:
        raise ValueError(f"HTTP status {answer.status}")
    if len(body) > MAX_ANSWER:
        raise ValueError(f"an answer of more than {MAX_ANSWER} bytes")
    return body.decode()
