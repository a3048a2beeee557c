"""A scripted situation with a known truth, played on a lab node under a real daemon, and what came of it.

The truth is written down beforehand, by what the kernel and the policy must do there; the incident is the one that the
daemon stored when the episode was over. The scenarios themselves are in monitor/lab/scenarios.py.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.lab.child import PATIENCE_S, Child, until
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod
from monitor.side.incidents import FOLDER, IncidentReader

#: The verdict of a situation that must not be an incident at all.
NOTHING = "none"

Incident = dict[str, Any]
Play = Callable[["Stage"], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """``thresholds`` are options of `outrace run`.

    The truth, which has to come out: ``flags`` are all there may be; ``evicted`` and ``killed`` name pods ("" is a
    process in no pod) in order; ``domain`` is node, kubepods, or how the path of the cgroup ends.

    ``prepare`` changes the node before a daemon starts. ``needs``: why this machine cannot play it ("" if it can).
    """

    name: str
    play: Play
    thresholds: tuple[str, ...]
    verdict: str
    flags: frozenset[str]
    evicted: tuple[str, ...] = ()
    killed: tuple[str, ...] = ()
    observed: bool = False
    domain: str = "node"
    enforce: bool = False
    node_mib: int = 160
    prepare: Callable[[LabNode], object] = bool
    needs: Callable[[], str] = lambda: ""


class Outcome(NamedTuple):
    """One run: every incident it led to, and what is wrong with them ("" if nothing is)."""

    incidents: list[Incident]
    wrong: str
    metrics: dict[str, float]  # when its incident was final; {} of a daemon that has ended

    @property
    def verdict(self) -> str:
        """The verdict; several are joined by a plus."""
        return "+".join(i["verdict"] for i in self.incidents) or NOTHING


def wrong_in(truth: Scenario, found: list[Incident]) -> str:
    """What is wrong with the incidents of a run ("" if nothing is)."""
    if truth.verdict == NOTHING or len(found) != 1:
        want = 0 if truth.verdict == NOTHING else 1
        return "" if len(found) == want else f"{len(found)} incidents instead of {want}: {_summaries(found)}"
    i = found[0]
    seen = {
        "verdict": i["verdict"],
        "flags": set(i["flags"]),
        "evicted": tuple(e["pod"].removeprefix("lab/") for e in i["evicted"]),
        "killed": tuple(dict.fromkeys((v["pod"] or "").removeprefix("lab/") for v in i["oom_victims"])),
        "observed": i["observed"],
        "domain": i["domain"][-len(truth.domain) :] if truth.domain else "",
    }
    wrong = [f"{k} {got!r} instead of {want!r}" for k, got in seen.items() if got != (want := getattr(truth, k))]
    return f"{'; '.join(wrong)} ({i['summary']})" if wrong else ""


SCENARIOS: list[Scenario] = []


def scenario(thresholds: tuple[str, ...], verdict: str, *flags: str, **rest: Any) -> Callable[[Play], Play]:
    """Declare the function below as a scenario of its name. ``rest``: see `Scenario`."""

    def declare(play: Play) -> Play:
        name = play.__name__.replace("_", "-")
        SCENARIOS.append(Scenario(name, play, thresholds, verdict, frozenset(flags), **rest))
        return play

    return declare


def grows(name: str, thresholds: tuple[str, ...], verdict: str, *flags: str, **rest: Any) -> None:
    """Declare a scenario in which one pod grows until it is killed, ``how``: see `Stage.grow`; or ``frees`` what it has
    taken: see `Stage.filled`. ``pod``: its options; ``beside``: what another pod has, as `Stage.filled`; ``first``: MiB
    that its first container has; ``limit``: of a container ("": of the pod), and in MiB.
    """
    pod, how, frees, beside = (rest.pop(key, {}) for key in ("pod", "how", "frees", "beside"))
    (limited, limit), first = rest.pop("limit", ("", 0)), rest.pop("first", 0)
    grown = next(iter((*rest.get("evicted", ()), *rest.get("killed", ()))), "hog")

    def play(stage: Stage) -> None:
        made = stage.pod(grown, **pod)
        if beside:
            stage.filled(stage.pod("server"), **beside)
        if limit:
            cgroupfs.set_limit(made.containers.get(limited, made.cgroup), limit * MIB)
        if first:
            stage.filled(made, first)
        if frees:
            stage.filled(made, **frees).free()
        else:
            stage.grow(made, **how)

    SCENARIOS.append(Scenario(name, play, thresholds, verdict, frozenset(flags), **rest))


#: Growth that a busy machine still keeps up with, in MiB/s: a margin of 32 MiB lasts a third of a second.
STEADY = 100
#: oom_score_adj of a BestEffort pod's processes.
_BEST_EFFORT = 1000


class Stage:
    """One run of a scenario: what its script uses."""

    def __init__(self, node: LabNode, daemon: LabDaemon, scored: bool) -> None:
        self.node, self.daemon, self.scored = node, daemon, scored

    # what a script does

    def pod(self, name: str, **options: Any) -> LabPod:
        """A new pod that the daemon knows and has counted."""
        pod = self.node.add_pod(name, **options)
        self.daemon.wait_for_pods(pod)
        return pod

    def hog(self, pod: LabPod, mib: int, *, container: str = "c0", **options: str | int) -> Child:
        """A process in a container that takes ``mib`` on `go`. ``scored``: it has its pod's oom_score_adj, as a
        kubelet's container has from its start; the daemon writes it up to a second later.
        """
        hog = self.node.start_hog(pod, container, mib=mib, **options)
        if self.scored and pod.qos == "BestEffort":
            hog.oom_score_adj = _BEST_EFFORT
        return hog

    def grow(self, pod: LabPod, mib: int = 400, rate: int = STEADY, **options: Any) -> None:
        """A process of the pod takes memory until it is killed."""
        hog = self.hog(pod, mib, rate=rate, **options)
        hog.go()
        self.dies(hog)

    def filled(self, pod: LabPod, mib: int, **options: str | int) -> Child:
        hog = self.hog(pod, mib, container="c0", **options)
        hog.go()
        hog.expect("grown")
        return hog

    def spare(self, hog: Child) -> None:
        """Have the OOM killer pass it over, where CAP_SYS_RESOURCE allows that: a kernel that looks again while one
        that has ended is still giving its memory back takes it as well (31 ms later, 2 of 3 times in emulated guests).
        """
        with suppress(PermissionError):
            hog.oom_score_adj = -1000

    def dies(self, *hogs: Child) -> None:
        """Wait for their ends by SIGKILL or SIGTERM."""
        for hog in hogs:
            status = hog.wait(PATIENCE_S)
            if status not in (-signal.SIGKILL, -signal.SIGTERM):
                raise MonitorError(f"process {hog.pid} of the scenario ended with {status} instead of being killed")

    @contextmanager
    def frozen(self, pid: int) -> Iterator[None]:
        """The process is frozen meanwhile, and would not even die: cgroup v1's freezer."""
        root = cgroupfs.freezer()
        assert root is not None, "`freezer` has checked it"
        path = root / f"{self.node.cgroup.name}-{pid}"
        path.mkdir()
        self.node.also_remove(path)
        state = path / "freezer.state"
        (path / "cgroup.procs").write_text(str(pid))
        state.write_text("FROZEN")
        until(lambda: state.read_text().strip() == "FROZEN", "a process to freeze")
        try:
            yield
        finally:
            state.write_text("THAWED")

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """The daemon's hot process is stopped meanwhile, as when its CPU is taken away."""
        os.kill(self.daemon.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.daemon.pid, signal.SIGCONT)

    def calm(self) -> None:
        """End what is left of the scenario without a signal, which would be an incident of its own."""
        for hog in self.node.children:
            hog.close_stdin()
        for hog in self.node.children:
            hog.wait(PATIENCE_S)


