"""A brake under which a pod still runs, so that it can answer SIGTERM: cgroup v2's memory.high far below what it holds.

A thread that allocates a page sleeps for up to 2 s at its next return to user space: it gets 0.13 MiB a second (1 MiB
with huge pages), and handlers of signals run in 0.05 to 2 s (measured). A fork bomb gets around that, so
pids.max is set to the number of threads that run.

Up to Linux 6.15 a memory.high below the usage reclaims in the writer, 2 to 460 ms, with much slab 2.2 s: the hot
process never writes one. From 6.16 on a write to a file opened with O_NONBLOCK does not reclaim.
"""

from __future__ import annotations

from pathlib import Path

from monitor.actions.ledger import BrakeLedger, Ledger
from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.wire import PAGE

HIGH, TASKS = "memory.high", "pids.max"
#: Part of what cannot be reclaimed: the penalty is at its most, 2 s, from 1.2 times memory.high on.
_PART = 0.65
#: Bytes a second that a thread still allocates.
THREAD_BPS, HUGE_THREAD_BPS = 136_000, 1 << 20


class SoftBrake:
    """Of one pod. Raises OSError, or MonitorError with the reason, where nothing can be changed."""

    def __init__(self, uid: str, cgroup: Path, ledger: Ledger) -> None:
        #: memory.high that is in force, bytes; 0: none of this brake.
        self.high = 0
        self._cgroup = cgroup
        self._changes = BrakeLedger(uid, ledger)
        if cgroup.exists() and not (cgroup / TASKS).exists():
            raise MonitorError(f"{cgroup} has no {TASKS}: a pod that forks would get around the brake", "")
        if obstacle := self._changes.open(cgroup, HIGH, TASKS):
            self._changes.close()
            raise MonitorError(obstacle, "")

    def soften(self, cap: int, grace_s: float) -> None:
        """Brake a pod that may grow up to ``cap`` bytes (0: no cap) and runs for ``grace_s``. May block for seconds.
        Raises OSError or MonitorError, and then changes nothing.
        """
        usage, kept, huge = _figures(self._cgroup)
        threads = int((self._cgroup / "pids.current").read_text())
        pace = threads * (HUGE_THREAD_BPS if huge else THREAD_BPS)
        if cap and pace * grace_s > cap - usage:
            raise MonitorError(
                f"{threads} threads would take {max(0, cap - usage)} bytes in less than {grace_s:g} s", ""
            )
        high = int(kept * _PART) // PAGE * PAGE
        most, own = (cgroupfs.limit_of(self._changes.files[name].read().encode()) for name in (TASKS, HIGH))
        values = dict[str, str]()
        if most is None or most > threads:  # a lower one forbids forks; raised it would allow some
            values[TASKS] = str(threads)
        if own is None or own > high:
            values[HIGH] = str(high)
        try:
            self._changes.put(values)
        except OSError:
            if not self.high:
                self._changes.put_back()
            raise
        self.high = high if HIGH in values else own or 0

    def harden(self) -> list[tuple[str, str]]:
        """Undo it: (file, what became of it). What the kernel refuses to undo stays noted."""
        found = self._changes.put_back()
        found += [(name, "refused by the kernel") for name in self._changes.changes]
        self._changes.close()
        return found


def _figures(cgroup: Path) -> tuple[int, int, bool]:
    """Bytes used, bytes that reclaim would leave (swap is not counted on), and whether it has huge pages."""
    try:
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        usage = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError) as error:
        raise MonitorError(f"{cgroup}: its memory cannot be read: {error}", "") from error
    given = sum(int(stat.get(name, 0)) for name in ("inactive_file", "active_file", "slab_reclaimable"))
    return usage, max(0, usage - given), int(stat.get("anon_thp", 0)) > 0
