"""`outrace unload`: remove every pinned BPF program, map and link."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import click

from monitor.errors import CannotError, MonitorError
from monitor.kernel import loader, mounts, pins


@click.command()
@click.option(
    "--state-dir", type=click.Path(path_type=Path), help="Only the pins of this state dir; default: all of them."
)
@click.option(
    "--force", is_flag=True, help="Also those a running daemon uses (it keeps its own descriptors until it ends)."
)
def unload(state_dir: Path | None, force: bool) -> None:
    """Remove every BPF program, map and link that outrace pinned, which detaches what they kept attached."""
    if os.geteuid() != 0:
        raise CannotError("outrace unload must be root", "use sudo")
    if not mounts.is_mounted(mounts.BPFFS) or not pins.ROOT.is_dir():
        click.echo("nothing is pinned", err=True)
        return
    instances = [loader.instance_directory(state_dir)] if state_dir else sorted(pins.ROOT.iterdir())
    removed, busy = 0, []
    for instance in instances:
        if not instance.is_dir():
            continue
        owner = _owner(instance)
        if owner and not force:
            busy.append(f"{instance} is in use by pid {owner}")
            continue
        try:
            removed += loader.unload(instance)
        except OSError as error:
            busy.append(f"{error.filename or instance} cannot be removed: {error.strerror}")
    loader.remove_empty_root()
    loader.forget_unpinned()
    if busy:
        rest = f" ({removed} pins of others were removed)" if removed else ""
        raise MonitorError(f"{', '.join(busy)}{rest}", "stop that daemon first, or give --force")
    click.echo(f"removed {removed} pins", err=True)


def _owner(instance: Path) -> str:
    """Pid of the daemon that holds the lock of the instance's state dir, "" if none does."""
    state_dir = loader.state_directory(instance)
    if state_dir is None:
        return ""
    try:
        with open(state_dir / "lock", "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read(32).decode(errors="replace").strip() or "unknown"
    except FileNotFoundError:
        pass  # the state dir was removed: nobody runs there
    return ""
