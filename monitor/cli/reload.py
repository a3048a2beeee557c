"""`outrace reload`: have the daemon read its configuration again, and say what came of it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import click

from monitor.cli.daemons import Daemon, running
from monitor.cli.output import emit, output_option
from monitor.errors import MonitorError
from monitor.link.daemon_socket import INFO_PATH, DaemonInfo, run_dir

#: The daemon waits up to 10 s for a kubelet that does not answer with its configuration.
_TIMEOUT_S = 30.0
_POLL_S = 0.05
_AS_ROOT = "it is another user's, and there is no CAP_KILL; use sudo"


@click.command()
@output_option
def reload(output: str) -> None:
    """Have the running daemon read its configuration again.

    All or nothing: with an error in it, or where an option differs that cannot change while running, the old
    configuration stays in force (exit 1, and why). Flags and environment stay those of the start.
    """
    found = running()
    if found is None:
        raise MonitorError(f"no outrace daemon runs here (no socket answers in {run_dir()})", "start one: outrace run")
    state = _answer(found)
    if state.get("half_taken"):
        raise MonitorError(f"reloaded in part: {state['problem']}")
    if state["problem"]:
        raise MonitorError(f"the old configuration stays in force: {state['problem']}")
    changed = list(state["changed"])
    line = f"{found.name}: reloaded; changed: {', '.join(changed) or 'nothing'}"
    emit(output, {"daemon": found.to_json(), "changed": changed}, lambda: [line])


def _answer(found: Daemon) -> dict[str, Any]:
    """Send SIGHUP, and wait until what came of it is known. Raises MonitorError."""
    if "asked" not in found.info.reload:
        raise MonitorError(
            f"the daemon {found.name} is outrace {found.info.version}, which cannot reload", "restart it"
        )
    wanted = found.info.reload["asked"] + 1
    try:
        process = os.pidfd_open(found.info.hot_pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGHUP)
        finally:
            os.close(process)
    except ProcessLookupError:
        raise MonitorError(f"the daemon {found.name} has ended") from None
    except PermissionError:
        raise MonitorError(f"the daemon {found.name} may not be signalled: {_AS_ROOT}") from None
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        try:
            info = DaemonInfo.from_json(found.get(INFO_PATH))
        except (OSError, ValueError):
            continue  # its side is being started again
        if info.side_pid != found.info.side_pid:
            raise MonitorError("the helper process was started again meanwhile", "look: outrace config show")
        if info.reload["answered"] >= wanted:
            return dict(info.reload)
    raise MonitorError(f"the daemon does not answer within {_TIMEOUT_S:g} s", "look: outrace config show")
