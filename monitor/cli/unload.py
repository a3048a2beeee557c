"""`outrace unload`: remove every BPF program, map and link that is pinned; undo what ended daemons changed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import click

from monitor.actions.ledger import attributes_of
from monitor.actions.undo import undo
from monitor.errors import CannotError, MonitorError
from monitor.kernel import cgroupfs, instances, mounts, pins
from monitor.kernel.instances import Instance
from monitor.owner import ChangeableError, check_alone
from monitor.settings.config import STATE_DIR

#: What systemd calls the end of a service that a signal ended (systemd.exec(5)): systemd starts it again at
#: once, and the holds continue. A service that systemd will not start again ended by itself
#: (`RestartPreventExitStatus=`).
_STARTED_AGAIN = ("signal", "core-dump", "watchdog", "oom-kill")


@click.command()
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="Remove the pins of this state directory only. Default: all pins. Changes of ended daemons in the kernel are "
    "always undone.",
)
@click.option(
    "--holds", is_flag=True, help="Only undo what a killed daemon changed in the kernel (systemd: ExecStopPost=)."
)
def unload(state_dir: Path | None, holds: bool) -> None:
    """Remove every BPF program, map and link that outrace pinned, and undo what a killed daemon left behind.

    Without its pin a program is detached. Undone are limits, freezes and oom_score_adj of pods.
    """
    if os.geteuid() != 0:
        raise CannotError("outrace unload must be root", "use sudo")
    if holds and os.environ.get("SERVICE_RESULT") in _STARTED_AGAIN:
        return
    left: list[str] = []
    left += _undo(stopped([one for one in known_state_dirs(state_dir) if _is_believed(one, left)]))
    if not holds:
        _remove_pins(None if state_dir is None else instances.instance_directory(state_dir))
    if left:
        raise MonitorError(", ".join(dict.fromkeys(left)), "")


def _remove_pins(only: Path | None) -> None:
    """Of all instances or ``only`` this one. Raises MonitorError for those that stay."""
    if not (mounts.is_mounted() and pins.ROOT.is_dir()):
        click.echo("nothing is pinned", err=True)
        return
    removed, busy = 0, []
    for instance in instances.survey():
        if only not in (None, instance.path):
            continue
        if user := _user(instance):
            busy.append(f"{instance.path} is in use by pid {user}")
            continue
        try:
            removed += instances.remove(instance.path)
        except OSError as error:
            busy.append(f"{error.filename or instance.path} cannot be removed: {error.strerror}")
    instances.remove_empty_root()
    if busy:
        rest = f" ({removed} pins of others were removed)" if removed else ""
        raise MonitorError(f"{', '.join(busy)}{rest}", "stop that daemon first")
    click.echo(f"removed {removed} pins", err=True)


def known_state_dirs(only: Path | None = None) -> list[Path]:
    """Of the daemons that may have left something."""
    if only is not None:
        return [only]
    found = [one.state_dir for one in instances.survey()]
    return list(dict.fromkeys([Path(STATE_DIR), *filter(None, found)]))


def stopped(state_dirs: list[Path]) -> list[Path]:
    """Those on which no daemon runs."""
    return [state_dir for state_dir in state_dirs if not _runs_on(state_dir)]


def _is_believed(state_dir: Path, problems: list[str]) -> bool:
    """Whether root alone can write there: a directory in /tmp that root removed may be another user's by now."""
    try:
        check_alone(state_dir)
    except ChangeableError as error:
        problems.append(f"state directory {state_dir}: what is in it is not believed: {error}")
        return False
    return True


def _undo(state_dirs: list[Path]) -> list[str]:
    """Undo what daemons changed in the kernel that have ended, and those on these state dirs; what could not be."""
    problems: list[str] = []
    try:
        hierarchy = cgroupfs.detect()
    except MonitorError:
        return []  # no pod is to be seen from here
    for one, why, outcome in undo(hierarchy, problems.append, attributes_of(state_dirs)):
        click.echo(f"{one.path}/{one.file} ({why}): {outcome}", err=True)
    return problems


def _user(instance: Instance) -> str:
    """Pid of the daemon that uses the instance, or runs on its state dir without BPF; "" if none does."""
    unknown = "unknown" if instance.in_use else ""
    return (_runs_on(instance.state_dir) if instance.state_dir is not None else "") or unknown


def _runs_on(state_dir: Path) -> str:
    """Pid of the daemon that runs on a state dir; "" if none does."""
    if not _is_believed(state_dir, []):
        return ""  # no daemon starts there; a FIFO in place of the lock would be waited for
    try:
        with open(state_dir / "lock", "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read(32).decode(errors="replace").strip() or "unknown"
    except OSError:
        pass  # the state dir was removed, or is not to be seen from here
    return ""
