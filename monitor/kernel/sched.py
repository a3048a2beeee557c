"""What keeps a process running when memory runs out: real-time scheduling, locked memory, a low OOM score.

Under the default scheduler 176 of 180 races against hogs at full speed were won, with tails of 1-4.4 ms; under
SCHED_FIFO 360 of 360, the worst 0.75 ms. SCHED_RESET_ON_FORK matters as much: inherited by children, FIFO lost 240 of
240.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

#: The first: to signal processes of other users.
CAP_KILL, _CAP_SYS_NICE = 5, 23
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_MADV_POPULATE_READ = 22
#: One above "never kill me" (-1000), which the kernel's OOM killer would honour even when only we are left.
OOM_SCORE_ADJ = -999
#: What a kubelet gives a system-node-critical pod, as the DaemonSet's: the OOM killer takes any other pod first.
NODE_CRITICAL_ADJ = -997
#: The nice value of threads between a kill and its alert: ten times the weight of an ordinary one.
HURRIED = -10
#: Of a daemon that starts, because nothing is watched until it has: among 80 others that want a CPU, as in a storm of
#: kills, half a second of CPU time took 2.8 to 4.3 s. Both processes see to it themselves, before they import this.
STARTING = -20
#: What `set_realtime` says where it got it.
_REALTIME = "SCHED_FIFO 1"


@dataclass(frozen=True)
class Protection:
    """What was achieved; ``notes`` has one line with the remedy for everything that was not."""

    scheduler: str  # "SCHED_FIFO 1", "nice -20" or "default"
    mlocked: bool
    oom_score_adj: int  # the value now in force
    notes: list[str] = field(default_factory=list)


def set_realtime() -> tuple[str, str]:
    """SCHED_FIFO priority 1 for this process but not its children, else nice -20, else nothing: (what, note or "")."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        return _REALTIME, ""
    except OSError as error:
        remedy = "give it CAP_SYS_NICE (systemd: AmbientCapabilities=CAP_SYS_NICE, LimitRTPRIO=1)"
        if has(_CAP_SYS_NICE):  # a container on such a kernel: none of the cgroups above has real-time runtime
            remedy = "this kernel wants cpu.rt_runtime_us in its cpu cgroup and all above (CONFIG_RT_GROUP_SCHED)"
        late = "detection may be late by milliseconds on busy CPUs"
        note = f"SCHED_FIFO refused ({error.strerror}): {late}; {remedy}"
    return ("nice -20" if _renice(-20) else "default"), note


def refuses_realtime() -> bool:
    """Whether `set_realtime` would get no SCHED_FIFO here: tried by a thread, which ends with what it got."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(set_realtime()[0]))
    thread.start()
    thread.join()
    return found != [_REALTIME]


def started() -> None:
    """Put every thread of this process back among ordinary ones: a start at `STARTING` is over.

    A thread that starts one before it is put back itself passes its nice value on, to one that was not listed: listed
    again until none is new. The kernel ends a listing at a thread that exits meanwhile (fs/proc/base.c, next_tid()).
    """
    back: set[str] = set()
    is_whole = False
    while not is_whole:
        listed = set(os.listdir("/proc/self/task"))
        is_whole = listed <= back and len(listed) >= os.stat("/proc/self/task").st_nlink - 2
        for thread in listed:
            try:
                os.setpriority(os.PRIO_PROCESS, int(thread), 0)
            except ProcessLookupError:
                is_whole = False
            except OSError:  # it may not be lowered by this user
                pass
        back |= listed


def hurry() -> bool:
    """Put the calling thread ahead of ordinary ones; threads it starts inherit that. False without CAP_SYS_NICE.

    With 30 pods at work on 2 CPUs an ordinary thread that wants 4 % of a CPU waits 94 % of the time, and an alert took
    11 s. At `HURRIED` it has the CPU within milliseconds.
    """
    return _renice(HURRIED)


def take_time() -> None:
    """Put the calling thread back among ordinary ones: what walks directories may wait."""
    _renice(0)


def _renice(value: int) -> bool:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), value)
        return True
    return False


def lock_memory() -> tuple[bool, str]:
    """Keep every page touched from now on (ONFAULT: RSS does not grow by the mapping size): (locked, note or "")."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0:
        return True, ""
    reason = os.strerror(ctypes.get_errno())
    return False, (
        f"mlockall refused ({reason}): under pressure this process may wait for its own pages; "
        "give it CAP_IPC_LOCK or LimitMEMLOCK=infinity"
    )


def touch_files() -> None:
    """Read in every page of the program and its libraries, which `lock_memory` then keeps. Nothing before Linux 5.14.

    Of 14 MiB no code has used 4 when a daemon is ready, and the first decision needs 60 pages of them. The kernel drops
    such page cache before memory is short, and then each page waits for a disk and for free memory.
    """
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, _, _, _, *path = line.split(maxsplit=5)
        if path and path[0].startswith("/") and rights[0] + rights[3] == "rp":
            begin, end = (int(address, 16) for address in span.split("-"))
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_POPULATE_READ)


def set_oom_score_adj() -> tuple[int, str]:
    """Lower this process's OOM score: (the value in force, note or "")."""
    path = Path("/proc/self/oom_score_adj")
    try:
        path.write_text(str(OOM_SCORE_ADJ))
        return OOM_SCORE_ADJ, ""
    except OSError as error:  # EACCES: lowering below what the process was started with needs CAP_SYS_RESOURCE
        now = int(path.read_text())
        if now <= NODE_CRITICAL_ADJ:
            return now, ""
        risk = f"the OOM killer may choose this process (now {now})"
        remedy = "give it CAP_SYS_RESOURCE (systemd: OOMScoreAdjust=-999)"
        return now, f"oom_score_adj {OOM_SCORE_ADJ} refused ({error.strerror}): {risk}; {remedy}"


def protect() -> Protection:
    """Do all of it for the calling process, and move what exists now out of the garbage collector's sight. Never raises
    for a missing privilege: `Protection` says in words what was refused and what to do about it.
    """
    scheduler, no_realtime = set_realtime()
    gc.collect()
    gc.freeze()
    mlocked, no_lock = lock_memory()
    touch_files()
    adj, no_adj = set_oom_score_adj()
    return Protection(scheduler, mlocked, adj, [note for note in (no_realtime, no_lock, no_adj) if note])


def has(capability: int) -> bool:
    """Whether this process has a capability (its number in linux/capability.h)."""
    effective = Path("/proc/self/status").read_text().partition("\nCapEff:")[2].split()[0]
    return bool(int(effective, 16) >> capability & 1)
