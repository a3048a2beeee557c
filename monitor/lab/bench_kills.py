"""`outrace bench kills`: SIGKILL to the monitor's own processes at random moments around a crossing.

The hot process is started again at once, by the lab, as a service manager would; the side by the hot process. What is
checked is what may never happen: an OOM kill without a record or in two, a second pod for one shortage, a pod that had
no part in it, something left behind.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field

import click
import psutil

from monitor.errors import EXIT_FAILURE, EXIT_OK, ConfigError, MonitorError
from monitor.kernel import cgroup_procs
from monitor.kernel.kmsg import Killed, Kmsg
from monitor.lab.bench import Found, Row, bench, number, print_rows, progress, trigger_option
from monitor.lab.bench_hold_kills import HOT, SIDE, HoldKills, children, left_behind, oom_score_adj, strike
from monitor.lab.child import PATIENCE_S, Hog, until
from monitor.lab.daemon import LabDaemon, Record
from monitor.lab.node import MIB, LabNode
from monitor.lab.race import populate
from monitor.settings.config import ENFORCE, HOLD
from monitor.side.incidents.reader import FILE_NAME, IncidentReader

NODE_BYTES = 256 * MIB
MARGIN = 16 * MIB
#: What is killed is killed between this much before the line and so long after.
_BEFORE = 8 * MIB
_AFTER_S = 0.04
#: MiB/s of the hogs; 0 is full speed.
_RATES = (0, 200, 800)
#: An episode is over after some seconds of quiet, and then stored.
_STORED_S = 20.0
#: So long it may take until an eviction is in the log.
_REPORT_TIMEOUT_S = 10.0
_NOT_MET = 'outrace_threshold_met{kind="hard",signal="memory.available"}'
_PROBLEMS_SHOWN = 20


@dataclass
class Tally:
    """What came of the runs in which one of the processes was killed."""

    runs: int = 0
    right: int = 0  # without a problem
    evicted: int = 0
    oom: int = 0  # races that the kernel won
    gone_on: int = 0  # evictions that the next daemon went on with
    told_by_next: int = 0  # evictions that only the next daemon reported
    problems: list[str] = field(default_factory=list)  # one line each

    def row(self, name: str) -> Row:
        self.right = self.runs - len({problem.partition(":")[0] for problem in self.problems})
        return {"name": name, "unit": "runs", **asdict(self)}


class Kills:
    """Context manager: a lab node with pods that have no part in it, and an enforcing daemon on it."""

    def __init__(self, seed: int, trigger: str) -> None:
        self._random = random.Random(seed)
        self._node = LabNode("kills", NODE_BYTES)
        self._options = ("--enforce", "--trigger", trigger, "--eviction-hard", f"memory.available<{MARGIN >> 20}Mi")
        self._kmsg = Kmsg()
        self._hogs: dict[int, int] = {}  # pid -> run
        self._killed: Counter[int] = Counter()  # pids that the kernel's log names
        self.tallies = {HOT: Tally(), SIDE: Tally()}
        self._decided: set[int] = set()
        self._ours: set[int] = set()  # pids that the monitor has had
        self._whose: dict[int, str] = {}  # run -> what was killed in it
        self.left_behind: list[str] = []

    def __enter__(self) -> Kills:
        with ExitStack() as stack:
            stack.callback(self._kmsg.close)
            stack.enter_context(self._node)
            self._victim = populate(self._node)
            self._node.fill(self._node.add_pod("idle", namespace="demo"), 24)  # the next in order
            self._daemon = stack.enter_context(LabDaemon(self._node, *self._options))
            self._bystanders = {child: oom_score_adj(child.pid) for child in self._node.children}
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.left_behind += left_behind(self._node, self._daemon)
        self.left_behind += [f"process {pid} of the monitor is left behind" for pid in self._ours if _is_ours(pid)]

    def run(self, what: str) -> None:
        """One race with a kill in it."""
        tally = self.tallies[what]
        tally.runs += 1
        number = len(self._whose) + 1
        self._whose[number] = what
        since, before = len(self._daemon.log), self._node.oom_kills()
        hogs = self._start_hogs(number)
        self._kill(what)
        until(lambda: all(hog.process.poll() is not None for hog in hogs), "the race to end")
        for hog in hogs:
            self._node.end(hog)
        until(lambda: self._daemon.get("/readyz")[0] == 200, "the monitor to be ready again")
        until(self._is_calm, "the pressure to end")
        self._ours |= {self._daemon.pid, *children(self._daemon.pid)}
        self._read_log()
        won = self._node.oom_kills() == before
        if won:  # the side may be a moment behind its own metrics
            self._daemon.wait_for(self._is_reported, _REPORT_TIMEOUT_S, since)
        self._daemon.poll()
        records = self._daemon.log[since:]
        # A restarted side receives messages again, and these may be of the run before.
        decided = {r["decided_ns"]: r["pod"] for r in records if r.get("msg") == "evicting"}
        decided = {when: pod for when, pod in decided.items() if when not in self._decided}
        self._decided |= decided.keys()
        tally.gone_on += sum("going on with the eviction" in str(r.get("msg")) for r in records)
        unsaid = sum("while it was signalling" in str(r.get("msg")) for r in records)
        tally.told_by_next += unsaid
        if won and not decided and not unsaid:
            tally.problems.append(f"run {number}: an eviction that nobody reported")
        tally.evicted, tally.oom = tally.evicted + won, tally.oom + (not won)
        if len(decided) > 1:
            tally.problems.append(f"run {number}: {len(decided)} evictions for one shortage: {list(decided.values())}")
        for pod in set(decided.values()) - {f"{self._victim.namespace}/{self._victim.name}"}:
            tally.problems.append(f"run {number}: {pod} was evicted")
        for child, score in self._bystanders.items():
            if child.process.poll() is not None:
                raise MonitorError(f"run {number}: a pod that had no part in it was killed")
            if oom_score_adj(child.pid) != score:
                tally.problems.append(f"run {number}: oom_score_adj of a pod that had no part in it has changed")

    def _start_hogs(self, number: int) -> list[Hog]:
        count, rate = self._random.choice((1, 3)), self._random.choice(_RATES)
        hogs = [self._node.start_hog(self._victim, mib=2 * NODE_BYTES // MIB // count, rate=rate) for _ in range(count)]
        self._hogs |= {hog.pid: number for hog in hogs}
        for hog in hogs:
            hog.go()
        return hogs

    def _kill(self, what: str) -> None:
        """At a random moment around the crossing."""
        line = NODE_BYTES - MARGIN - int(self._random.uniform(0, _BEFORE))
        deadline = time.monotonic() + PATIENCE_S
        while self._node.usage() < line and time.monotonic() < deadline:
            if not cgroup_procs.pids_below(self._victim.cgroup):
                break  # faster than we looked
        time.sleep(self._random.uniform(0, _AFTER_S) * self._random.choice((0.0, 0.1, 1.0)))
        strike(self._daemon, what)

    def _is_calm(self) -> bool:
        status, body = self._daemon.get("/metrics")
        return status == 200 and self._node.usage() < NODE_BYTES // 2 and f"{_NOT_MET} 0.0" in body

    def _is_reported(self, record: Record) -> bool:
        fresh = record.get("msg") == "evicting" and record["decided_ns"] not in self._decided
        return fresh or "while it was signalling" in str(record.get("msg"))

    def _read_log(self) -> None:
        for line in self._kmsg.read():
            if isinstance(line, Killed) and line.pid in self._hogs:
                self._killed[line.pid] += 1

    def check_records(self) -> None:
        """Every OOM kill in exactly one incident. Waits until the last episodes are stored."""
        reader = IncidentReader(self._daemon.state_dir / FILE_NAME)
        deadline = time.monotonic() + _STORED_S
        while True:
            self._read_log()
            found = Counter(
                v["pid"] for incident in reader.all() for v in incident["oom_victims"] if v["pid"] in self._hogs
            )
            if found == Counter(dict.fromkeys(self._killed, 1)) or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        for pid in self._killed.keys() | found.keys():
            number = self._hogs[pid]
            if found[pid] != 1 or pid not in self._killed:
                what = f"run {number}: the OOM kill of {pid} is in {found[pid]} incidents"
                self.tallies[self._whose[number]].problems.append(what)
        counted = self._node.oom_kills()
        if counted != len(self._killed):
            self.left_behind.append(f"the kernel counts {counted} OOM kills, its log {len(self._killed)}")


def _is_ours(pid: int) -> bool:
    try:
        return psutil.Process(pid).name().startswith("outrace")
    except psutil.NoSuchProcess:
        return False


@bench()
@number("--runs", 200, "Kills; half of them hit the side.")
@trigger_option
@click.option(
    "--mode",
    default=ENFORCE,
    show_default=True,
    type=click.Choice((ENFORCE, HOLD)),
    help="Whether pods are killed or held at the crossing.",
)
@click.option("--seed", type=int, help="Seed of the random moments of the kills. [random]")
def kills(runs: int, trigger: str, mode: str, seed: int | None) -> Found:
    """Kill the hot process or the side around the crossing, start it again, and look for what may never happen.

    That is: an OOM kill in no incident or in two, two evictions for one shortage, a pod that had no part in it killed
    or changed, anything left behind. Exit code 1 if there is any. Takes about 3 s for each run.

    With --mode hold they are killed in the midst of holds, or as one ends. What may never happen then: a pod that stays
    held, a file of a brake or an oom_score_adj that is not as before, an OOM kill although the pod was held.
    """
    seed = random.randrange(1 << 32) if seed is None else seed
    if mode == HOLD and trigger != "user":
        raise ConfigError(f"--trigger {trigger} kills at the crossing, where mode hold brakes", "leave it out")
    with HoldKills(seed) if mode == HOLD else Kills(seed, trigger) as races:
        for number in range(runs):
            races.run(HOT if number % 2 == 0 else SIDE)
            if sys.stderr.isatty():
                click.echo(f"\r{number + 1} of {runs}", err=True, nl=False)
        if isinstance(races, Kills):
            races.check_records()
    rows = [tally.row(what) for what, tally in races.tallies.items()]
    problems = [*races.left_behind, *(problem for row in rows for problem in row["problems"])]

    def show() -> None:
        held = "name runs held right killed oom"
        print_rows(held if mode == HOLD else "name runs right evicted oom gone_on told_by_next", rows)
        for line in (*problems[:_PROBLEMS_SHOWN], f"seed {seed}"):
            progress(line)

    more = {"seed": seed, "left_behind": races.left_behind}
    return Found(rows, more, EXIT_FAILURE if problems else EXIT_OK, show)
