"""`outrace bench kills`: SIGKILL to the monitor's own processes at random moments around a crossing, or of holds.

The lab starts the hot process again at once, as a service manager would; the hot process starts the helper.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import psutil

from monitor.actions.ledger import OF_PROCESSES
from monitor.errors import EXIT_FAILURE, EXIT_OK, ConfigError, MonitorError
from monitor.kernel import cgroup_procs
from monitor.lab.bench import Found, Row, bench, mode_option, number, progress, trigger_option
from monitor.lab.child import until
from monitor.lab.daemon import LabDaemon, Record
from monitor.lab.node import MIB, LabNode
from monitor.lab.race import HoldStage, go_on, populate
from monitor.settings.config import HOLD
from monitor.side.incidents import FOLDER, IncidentReader

HOT, SIDE = "hot", "side"
#: What is killed is killed between this much before the line and so long after.
_BEFORE = 8 * MIB
_AFTER_S = 0.04
#: In mode hold: so long after the pod was seen to be held, or after there was room again.
_WITHIN_S = 1.0
#: MiB/s of the hogs; 0 is full speed.
_RATES = (0, 200, 800)
#: The loads that a hold interrupts: page faults, a file in memory, one system call.
_LOADS = ("4k", "thp", "tmpfs", "one-write", "fork")
#: An episode is over after some seconds of quiet, and then stored.
_STORED_S = 20.0
#: So long it may take until an eviction is in the log.
_REPORT_TIMEOUT_S = 10.0
#: So long after it is ready again a monitor may hold a pod that it releases.
_RELEASED_S = 30.0
_LOOK_S = 0.0005
_NOT_MET = 'outrace_threshold_met{kind="hard",signal="memory.available"}'
_PROBLEMS_SHOWN = 20


class Kills(ABC):
    """Runs on a node whose daemon is killed in each of them, and what came of them: a row for each process."""

    #: What is counted: columns of the table.
    columns: str
    #: Of the node, and from its limit to the threshold.
    node_bytes, margin = 256 * MIB, 16 * MIB

    def __init__(self, node: LabNode, daemon: LabDaemon, seed: int) -> None:
        self._node, self._daemon, self._random = node, daemon, random.Random(seed)
        self._scores = {child: {child.oom_score_adj} for child in node.children}
        counts = {"unit": "runs", **dict.fromkeys(self.columns.split(), 0)}
        self.rows: dict[str, Row] = {what: {"name": what, **counts, "problems": []} for what in (HOT, SIDE)}
        self._number = 0
        self.ours: set[psutil.Process] = set()  # processes that the monitor has had
        self.left_behind: list[str] = []

    @abstractmethod
    def _race(self, row: Row, since: int) -> Iterator[str]:
        """One run with a kill in it: its problems. ``since``: where the log of the daemon is."""

    @abstractmethod
    def finish(self) -> None:
        """What is checked after all runs."""

    def run(self, what: str) -> None:
        self._number += 1
        row = self.rows[what]
        row["runs"] += 1
        row["problems"] += [f"run {self._number}: {problem}" for problem in self._race(row, len(self._daemon.log))]
        hot = psutil.Process(self._daemon.pid)
        self.ours |= {hot, *hot.children()}
        if any(child.process.poll() is not None for child in self._scores):
            raise MonitorError(f"run {self._number}: a pod that had no part in it was killed")

    def _strike(self, row: Row) -> None:
        """SIGKILL to one of the monitor's processes. The hot one starts again at once."""
        if row["name"] == SIDE:
            # psutil reads every process of the machine, 3 ms: the moment would be another one.
            pid = self._daemon.pid
            for side in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.kill(int(side), signal.SIGKILL)
            return
        assert self._daemon.process is not None
        self._daemon.process.kill()
        self._daemon.process.wait()
        self._daemon.start()

    def _changed_scores(self) -> list[str]:
        """Whose oom_score_adj is neither as before nor that of its pod's QoS class."""
        for record in self._daemon.log:
            for child, scores in self._scores.items():
                if record.get("pid") == child.pid and "should_be" in record:
                    scores.add(int(record["should_be"]))
        return [
            f"oom_score_adj of process {child.pid} is {child.oom_score_adj}, not one of {sorted(scores)}"
            for child, scores in self._scores.items()
            if child.oom_score_adj not in scores
        ]


