"""`outrace unload`: remove every pinned BPF program, map and link."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import click

from monitor.errors import CannotError, MonitorError
from monitor.kernel import instances, mounts, pins
from monitor.kernel.instances import Instance


@click.command()
@click.option(
    "--state-dir", type=click.Path(path_type=Path), help="Only the pins of this state dir; default: all of them."
)
@click.option("--strays", is_flag=True, help="Only the pins of state dirs that are gone (`outrace doctor` names them).")
@click.option(
    "--force", is_flag=True, help="Also those a running daemon uses (it keeps its own descriptors until it ends)."
)
def unload(state_dir: Path | None, strays: bool, force: bool) -> None:
    """Remove every BPF program, map and link that outrace pinned, which detaches what they kept attached."""
    if os.geteuid() != 0:
        raise CannotError("outrace unload must be root", "use sudo")
    if not mounts.is_mounted(mounts.BPFFS) or not pins.ROOT.is_dir():
        click.echo("nothing is pinned", err=True)
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


def _user(instance: Instance) -> str:
    """Pid of the daemon that uses the instance, or runs on its state dir without BPF; "" if none does."""
    unknown = "unknown" if instance.in_use else ""
    if instance.owner is None:
        return unknown
    try:
        with open(Path(instance.owner.state_dir, "lock"), "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read(32).decode(errors="replace").strip() or "unknown"
    except OSError:
        pass  # the state dir was removed, or is not to be seen from here
    return unknown
