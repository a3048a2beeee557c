"""What the machine itself runs on, by the path of a cgroup and by the processes that are there now.

No annotation may name such a cgroup as a pod's, and such a service is never evicted. A process of a pod may call itself
sshd and bring a program of that path along: what counts is that it is root's, in the machine's own pid namespace, and
runs the machine's own file. A name in a user's own manager protects nothing, because users name their units; and a
process there protects only as root's (`holds`), or as the session manager that the machine has (`by_session`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from monitor.kernel import cgroup_procs
from monitor.kernel.procfs import Process, directories, is_kernel_thread
from monitor.owner import others
from monitor.pods import machine
from monitor.pods.units import CONTAINER, MONITOR, PLAIN, Place

#: Slices that hold others' units, and the cgroup of process 1.
_OF_THE_SYSTEM = ("init.scope", "system.slice", "user.slice", "machine.slice")
_DELETED = " (deleted)"  # the file was replaced, as an upgrade does, and the process runs on
#: A user's service manager with all that is below it: `classify` goes into it, so that it is seldom a pod itself.
_MANAGER = re.compile(r"user@[^/]*\.service")
_SESSION = re.compile(r"session-[^/]*\.scope")
#: Names of processes that are about to become a service or a container: systemd's child before it executes, its
#: helper, the runtimes' own; podman, until it has made the container's cgroup. They have the runtime's oom_score_adj.
_STARTING = ("(", "systemd-executo", "runc", "crun", "youki", "podman")


def refused(root: Path, path: Path) -> str:
    """Why a cgroup of the hierarchy mounted at ``root`` is no pod's by its place; "" if it may be one."""
    parts = path.relative_to(root).parts
    if len(parts) == 1 and parts[0] in _OF_THE_SYSTEM:
        return "is systemd's own"
    unit = next((part for part in parts if not part.endswith(".slice")), "")
    if unit == "init.scope" or machine.lost_with(unit):
        return f"is of {unit}, which the machine runs on"
    return ""


def by_place(root: Path, path: Path, place: Place) -> str:
    """Why a pod is never evicted unless `services:` says so; "" if its place does not protect it."""
    if place.kind == MONITOR:
        return "it watches a container of a runtime"
    if place.parts[-1] == "init.scope" and (place.user is None or _MANAGER.fullmatch(place.parts[-2])):
        return "the service manager itself"
    if place.user is not None and "session.slice" in place.parts:  # systemd.special(7)
        return "in session.slice: a desktop session cannot be without it"
    if place.user is not None or place.kind == CONTAINER:
        return ""
    if place.namespace.startswith("user") and _SESSION.fullmatch(place.name):
        return "a login session: its leader is in it"
    if place.kind != PLAIN and (lost := machine.lost_with(place.name)):
        return f"the machine runs on {place.name} ({lost})"
    if _MANAGER.fullmatch(place.name):
        return f"the machine runs on {place.name} (a user's services)"
    why = refused(root, path)
    return f"it {why}" if why else ""


def holds(path: Path) -> str:
    """The process in a cgroup, or below it, that the machine depends on; "" if there is none."""
    for pid in cgroup_procs.processes(path):
        if pid == 1:
            return "process 1"
        if name := daemon(pid):
            return f"the machine's {name} (process {pid})"
        if is_kernel_thread(pid):
            return f"a thread of the kernel (process {pid})"
    return ""


def daemon(pid: int) -> str:
    """The name of the machine's own daemon that a process is; "" if it is none."""
    with Process(pid) as process:
        exe = process.exe()
        by_comm = exe is None or machine.INTERPRETER.fullmatch(_name(exe)) is not None
        name = (process.comm() or "") if by_comm else _name(exe or "")
        programs = machine.SHORT_PROGRAMS if by_comm else machine.PROGRAMS
        if name not in programs or process.users() != {0} or not process.shares_pids():
            return ""
        if exe is None:
            return name  # without CAP_SYS_PTRACE its file is not readable; a wrong guess kills nothing
        return name if _runs_the_machines(process, exe) else ""


def by_session(path: Path) -> str:
    """Why a user's unit is never evicted unless `services:` says so; "" if it was not made for a session manager: its
    first process runs the machine's own file of that name. (What a user starts beside it, or under its name, makes it
    nothing.)
    """
    first, since = 0, 1 << 64
    for pid in cgroup_procs.processes(path):
        with Process(pid) as process:
            if (started := process.started()) is not None and started < since:
                first, since = pid, started
    with Process(first) as process:
        exe = process.exe()
        if exe is None or _name(exe) not in machine.SESSION_PROGRAMS or not process.shares_pids():
            return ""
        its_own = _runs_the_machines(process, exe, shared=False)
        return f"{_name(exe)}: the desktop session ends with it" if its_own else ""


def _name(exe: str) -> str:
    return Path(exe.removesuffix(_DELETED)).name


def _runs_the_machines(process: Process, exe: str, shared: bool = True) -> bool:
    """Whether a program is the machine's own file, which root alone can have put there. ``shared``: also in a sticky
    directory, where users make files of their own.
    """
    program, mounts = Path(exe.removesuffix(_DELETED)), process.namespace("mnt")
    if not _is_owned_by_root(program.parent, shared):
        return False
    if mounts is not None and mounts in (_own("mnt"), _own("mnt", 1)):
        return exe.endswith(_DELETED) or _is_roots_file(program)
    # Another mount namespace: a unit's own (PrivateTmp=) has the machine's files, a container's has others.
    return _is_same_file(process.pid, program)


def _is_owned_by_root(directory: Path, shared: bool) -> bool:
    """Whether root alone can have put a program there. (In a sticky one, as /nix/store is, others replace nothing.)"""
    try:
        for path in (directory, *directory.parents):
            status = os.stat(_outside(path))
            sticky = shared and status.st_mode & stat.S_ISVTX
            if status.st_uid not in (0, os.geteuid()) or (others(path, status) and not sticky):
                return False
    except OSError:
        return False
    return True


def _own(kind: str, pid: int | str = "self") -> str | None:
    """A namespace of this process or of process 1; None where the latter may not be asked."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return None


def _outside(path: Path) -> Path:
    """A path of the machine's, also from within a container that shares its pid namespace."""
    if _own("mnt", 1) in (None, _own("mnt")):
        return path
    return Path("/proc/1/root", *path.parts[1:])


def _is_roots_file(program: Path) -> bool:
    with suppress(OSError):
        return not others(program, os.stat(_outside(program)))
    return False


def _is_same_file(pid: int, program: Path) -> bool:
    """Whether what the process runs is the machine's own file of this path, which root alone may change."""
    for directory in directories(pid):
        with suppress(OSError):
            runs, ours = os.stat(f"{directory}/exe"), os.stat(_outside(program))
            return os.path.samestat(runs, ours) and not others(program, ours)
    return False


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


class Owners:
    """Which manifest owns which cgroup: no pod's may be, hold, or lie in another's."""

    def __init__(self) -> None:
        self._at: dict[str, str] = {}
        self._below: dict[str, str] = {}  # every directory above an owned one -> an owner below it

    def claim(self, cgroup: Path, where: str) -> str | None:
        """The owner of a cgroup that overlaps; None if there is none, and then it is owned from now on."""
        text = str(cgroup)  # as text: pathlib's parents would be half the time of a scan
        above = [text[:i] for i, character in enumerate(text) if character == "/"]
        other = self._at.get(text) or self._below.get(text)
        other = other or next((self._at[a] for a in above if a in self._at), None)
        if other is None:
            self._at[text] = where
            self._below.update(dict.fromkeys(above, where))
        return other