class EnforceKills(Kills):
    #: `oom`: races that the kernel won.
    columns = "runs right evicted oom"

    def __init__(self, node: LabNode, daemon: LabDaemon, seed: int) -> None:
        self._victim = populate(node)
        node.fill(node.add_pod("idle", namespace="demo"), 24)  # the next in order
        #: Of each run: its number, row and pids, and OOM kills as the kernel counts them.
        self._killed: list[tuple[int, Row, set[int], int]] = []
        self._decided: set[int] = set()
        super().__init__(node, daemon, seed)

    def _race(self, row: Row, since: int) -> Iterator[str]:
        before = self._node.oom_kills()
        count, rate = self._random.choice((1, 3)), self._random.choice(_RATES)
        mib = 2 * self.node_bytes // MIB // count
        hogs = [self._node.start_hog(self._victim, mib=mib, rate=rate) for _ in range(count)]
        for hog in hogs:
            hog.go()
        # At a random moment around the crossing.
        line, cgroup = self.node_bytes - self.margin - int(self._random.uniform(0, _BEFORE)), self._victim.cgroup
        until(lambda: self._node.usage() >= line or not cgroup_procs.pids_below(cgroup), "a crossing", pause=0.0)
        time.sleep(self._random.uniform(0, _AFTER_S) * self._random.choice((0.0, 0.1, 1.0)))
        self._strike(row)
        until(lambda: all(hog.process.poll() is not None for hog in hogs), "the race to end")
        for hog in hogs:
            self._node.end(hog)
        until(self._is_calm, "the monitor to be ready again, and the pressure to end")
        kills = self._node.oom_kills() - before
        self._killed.append((self._number, row, {hog.pid for hog in hogs}, kills))
        if not kills:  # the side may be a moment behind its own metrics
            self._daemon.wait_for(self._is_reported, _REPORT_TIMEOUT_S, since)
        row["oom" if kills else "evicted"] += 1
        yield from self._misreported(since, not kills)
        yield from self._changed_scores()

    def _misreported(self, since: int, won: bool) -> Iterator[str]:
        records = self._daemon.log[since:]
        # A restarted side receives messages again, and these may be of the run before.
        evicting = [r for r in records if r.get("msg") == "evicting"]
        decided = {r["decided_ns"]: r["pod"] for r in evicting if r["decided_ns"] not in self._decided}
        self._decided |= decided.keys()
        if won and not decided and not any(self._is_reported(r) for r in records):
            yield "an eviction that nobody reported"
        if len(decided) > 1:
            yield f"{len(decided)} evictions for one shortage: {list(decided.values())}"
        for pod in set(decided.values()) - {f"{self._victim.namespace}/{self._victim.name}"}:
            yield f"{pod} was evicted"

    def _is_calm(self) -> bool:
        status, body = self._daemon.get("/metrics")
        return status == 200 and self._node.usage() < self.node_bytes // 2 and f"{_NOT_MET} 0.0" in body

    def _is_reported(self, record: Record) -> bool:
        fresh = record.get("msg") == "evicting" and record["decided_ns"] not in self._decided
        return fresh or "while it was signalling" in str(record.get("msg"))

    def _misjudged(self) -> list[tuple[Row, str]]:
        """The runs whose OOM kills are not each in exactly one incident."""
        incidents = IncidentReader(self._daemon.state_dir / FOLDER).all()
        found = Counter(victim["pid"] for incident in incidents for victim in incident["oom_victims"])
        return [
            (row, f"run {number}: of {kills} OOM kills these are in incidents: {judged}")
            for number, row, pids, kills in self._killed
            if len(judged := [pid for pid in found.elements() if pid in pids]) != kills or len(set(judged)) != kills
        ]

    def finish(self) -> None:
        """Waits until the last episodes are stored."""
        with suppress(MonitorError):
            until(lambda: not self._misjudged(), "the last incident", _STORED_S, 0.5)
        for row, problem in self._misjudged():
            row["problems"].append(problem)
        for row in self.rows.values():
            row["right"] = row["runs"] - len({problem.partition(":")[0] for problem in row["problems"]})


