"""Which services are never evicted: by the name of a unit that root made, and by whose processes are in it.

A name in a user's own manager protects nothing, because users name their units; and a process there protects only as
root's (`monitor.pods.claims.holds`), or as the session manager that the machine has (`by_session`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from monitor.kernel import cgroup_procs
from monitor.kernel.procfs import Process
from monitor.pods import claims, machine
from monitor.pods.units import CONTAINER, MONITOR, PLAIN, Place

#: A user's service manager with all that is below it: `classify` goes into it, so that it is seldom a pod itself.
_MANAGER = re.compile(r"user@[^/]*\.service")
_SESSION = re.compile(r"session-[^/]*\.scope")
#: Names of processes that are about to become a service or a container: systemd's child before it executes, its
#: helper, the runtimes' own; podman, until it has made the container's cgroup. They have the runtime's oom_score_adj.
_STARTING = ("(", "systemd-executo", "runc", "crun", "youki", "podman")


def by_place(root: Path, path: Path, place: Place) -> str:
    """Why a pod is never evicted unless `services:` says so; "" if its place does not protect it."""
    if place.kind == MONITOR:
        return "it watches a container of a runtime"
    if place.parts[-1] == "init.scope" and (place.user is None or _MANAGER.fullmatch(place.parts[-2])):
        return "the service manager itself"
    if place.in_session_slice:
        return "in session.slice: a desktop session cannot be without it"
    if place.user is not None or place.kind == CONTAINER:
        return ""
    if place.namespace.startswith("user") and _SESSION.fullmatch(place.name):
        return "a login session: its leader is in it"
    if place.kind != PLAIN and (lost := machine.lost_with(place.name)):
        return f"the machine runs on {place.name} ({lost})"
    if _MANAGER.fullmatch(place.name):
        return f"the machine runs on {place.name} (a user's services)"
    why = claims.refused(root, path)
    return f"it {why}" if why else ""


def by_processes(path: Path) -> str:
    """Why a pod is never evicted, whatever its operator says; "" if no process protects it."""
    who = claims.holds(path)
    return f"it holds {who}" if who else ""


def by_session(path: Path) -> str:
    """Why a user's unit is never evicted unless `services:` says so; "" if it is no session manager's. Its name says
    nothing: users name their units.
    """
    program = claims.session_manager(path)
    return f"{program}: the desktop session ends with it" if program else ""


def lowest_score(paths: Iterable[Path]) -> tuple[int | None, bool]:
    """The lowest oom_score_adj of the processes in cgroups and below them (a process without privileges may raise its
    own, not lower it), None without processes; and whether one is about to become another program.
    """
    lowest: int | None = None
    starting = False
    for pid in (pid for path in paths for pid in cgroup_procs.processes(path)):
        with Process(pid) as process:
            score = process.oom_score_adj()
            if score is None:
                continue
            lowest = score if lowest is None else min(lowest, score)
            starting = starting or (process.comm() or "").startswith(_STARTING)
    return lowest, starting
