"""What a daemon that was killed in the middle of an eviction leaves to the next one.

The pod may still be dying, or dead with its memory still charged. Without this the next daemon would evict another pod
for the same shortage. So it continues the eviction, and counts the pod's memory as pending release, before its passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice

from monitor.actions.evict import Eviction
from monitor.hot.evictor import ASKED, EVICTION_TIMEOUT_NS, GONE, Evictor, Noted
from monitor.hot.pending_release import MOST_BOUND_NS
from monitor.kernel import cgroup_procs
from monitor.kernel.procfs import born_ns, lives
from monitor.sources.registry import PodEntry

#: Cgroups and processes of the pod that are looked at, up to 30 us each: the first decision waits.
_MOST = 1000


def succeed(evictor: Evictor, pulled_ns: int, *, pressed: bool) -> None:
    """Continue the eviction of the earlier daemon, if there was one. Called once, when all pods are known.
    ``pulled_ns``: when the kernel pulled the trigger while no daemon ran. ``pressed``: a memory threshold is met.
    """
    noted = evictor.note.read()
    if pulled_ns and evictor.trigger.inherited and (noted is None or noted.started_ns < pulled_ns):
        evictor.note.begin(evictor.trigger.inherited, 0, pulled_ns)
        noted = evictor.note.read()
    if noted is None:
        return
    entry = next((one for one in evictor.registry if one.cgroup_id == noted.cgroup_id), None)
    if entry is None:
        return
    now = time.monotonic_ns()
    usage = evictor.gauge.table.working_set(entry.index)
    times = {"started_ns": noted.started_ns, "killed_ns": noted.killed_ns or None}
    log, about = evictor.outbox.log, {"pod": entry.title, **times, "bytes": usage}
    until = max(noted.kill_at_ns, noted.killed_ns, noted.started_ns) + EVICTION_TIMEOUT_NS
    if not noted.reported and now < until:
        log("warning", "the daemon before ended while it was signalling a pod", **about)
        evictor.note.reported()
    if noted.state == GONE or _is_over(entry, noted):
        if cgroup_procs.empty(entry.cgroup, _MOST):
            if now < noted.killed_ns + MOST_BOUND_NS:
                evictor.pending.dropped(entry, now)  # its memory may be a pending release
            evictor.registry.set_evicted(entry, True)  # and what stays is no reason to evict it again
        evictor.note.mark(GONE)
        return
    if now > until or not (pressed or noted.state == ASKED or _is_dying(entry)):
        # Its signal may not have gone out at all: the note is written first.
        evictor.note.mark(0)
        return
    held = max(noted.held, usage)
    victim = evictor.trigger.take(entry)
    # Its SIGKILL goes out again now, and from now on it is seen whether it gives anything back. SIGTERM is sent once.
    ends = (None, time.monotonic_ns()) if noted.killed_ns else (noted.kill_at_ns, None)
    eviction = Eviction(victim, held, noted.started_ns, *ends)
    eviction.name = entry.title
    evictor.resume(eviction, entry)
    log("warning", "going on with the eviction that the daemon before had begun", **about)


def _is_dying(entry: PodEntry) -> bool:
    """Whether a SIGKILL has reached anybody in it."""
    return _are_all(entry, lives) is False


def _is_over(entry: PodEntry, noted: Noted) -> bool:
    """Whether none of the processes that the eviction found is left: those that run now were started since, and are not
    signalled. False where there are too many to tell: then the eviction continues.
    """
    if cgroup_procs.empty(entry.cgroup, _MOST):
        return True
    if noted.state == ASKED:
        return False
    return _are_all(entry, lambda pid: (born := born_ns(pid)) is None or born > noted.killed_ns) is True


def _are_all(entry: PodEntry, is_so: Callable[[int], bool]) -> bool | None:
    """Whether it is so of all processes of a pod; None where it is of the first, and there may be more."""
    left = _MOST
    for _, pids in cgroup_procs.walk(entry.cgroup):
        if not all(map(is_so, islice(pids, left))):
            return False
        left -= 1 + len(pids)
        if left <= 0:
            return None
    return True
