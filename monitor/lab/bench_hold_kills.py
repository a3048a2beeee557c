"""`outrace bench kills --mode hold`: SIGKILL to the monitor's own processes at random moments of holds.

The hot process is started again at once, by the lab, as a service manager would; the side by the hot process. Nobody
may stay held, no file and no oom_score_adj may be other than before, and the OOM killer may not kill where a pod was
held as the SIGKILL came.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from monitor.actions.ledger import OF_PROCESSES
from monitor.errors import MonitorError
from monitor.kernel import loader
from monitor.lab.bench import Row
from monitor.lab.child import Child, until
from monitor.lab.daemon import LabDaemon
from monitor.lab.hold_race import HoldStage, differences
from monitor.lab.node import MIB, LabNode

HOT, SIDE = "hot", "side"
NODE_BYTES = 512 * MIB
MARGIN = 32 * MIB
#: The loads that a hold interrupts: page faults, a file in memory, one system call.
_LOADS = ("4k", "thp", "tmpfs", "one-write", "fork")
#: What is killed is killed so long after the pod was seen to be held, or after there was room again.
_WITHIN_S = 1.0
#: So long after it is ready again a monitor may hold a pod that it releases.
_RELEASED_S = 30.0
_LOOK_S = 0.0005


@dataclass
class HoldTally:
    """What came of the runs in which one of the processes was killed."""

    runs: int = 0
    held: int = 0  # the pod was held as the SIGKILL came
    right: int = 0  # all of the pod's processes went on, and what they had is what they had written
    killed: int = 0  # by outrace, at the second line
    oom: int = 0  # races that the kernel won where nobody was held yet, or any more
    problems: list[str] = field(default_factory=list)

    def row(self, name: str) -> Row:
        return {"name": name, "unit": "runs", **asdict(self)}


class HoldKills:
    """Context manager: a stage for holds, and a daemon on it that is killed in the midst of them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._node = LabNode("kills", NODE_BYTES, with_freezer=True)
        self._options = ("--mode", "hold", "--eviction-hard", f"memory.available<{MARGIN}")
        self.tallies = {HOT: HoldTally(), SIDE: HoldTally()}
        self.left_behind: list[str] = []

    def __enter__(self) -> HoldKills:
        with ExitStack() as stack:
            stack.enter_context(self._node)
            self._stage = HoldStage(self._node, MARGIN)
            self._scores = {child: {oom_score_adj(child.pid)} for child in self._node.children}
            self._daemon = LabDaemon(self._node, *self._options)
            stack.callback(self._look_for_changes)
            stack.enter_context(self._daemon)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.left_behind += left_behind(self._node, self._daemon)

    def _look_for_changes(self) -> None:
        """The daemon has ended: nothing of its holds is there, not even of what the last one left."""
        self.left_behind += self._changed() + self._changed_scores()
        self.left_behind += [f"{path} still has {name}" for path, name in _attributes(self._stage.victim.cgroup)]

    def run(self, what: str) -> None:
        """One hold with a kill in it."""
        tally, stage = self.tallies[what], self._stage
        tally.runs += 1
        number = sum(each.runs for each in self.tallies.values())
        kind, count = self._random.choice(_LOADS), self._random.choice((1, 2, 4))
        at_release = self._random.random() < 0.25
        stage.load()
        before, since = self._node.oom_kills(), len(self._daemon.log)
        children = stage.start(kind, count)
        for child in children:
            child.send("go")
        self._wait_for_hold(children, before)
        if not at_release:
            self._wait(self._random.uniform(0, _WITHIN_S))
        else:
            time.sleep(0.1)
            stage.unload()
            self._wait(self._random.uniform(0, _WITHIN_S))
        held = bool(self._changed())
        lost_before = self._node.oom_kills() > before
        strike(self._daemon, what)
        if not at_release:
            self._wait(self._random.uniform(0, _WITHIN_S))  # the next one has a hold to go on with
            stage.unload()
        tally.held += held
        self._settle(tally, number, children)
        oom = self._node.oom_kills() - before
        self._daemon.poll()
        evicted = any(r.get("msg") == "evicting" for r in self._daemon.log[since:])
        tally.oom, tally.killed = tally.oom + bool(oom), tally.killed + evicted
        if oom and held and not lost_before:
            tally.problems.append(f"run {number}: {kind} x {count}: the OOM killer killed {oom} that were held")
        for child in children:
            self._node.end(child)
        if evicted:
            stage.renew(self._daemon)

    def _wait_for_hold(self, children: list[Child], oom_kills: int) -> None:
        """Until the kernel has a brake, or everything is over."""

        def over() -> bool:
            dead = any(child.process.poll() is not None for child in children)
            return dead or bool(self._changed()) or self._node.oom_kills() > oom_kills

        until(over, "a hold", pause=_LOOK_S)

    def _wait(self, seconds: float) -> None:
        """A part of the moments lies close to what has just happened."""
        time.sleep(seconds * self._random.choice((0.0, 0.01, 0.1, 1.0)))

    def _changed(self) -> list[str]:
        return differences(self._stage.before, self._stage.snapshot())

    def _settle(self, tally: HoldTally, number: int, children: list[Child]) -> None:
        """Everybody goes on, and everything is as before."""
        until(lambda: self._daemon.get("/readyz")[0] == 200, "the monitor to be ready again")
        right = True
        for child in children:
            if not child.answer(_RELEASED_S).startswith("grown"):
                right = False
                continue
            child.send("check")
            right = child.answer() == "right" and right
        tally.right += right
        deadline = time.monotonic() + _RELEASED_S
        while (changed := self._changed()) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        tally.problems += [f"run {number}: {line}" for line in changed]
        for child in self._scores:
            if child.process.poll() is not None:
                raise MonitorError(f"run {number}: a pod that had no part in it was killed")

    def _changed_scores(self) -> list[str]:
        """Whose oom_score_adj is neither as before nor that of its pod's QoS class."""
        self._daemon.poll()
        for record in self._daemon.log:
            for child, scores in self._scores.items():
                if record.get("pid") == child.pid and "should_be" in record:
                    scores.add(int(record["should_be"]))
        return [
            f"oom_score_adj of process {child.pid} is {oom_score_adj(child.pid)}, not one of {sorted(scores)}"
            for child, scores in self._scores.items()
            if oom_score_adj(child.pid) not in scores
        ]


def strike(daemon: LabDaemon, what: str) -> None:
    """SIGKILL to one of the monitor's processes. The hot one is started again at once, as a service manager would."""
    if what == SIDE:
        for pid in children(daemon.pid):
            os.kill(pid, signal.SIGKILL)
        return
    assert daemon.process is not None
    daemon.process.kill()
    daemon.process.wait()
    daemon.start()


def left_behind(node: LabNode, daemon: LabDaemon) -> list[str]:
    """What is there of a node and a daemon that have ended."""
    paths = (node.cgroup, loader.instance_directory(daemon.state_dir))
    return [f"{path} is left behind" for path in paths if path.exists()]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def oom_score_adj(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def _attributes(cgroup: Path) -> list[tuple[Path, str]]:
    """What is written down at a pod's cgroup about a hold."""
    names = [name for name in os.listxattr(cgroup) if "outrace" in name]
    return [(cgroup, name) for name in names if not name.endswith(OF_PROCESSES)]
