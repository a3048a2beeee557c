"""Whether the side still turns; and where it does not, whether it hangs or only has to wait.

The side writes the time of every turn into the shared counters, twice a second at least, and winds up a timer that both
processes hold: the hot one sleeps until it runs out. (Looking by itself twice a second cost it 30 ms of CPU time a
minute, with a budget of 20 for all it does while it is idle.) A side that has missed its ping is looked at in /proc,
for half a second in which this process is awake itself, and hangs when one of these holds:

* it is stopped (SIGSTOP, a debugger);
* its main thread sleeps in one system call and has not run once meanwhile (a stuck file system, a deadlock);
* all its threads together have used `SPENT_NS` of CPU time since then (an endless loop).

A starved machine is none of these: a thread that waits for a CPU is runnable and uses none, and one that waits for its
own pages sleeps in no system call. `PAGING_NS` is for the second: a disk under the pages may hang as well.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import NamedTuple

from monitor.kernel.timer import Timer
from monitor.link.counters import SharedStats

#: The side's turns are this far apart at most.
HEARTBEAT_NS = 500_000_000
#: A ping that is so old was missed, and the evidence is gathered over so long, in looks so far apart: noticed after
#: 1.25 to 1.75 s.
MISSED_NS, _WINDOW_NS, _CLOSER_NS = 750_000_000, 500_000_000, 250_000_000
#: CPU time of an endless loop: as much as a side needs to start (0.5 s here, 10 s on an emulated CPU; it says how much
#: that was), and this at least. No turn takes a tenth of it.
SPENT_NS, SPENT_AT_START_NS = 600_000_000, 60_000_000_000
#: A main thread that sleeps in no system call waits for a page of its own.
PAGING_NS = 10_000_000_000
#: One that ends stores what it knows, and has as long for it as at the daemon's end.
ENDING_NS = 20_000_000_000
#: Of a side, as it says itself in the shared counters.
STARTING, TURNING, ENDING = 0, 1, 2
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Evidence(NamedTuple):
    """What /proc says of a process: state of its main thread (a letter, "" for a process that is gone), how often that
    stopped running, CPU time of all threads in ns, and whether the main thread is in a system call (None: unknown).
    """

    state: str
    runs: int
    cpu_ns: int
    in_syscall: bool | None


def examine(pid: int) -> Evidence:
    """Never raises, never waits: an answer that cannot be had is no evidence."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/task/{pid}/status", "rb") as file:
            runs = sum(int(line.split()[1]) for line in file if b"_ctxt_switches" in line)
        return Evidence(fields[0].decode(), runs, (int(fields[11]) + int(fields[12])) * _TICK_NS, _in_syscall(pid))
    except (OSError, ValueError, IndexError):
        return Evidence("", 0, 0, None)


def _in_syscall(pid: int) -> bool | None:
    """Not of a process that runs (proc_pid_syscall(5)). May be refused: CAP_SYS_PTRACE."""
    try:
        with open(f"/proc/{pid}/syscall", "rb") as file:
            first = file.read().split()[0]
    except (OSError, IndexError):
        return None
    return None if first == b"running" else first != b"-1"


@dataclass(eq=False)
class HeartbeatWatch:
    """The hot process's look at the pings of one side after the other. ``timer`` is the one that they wind up."""

    stats: SharedStats
    timer: Timer
    next_ns: int | None = None  # when to look again; None: when the timer has run out
    _began_ns: int = 0
    _ping_ns: int = -1  # the ping after which it was last seen to use no CPU time yet
    _cpu_ns: int = 0  # then
    _first: tuple[int, Evidence] | None = None  # of the evidence on this missed ping

    def begin(self, now_ns: int) -> None:
        self._began_ns, self.next_ns = now_ns, None
        self._ping_ns, self._cpu_ns, self._first = -1, 0, None
        self.stats.set("side_heartbeat_ns", 0)
        self.stats.set("side_stage", STARTING)
        self.timer.set(MISSED_NS)

    def missed(self) -> None:
        self.timer.acknowledge()
        self.next_ns = 0

    def look(self, now_ns: int, pid: int) -> str:
        """Why the side ``pid`` hangs; "" while it does not, or that is not known yet."""
        self.next_ns = None
        ping_ns = max(self._began_ns, self.stats.get("side_heartbeat_ns"))
        stage = self.stats.get("side_stage")
        left_ns = ping_ns + (ENDING_NS if stage == ENDING else MISSED_NS) - now_ns
        if left_ns > 0:
            self._first = None
            self.timer.set(left_ns)
            return ""
        found = examine(pid)
        self.next_ns = now_ns + _CLOSER_NS
        if self._first is None or ping_ns != self._ping_ns or not found.state:
            self._ping_ns, self._cpu_ns, self._first = ping_ns, found.cpu_ns, (now_ns, found)
            return ""
        since_ns, first = self._first
        if found.runs != first.runs or found.state == "R":
            self._first = (now_ns, found)  # it moves, or waits for a CPU; what it has used stays counted
            least = max(SPENT_NS, self.stats.get("side_start_cpu_ns")) if stage != STARTING else SPENT_AT_START_NS
            spent_ns = found.cpu_ns - self._cpu_ns
            return f"used {spent_ns / 1e9:.1f} s of CPU time in one turn" if spent_ns >= least else ""
        if now_ns - since_ns < _WINDOW_NS:
            return ""
        if found.state in "Tt":
            return "is stopped"
        if found.in_syscall or now_ns - since_ns >= PAGING_NS:
            return f"sleeps in state {found.state}"
        return ""


@dataclass(eq=False)
class Heartbeat:
    stats: SharedStats
    timer: Timer

    def ping(self) -> None:
        now_ns = time.monotonic_ns()
        # A system call is no part of every message.
        if now_ns - self.stats.get("side_heartbeat_ns") > HEARTBEAT_NS // 8:
            self.timer.set(MISSED_NS)
        self.stats.set("side_heartbeat_ns", now_ns)

    def enter(self, stage: int) -> None:
        if stage == TURNING:
            self.stats.set("side_start_cpu_ns", time.process_time_ns())
        self.stats.set("side_stage", stage)
        self.ping()