class HoldKills(Kills):
    #: `held`: the pod was held as the SIGKILL came; `right`: all of its processes went on, and what they had is what
    #: they had written; `killed`: by outrace, at the kill threshold; `oom`: by the kernel, where no pod was held.
    columns = "runs held right killed oom"
    node_bytes, margin = 512 * MIB, 32 * MIB

    def __init__(self, node: LabNode, daemon: LabDaemon, seed: int) -> None:
        self._stage = HoldStage(node, self.margin)
        super().__init__(node, daemon, seed)

    def _race(self, row: Row, since: int) -> Iterator[str]:
        stage, before = self._stage, self._node.oom_kills()
        kind, count = self._random.choice(_LOADS), self._random.choice((1, 2, 4))
        at_release = self._random.random() < 0.25
        with stage.growing(kind, count) as hogs:

            def held_or_over() -> bool:
                dead = any(hog.process.poll() is not None for hog in hogs)
                return dead or bool(stage.changed()) or self._node.oom_kills() > before

            until(held_or_over, "a hold", pause=_LOOK_S)
            if at_release:
                time.sleep(0.1)
                stage.unload()
            self._wait()
            held = bool(stage.changed())
            lost_before = self._node.oom_kills() > before
            self._strike(row)
            if not at_release:
                self._wait()  # the next one has a hold to go on with
                stage.unload()
            until(lambda: self._daemon.get("/readyz")[0] == 200, "the monitor to be ready again")
            right, _ = go_on(hogs, _RELEASED_S)
            with suppress(MonitorError):
                until(lambda: not stage.changed(), "the pod to be as before", _RELEASED_S, _LOOK_S)
            yield from stage.changed()
        oom = self._node.oom_kills() - before
        evicted = any(r.get("msg") == "evicting" for r in self._daemon.log[since:])
        for key, happened in (("held", held), ("right", right), ("oom", oom > 0), ("killed", evicted)):
            row[key] += happened
        if oom and held and not lost_before:
            yield f"{kind} x {count}: the OOM killer killed {oom} that were held"
        if evicted:
            stage.renew(self._daemon)

    def _wait(self) -> None:
        """A part of the moments lies close to what has just happened."""
        time.sleep(self._random.uniform(0, _WITHIN_S) * self._random.choice((0.0, 0.01, 0.1, 1.0)))

    def finish(self) -> None:
        """Nothing of the holds is there when the daemon has ended, not even of what the last one left."""
        self._daemon.stop()
        self.left_behind += self._stage.changed() + self._changed_scores()
        cgroup = self._stage.victim.cgroup
        noted = (name for name in os.listxattr(cgroup) if "outrace" in name and not name.endswith(OF_PROCESSES))
        self.left_behind += [f"{cgroup} still has {name}" for name in noted]


@bench()
@number("--runs", 200, "Kills; half of them of the helper.")
@trigger_option
@mode_option
@click.option("--seed", type=int, help="Seed of the random moments of the kills. [random]")
def kills(runs: int, trigger: str, mode: str, seed: int | None) -> Found:
    """Kill the hot process or the helper near a crossing, start it again, and look for what may never happen.

    That is: an OOM kill in no incident or in two, two evictions for one shortage, a pod without part in it killed or
    changed, anything left behind. Exit code 1 if there is any. A run takes about 3 s.

    With --mode hold, kill them during holds or as one ends. What may never happen then: a pod that stays held, a
    limit, freezer or oom_score_adj with another value than before, an OOM kill of a held pod.
    """
    seed = random.randrange(1 << 32) if seed is None else seed
    if mode == HOLD and trigger != "user":
        raise ConfigError(f"--trigger {trigger} kills at the crossing, where mode hold brakes", "leave it out")
    kind: type[Kills] = HoldKills if mode == HOLD else EnforceKills
    with LabNode("kills", kind.node_bytes, with_freezer=mode == HOLD) as node:
        options = ("--mode", mode, "--trigger", trigger, "--eviction-hard", f"memory.available<{kind.margin}")
        daemon = LabDaemon(node, *options)
        races = kind(node, daemon, seed)
        with daemon:
            for number in range(runs):
                races.run(HOT if number % 2 == 0 else SIDE)
                if sys.stderr.isatty():
                    click.echo(f"\r{number + 1} of {runs}", err=True, nl=False)
            races.finish()
    # The janitor removes cgroups and pins, or says that it could not.
    running = (one for one in races.ours if one.is_running())
    races.left_behind += [f"process {one.pid} of the monitor is left behind" for one in running]
    rows = list(races.rows.values())
    problems = [*races.left_behind, *(problem for row in rows for problem in row["problems"])]
    for line in (*problems[:_PROBLEMS_SHOWN], f"seed {seed}"):
        progress(line)
    more = {"seed": seed, "left_behind": races.left_behind}
    return Found(rows, more, EXIT_FAILURE if problems else EXIT_OK, f"name {races.columns}")
