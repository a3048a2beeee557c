"""Which services are never evicted: by the name of a unit that root made, and by whose processes are in it.

A name in a user's own manager protects nothing, because users name their units; and a process there protects only as
root's (`monitor.pods.claims.holds`).
"""

from __future__ import annotations

import re
from pathlib import Path

from monitor.kernel import cgroup_procs
from monitor.kernel.procfs import Process
from monitor.pods import claims
from monitor.pods.units import MONITOR, PLAIN, Place

#: What the machine is started, reached and run by, and who may log in. (`monitor.pods.claims` has systemd's own units,
#: D-Bus, sshd, NetworkManager and the runtimes.)
_UNITS = re.compile(
    r"(?:udev|eudev|elogind|polkit|getty@.*|serial-getty@.*|console-getty|container-getty@.*|display-manager|gdm3?|sddm"
    r"|lightdm|lxdm|xdm|greetd|ly|rsyslog|syslog-ng|networking|network|ifup@.*|dhclient.*|dhcpcd.*|udhcpc.*|isc-dhclient.*"
    r"|wpa_supplicant.*|iwd|connman.*|ModemManager|qemu-guest-agent|open-vm-tools|vmtoolsd|google-guest-agent|walinuxagent"
    r"|amazon-ssm-agent|cloud-init.*|podman.*|conmon.*|buildkit|lxd|incus|libvirtd|virt[a-z]+d|user-runtime-dir@.*"
    r"|user@.*|kubelite|outrace.*)\.(?:service|scope)"
)
_SESSION = re.compile(r"session-[^/]*\.scope")
#: Names of processes that are about to become a service or a container: systemd's child before it executes, its
#: helper, the runtimes' own. They have the runtime's oom_score_adj.
_STARTING = ("(", "systemd-executo", "runc", "crun", "youki")


def by_place(root: Path, path: Path, place: Place) -> str:
    """Why a pod is never evicted unless `services:` says so; "" if its place does not protect it."""
    if place.kind == MONITOR:
        return "it watches a container of a runtime"
    if place.name == "init.scope":
        return "the service manager itself"
    if place.in_session_slice:
        return "in session.slice: a desktop session cannot be without it"
    if place.user is not None:
        return ""
    if place.namespace.startswith("user") and _SESSION.fullmatch(place.name):
        return "a login session: its leader is in it"
    if place.kind != PLAIN and _UNITS.fullmatch(place.name):
        return f"the machine runs on {place.name}"
    why = claims.refused(root, path)
    return f"it {why}" if why else ""


def by_processes(path: Path) -> str:
    """Why a pod is never evicted, whatever its operator says; "" if no process protects it."""
    who = claims.holds(path)
    return f"it holds {who}" if who else ""


def lowest_score(path: Path) -> tuple[int | None, bool]:
    """The lowest oom_score_adj of the processes in a cgroup and below it (a process without privileges may raise its
    own, not lower it), None without processes; and whether one is about to become another program.
    """
    lowest: int | None = None
    starting = False
    for pid in cgroup_procs.processes(path):
        with Process(pid) as process:
            score = process.oom_score_adj()
            if score is None:
                continue
            lowest = score if lowest is None else min(lowest, score)
            starting = starting or (process.comm() or "").startswith(_STARTING)
    return lowest, starting
