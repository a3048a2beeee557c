"""`outrace unload`: remove every pinned BPF program, map and link."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import click

from monitor.actions import ledger
from monitor.actions.changes import UNSEEN, ChangeJournal
from monitor.actions.oom_marks import MarkJournal
from monitor.errors import CannotError, MonitorError
from monitor.kernel import cgroupfs, instances, mounts, pins
from monitor.kernel.instances import Instance

_STATE_DIR = "/var/lib/outrace"
#: What systemd calls the end of a service that a signal ended (systemd.exec(5)): it is started again at once, and holds
#: on whom memory is short for. What it will not start again ended by itself (`RestartPreventExitStatus=`).
_STARTED_AGAIN = ("signal", "core-dump", "watchdog", "oom-kill")


@click.command()
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="Only the pins, limits and taints of this state dir. Default: all pins, and limits and taints of their "
    f"state dirs and of {_STATE_DIR}. Holds of dead daemons are always released.",
)
@click.option("--strays", is_flag=True, help="Only the pins of state dirs that are gone (`outrace doctor` names them).")
@click.option(
    "--holds", is_flag=True, help="Only release pods that a killed daemon held or marked (systemd: ExecStopPost=)."
)
@click.option(
    "--force", is_flag=True, help="Also those a running daemon uses (it keeps its own descriptors until it ends)."
)
def unload(state_dir: Path | None, strays: bool, holds: bool, force: bool) -> None:
    """Remove every BPF program, map and link that outrace pinned, and undo what a killed daemon left behind.

    Without its pin a program is detached. Undone are held pods, memory limits and oom_score_adj of pods, and, where
    the API server answers, taints of the node.
    """
    if os.geteuid() != 0:
        raise CannotError("outrace unload must be root", "use sudo")
    is_pinned = mounts.is_mounted(mounts.BPFFS) and pins.ROOT.is_dir()
    state_dirs = _state_dirs(state_dir, is_pinned)
    if holds and os.environ.get("SERVICE_RESULT") in _STARTED_AGAIN:
        return
    left = [] if strays else _release(state_dirs, force)
    if holds:
        _complain(left)
        return
    left += [] if strays else _set_back(state_dirs, force)
    if not is_pinned:
        click.echo("nothing is pinned", err=True)
        _complain(left)
        return
    if strays:
        gone = instances.remove_strays()
        click.echo(f"removed {sum(one.pins for one in gone)} pins of {len(gone)} state dirs that are gone", err=True)
        return
    only = None if state_dir is None else instances.instance_directory(state_dir)
    removed, busy = 0, []
    for instance in instances.survey():
        if only not in (None, instance.path):
            continue
        user = _user(instance)
        if user and not force:
            busy.append(f"{instance.path} is in use by pid {user}")
            continue
        try:
            removed += instances.remove(instance.path)
        except OSError as error:
            busy.append(f"{error.filename or instance.path} cannot be removed: {error.strerror}")
    instances.remove_empty_root()
    if busy:
        rest = f" ({removed} pins of others were removed)" if removed else ""
        raise MonitorError(f"{', '.join(busy)}{rest}", "stop that daemon first, or give --force")
    click.echo(f"removed {removed} pins", err=True)
    _complain(left)


def _state_dirs(only: Path | None, is_pinned: bool) -> list[Path]:
    """Where changes of daemons may be written down."""
    if only is not None:
        return [only]
    owners = [one.owner for one in instances.survey()] if is_pinned else []
    return list(dict.fromkeys([Path(_STATE_DIR), *(Path(one.state_dir) for one in owners if one is not None)]))


def _release(state_dirs: list[Path], force: bool) -> list[str]:
    """Undo what daemons that do not run any more hold, and whom they guided the OOM killer to; what could not be."""
    problems: list[str] = []
    try:
        hierarchy = cgroupfs.detect()
    except MonitorError:
        return []  # no pod is to be seen from here
    free = [state_dir for state_dir in state_dirs if force or not _runs_on(state_dir)]
    holders: list[Path | None] = [*free, None]  # of daemons that are dead on any state dir too
    for holder in holders:
        for change, fate in ledger.undo_all(holder, hierarchy, problems.append):
            click.echo(f"{change.path}/{change.file} ({change.why}): {fate}", err=True)
    for state_dir in free:
        for mark, what in MarkJournal(state_dir).restore_all(problems.append):
            click.echo(f"oom_score_adj of {what.restored} processes in {mark.cgroup}: set back", err=True)
            if not what.complete:
                left = what.denied + what.left
                problems.append(f"oom_score_adj of {left} processes in {mark.cgroup} is not set back")
    return problems


def _set_back(state_dirs: list[Path], force: bool) -> list[str]:
    """Undo what daemons changed that do not run any more; what could not be undone."""
    problems: list[str] = []
    for state_dir in state_dirs:
        if _runs_on(state_dir) and not force:
            continue
        for change, fate in ChangeJournal(state_dir).undo_all(problems.append):
            click.echo(f"{change.path}/{change.file} ({change.why}): {fate}", err=True)
            if fate == UNSEEN:
                problems.append(f"{change.path} is in no hierarchy that is mounted here")
        if (state_dir / "taints").is_dir():
            problems += _untaint(state_dir)
    return problems


def _untaint(state_dir: Path) -> list[str]:
    """Have the taints removed that a daemon left on its node; what is left."""
    from monitor.side.cluster.taint_record import TaintRecords, remove_left
    from monitor.side.export.log import Log

    problems: list[str] = []
    records = TaintRecords(state_dir)
    for record in records.load(problems.append):
        keys = ", ".join(record.keys)
        try:
            remove_left(record, records, Log())
        except (MonitorError, OSError) as error:
            problems.append(f"taints are left on node {record.node} ({error}): {record.by_hand}")
        else:
            click.echo(f"node {record.node} has no taint {keys} any more", err=True)
    return problems


def _complain(problems: list[str]) -> None:
    if problems:
        raise MonitorError(", ".join(dict.fromkeys(problems)), "")


def _user(instance: Instance) -> str:
    """Pid of the daemon that uses the instance, or runs on its state dir without BPF; "" if none does."""
    unknown = "unknown" if instance.in_use else ""
    return (_runs_on(Path(instance.owner.state_dir)) if instance.owner is not None else "") or unknown


def _runs_on(state_dir: Path) -> str:
    """Pid of the daemon that runs on a state dir; "" if none does."""
    try:
        with open(state_dir / "lock", "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read(32).decode(errors="replace").strip() or "unknown"
    except OSError:
        pass  # the state dir was removed, or is not to be seen from here
    return ""
