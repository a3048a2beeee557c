"""What the commands that read stored incidents have in common: the state directory, moments, errors in one line."""

from __future__ import annotations

import datetime
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from monitor.cli.daemons import NoDaemonError, choose_daemon, no_daemon_option
from monitor.cli.finite import seconds_of
from monitor.errors import MonitorError
from monitor.policy.errors import PolicyError
from monitor.side.incidents.reader import FILE_NAME, IncidentReader, damaged_files

if TYPE_CHECKING:
    from monitor.race.threshold_advice import Evidence

F = TypeVar("F", bound=Callable[..., Any])

_STATE_DIR = "/var/lib/outrace"


def moment(_ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """Unix seconds of how long ago (`90s`, `1h30m`, `2d`), or of a time in ISO 8601 (without an offset: local time)."""
    if text is None:
        return None
    try:
        return time.time() - seconds_of(text)
    except PolicyError:
        pass  # perhaps a point in time
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"{text!r} is neither a duration (30m, 12h, 7d) nor a time (2026-01-31T12:00)", param=param
        ) from None


def moment_option(name: str, text: str, default: str | None = None) -> Callable[[F], F]:
    """An option that takes an age or a time; the command gets Unix seconds, None where it is not given."""
    return click.option(
        name, metavar="AGO|TIME", callback=moment, default=default, show_default=default is not None, help=text
    )


def state_dir_option(command: F) -> F:
    """Give a command the options that name a state directory; it gets the directory as ``state_dir``."""

    @functools.wraps(command)
    def chosen(state_dir: str | None, no_daemon: bool, **rest: Any) -> Any:
        return command(state_dir=_state_dir(state_dir, no_daemon), **rest)

    option = click.option(
        "--state-dir", metavar="DIR", help=f"The monitor's state directory. [the daemon's, or {_STATE_DIR}]"
    )
    return cast(F, option(no_daemon_option(chosen)))


def _state_dir(given: str | None, no_daemon: bool) -> str:
    """The running daemon's, else the default one: incidents are often read when the daemon does not run."""
    try:
        found = choose_daemon(("state_dir",), no_daemon)
    except NoDaemonError:
        click.echo(f"outrace: no daemon runs here: incidents stored in {_STATE_DIR}", err=True)
        return _STATE_DIR
    return found.config.state_dir if found is not None else given or _STATE_DIR


def incident_reader(state_dir: str) -> IncidentReader:
    """The reader of the incidents in a state directory, which need not exist."""
    return IncidentReader(Path(state_dir) / FILE_NAME)


def complain(reader: IncidentReader) -> None:
    """After what could be read: what could not."""
    for renamed in damaged_files(reader.path):
        click.echo(f"a damaged file was renamed to {renamed}; its incidents are not shown", err=True)
    if reader.unreadable:
        raise MonitorError(f"{reader.unreadable} incidents in {reader.path} are damaged and not shown")


def none_yet(state_dir: str) -> str:
    missing = "" if Path(state_dir).is_dir() else " (there is no such directory)"
    return f"no incidents stored in {state_dir} yet{missing}"


def evidence_of(found: Iterable[dict[str, Any]], reader: IncidentReader) -> list[Evidence]:
    """The growth of races, for advice; a record of it that is of another version counts as unreadable."""
    from monitor.race.burst import Burst
    from monitor.race.codec import RecordError

    evidence: list[Evidence] = []
    for incident in found:
        if incident.get("burst") is not None:
            try:
                evidence.append((str(incident["id"]), Burst.from_json(incident["burst"])))
            except RecordError:
                reader.unreadable += 1
    return evidence


@contextmanager
def reading(state_dir: str) -> Iterator[None]:
    """Files that cannot be read or written, in one line."""
    try:
        yield
    except BrokenPipeError:
        raise  # `head` has seen enough
    except PermissionError as error:
        raise MonitorError(f"{error.filename or state_dir}: {error.strerror}", "use sudo") from None
    except OSError as error:
        raise MonitorError(f"{error.filename or state_dir}: {error.strerror or error}") from None