def play(scenario: Scenario, state_dir: Path, run: int = 0) -> Outcome:
    """Play a scenario, with pods and a daemon of its own, and judge what the daemon stored. ``state_dir``: of all
    daemons, for the incidents and the pins (the caller unloads them).
    """
    options = (*scenario.thresholds, *(("--enforce",) if scenario.enforce else ()))
    scored = scenario.enforce and bool(scenario.killed)  # the kernel's choice depends on it
    failed, counted, began = "", dict[str, float](), time.time()
    with LabNode(f"scenario-{scenario.name}-{run}", scenario.node_mib * MIB) as node:
        scenario.prepare(node)
        with LabDaemon(node, *options, state_dir=state_dir, keep_pins=True) as daemon:
            stage = Stage(node, daemon, scored)
            try:
                scenario.play(stage)
                stage.calm()
                if daemon.process is not None and daemon.process.poll() is None:
                    if scenario.verdict != NOTHING:
                        daemon.told("incident", final=True)
                    counted = daemon.metrics()
            except MonitorError as error:
                failed = f"the situation did not come about: {error}"
    # What was going on is judged and stored at the daemon's end at the latest. Others are of earlier daemons.
    stored = IncidentReader(state_dir / FOLDER).all()
    found = [i for i in stored if datetime.fromisoformat(i["start"]).timestamp() + 0.001 >= began]
    return Outcome(found, f"{failed} ({_summaries(found)})" if failed else wrong_in(scenario, found), counted)


def _summaries(found: list[Incident]) -> str:
    return "; ".join(str(i["summary"]) for i in found) or "no incident"
