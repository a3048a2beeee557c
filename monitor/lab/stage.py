"""A scripted situation with a known truth, played on a lab node under a real daemon, and what came of it.

The truth is written down beforehand, by what the kernel and the policy must do there; the incident is the one that the
daemon stored when the episode was over. The scenarios themselves are in monitor/lab/scenarios.py.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.oom_candidates import Owner, candidates, groups, total_pages
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, Hog, LabNode, LabPod
from monitor.race.badness import likely_victim
from monitor.race.forecast import Forecast, Point, forecast
from monitor.report.incident_reader import IncidentReader

FREEZER = Path("/sys/fs/cgroup/freezer")
#: Only a hang takes so long; a scenario takes one or two seconds, and its incident is final 2 s after the last event.
PATIENCE_S = 30.0
#: Between two looks at who would be killed, and at how much memory there is.
_LOOK_S = 0.02
#: The verdict of a situation that must not be an incident at all.
NOTHING = "none"

Incident = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Truth:
    """What has to come out. ``flags`` are all there may be; ``evicted`` and ``killed`` name pods ("" is a process in no
    pod) in order; ``domain`` is node, kubepods, or how the path of the cgroup ends.
    """

    verdict: str
    flags: frozenset[str] = frozenset()
    evicted: tuple[str, ...] = ()
    killed: tuple[str, ...] = ()
    observed: bool = False
    domain: str = "node"


@dataclass(frozen=True, slots=True)
class Scenario:
    """``story`` is one line for people. ``thresholds`` are options of `outrace run`. ``prepare`` changes the node
    before the daemon starts. ``needs``: a directory without which this machine cannot play it. ``stops``: it ends the
    daemon, so that each run has one of its own.
    """

    name: str
    story: str
    truth: Truth
    play: Callable[[Stage], None]
    thresholds: tuple[str, ...]
    enforce: bool = False
    node_mib: int = 160
    prepare: Callable[[LabNode], None] | None = None
    needs: Path | None = None
    stops: bool = False
    grows_steadily: bool = False  # worth forecasting: the crossing is not a leap


@dataclass(slots=True)
class Guess:
    """Who the OOM killer was expected to take, looked at just before."""

    at: float  # Unix time
    pid: int | None


@dataclass(slots=True)
class Outcome:
    """One run: every incident it led to, and what is wrong with them ("" if nothing is)."""

    incidents: list[Incident]
    wrong: str
    guess: Guess | None = None
    forecasts: list[tuple[Forecast, int | None]] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The verdict; several are joined by a plus."""
        return "+".join(i["verdict"] for i in self.incidents) or NOTHING

    @property
    def right(self) -> bool:
        return not self.wrong


class Stage:
    """One run of a scenario: what its script uses. Pods get the run's number, so that no two runs share one."""

    def __init__(self, node: LabNode, daemon: LabDaemon, run: int) -> None:
        self.node, self.daemon, self.run = node, daemon, run
        self.pods: dict[str, LabPod] = {}
        self.hogs: list[Hog] = []
        self.guesses: list[Guess] = []
        self.points: list[Point] = []  # working set of the node
        self._limit = node.cgroup  # where the OOM killer is expected
        self._stop = threading.Event()
        self._freezers: list[Path] = []
        self._began = time.time()

    # what a script does

    def pod(self, name: str, **options: Any) -> LabPod:
        """A new pod that the daemon knows and has counted."""
        pod = self.node.add_pod(f"{name}-{self.run}", **options)
        self.pods[name] = pod
        series = f'outrace_pod_memory_usage_bytes{{namespace="{pod.namespace}",pod="{pod.name}"}}'
        self.until(lambda: series in self.daemon.metrics(), f"the daemon to count {pod.name}")
        return pod

    def hog(self, pod: LabPod, mib: int, *, container: str = "c0", **options: str | int) -> Hog:
        """A process in a container that takes ``mib`` when told to go."""
        hog = self.node.start_hog(pod, container, mib=mib, **options)
        self.hogs.append(hog)
        return hog

    def stranger(self, mib: int, **options: str | int) -> Hog:
        """As `hog`, but in a cgroup of the node that belongs to no pod."""
        hog = Hog(cgroupfs.make(self.node.cgroup / "system"), mib=mib, **options)
        self.node.children.append(hog)
        self.hogs.append(hog)
        return hog

    def filled(self, pod: LabPod, mib: int, **options: str | int) -> Hog:
        """A hog that has taken its memory."""
        hog = self.hog(pod, mib, **options)
        hog.go()
        hog.expect("grown")
        return hog

    def dies(self, *hogs: Hog) -> None:
        """Wait for their ends by SIGKILL or SIGTERM."""
        for hog in hogs:
            status = hog.wait(PATIENCE_S)
            if status not in (-signal.SIGKILL, -signal.SIGTERM):
                raise MonitorError(f"process {hog.pid} of the scenario ended with {status} instead of being killed")

    def until(self, check: Callable[[], bool], what: str) -> None:
        """Wait for what nobody announces."""
        deadline = time.monotonic() + PATIENCE_S
        while not check():
            if time.monotonic() > deadline:
                raise MonitorError(f"the scenario waited in vain for {what}")
            time.sleep(0.005)

    def hears(self, msg: str, **fields: object) -> None:
        """Wait for a log record of the daemon about this run."""

        def wanted(r: dict[str, Any]) -> bool:
            return r.get("msg") == msg and all(r.get(k) == v for k, v in fields.items())

        if self.daemon.wait_for(wanted, PATIENCE_S, self._since) is None:
            raise MonitorError(f"the daemon never said {msg!r}: {self.daemon.complaint()}")

    @contextmanager
    def frozen(self, pid: int) -> Iterator[None]:
        """The process stands still meanwhile, and would not even die: cgroup v1's freezer."""
        path = FREEZER / f"{self.node.cgroup.name}-{pid}"
        path.mkdir()
        self.node.also_thaw(path)
        state = path / "freezer.state"
        (path / "cgroup.procs").write_text(str(pid))
        state.write_text("FROZEN")
        self.until(lambda: state.read_text().strip() == "FROZEN", "a process to freeze")
        self._freezers.append(path)
        try:
            yield
        finally:
            state.write_text("THAWED")

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """The daemon's hot process stands still meanwhile, as when its CPU is taken away."""
        os.kill(self.daemon.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.daemon.pid, signal.SIGCONT)

    @contextmanager
    def tmpfs(self) -> Iterator[Path]:
        """A directory on a tmpfs, as an emptyDir of medium Memory: what is in it outlives the processes."""
        path = Path(tempfile.mkdtemp(prefix=f"{self.node.cgroup.name}-", dir="/dev/shm"))
        self.node.also_remove(path)
        try:
            yield path
        finally:
            for file in path.iterdir():
                file.unlink()
            path.rmdir()

    def expect_kill_at(self, cgroup: Path) -> None:
        """The limit that will be hit is this cgroup's, not the node's."""
        self._limit = cgroup

    # what happens around it

    def __enter__(self) -> Stage:
        self.daemon.poll()
        self._since = len(self.daemon.log)
        threads = [threading.Thread(target=self._watch, daemon=True)]
        for thread in threads:
            thread.start()
        self._threads = threads
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_S):
            with suppress(OSError):  # a cgroup that went away while it was read
                reading = cgroupfs.read_cgroup(self.node.hierarchy, self.node.cgroup)
                self.points.append((time.monotonic_ns(), reading.working_set))
                self._guess()

    def _guess(self) -> None:
        pods = {str(pod.cgroup): pod for pod in list(self.pods.values())}

        def owner(cgroup: Path) -> Owner | None:
            pod = next((pods[str(p)] for p in (cgroup, *cgroup.parents) if str(p) in pods), None)
            return None if pod is None else Owner(pod.uid, pod.name)

        found = candidates(self.node.hierarchy, self._limit, owner)
        pages = total_pages(self.node.hierarchy, self._limit)
        victim = likely_victim(found, pages, str(self._limit), frozenset(groups(self._limit)))
        self.guesses.append(Guess(time.time(), victim.process.pid if victim is not None else None))

    def calm(self) -> None:
        """End what is left of the scenario without a signal, which would be an incident of its own."""
        for hog in self.hogs:
            assert hog.process.stdin is not None
            with suppress(BrokenPipeError):
                hog.process.stdin.close()
        for hog in self.hogs:
            hog.wait(PATIENCE_S)

    def over(self) -> None:
        """Wait for the final incident."""
        wanted = self.daemon.wait_for(
            lambda r: r.get("msg") == "incident" and r.get("final") is True, PATIENCE_S, self._since
        )
        if wanted is None:
            raise MonitorError(f"no incident became final: {self.daemon.complaint()}")

    def leave(self) -> None:
        """Take the pods away."""
        for hog in self.hogs:
            hog.close()
            self.node.children.remove(hog)
        for pod in self.pods.values():
            self.node.remove_pod(pod)
        for path in self._freezers:
            path.rmdir()

    def window(self) -> tuple[float, float]:
        """Unix times between which this run's incidents began; from now on it is over."""
        return self._began, time.time()


def judged(scenario: Scenario, stage: Stage, found: list[Incident]) -> Outcome:
    """Hold the incidents of a run against the truth."""
    guess = None
    killed_at = min((t for i in found if (t := _killed_at(i)) is not None), default=None)
    if killed_at is not None:
        guess = next((g for g in reversed(stage.guesses) if g.at < killed_at), None)
    outcome = Outcome(found, _wrong(scenario.truth, stage, found), guess)
    if scenario.grows_steadily and found:
        outcome.forecasts = _forecasts(scenario, stage)
    return outcome


def _killed_at(incident: Incident) -> float | None:
    """Unix time at which the first victim was marked."""
    from datetime import datetime

    began = datetime.fromisoformat(incident["start"]).timestamp()
    mark = next((s for s in incident["steps"] if s["what"] == "oom"), None)
    return None if mark is None else began + float(mark["t_ms"]) / 1000


def _wrong(truth: Truth, stage: Stage, found: list[Incident]) -> str:
    if truth.verdict == NOTHING or len(found) != 1:
        want = 0 if truth.verdict == NOTHING else 1
        said = "; ".join(str(i["summary"]) for i in found)
        return "" if len(found) == want else f"{len(found)} incidents instead of {want}: {said}"
    i = found[0]
    suffix = f"-{stage.run}"
    names = {f"{pod.namespace}/{pod.name}": name for name, pod in stage.pods.items()}
    killed = tuple(dict.fromkeys(names.get(v["pod"], v["pod"] or "").removesuffix(suffix) for v in i["oom_victims"]))
    seen = {
        "verdict": i["verdict"],
        "flags": sorted(i["flags"]),
        "evicted": tuple(names.get(e["pod"], e["pod"]) for e in i["evicted"]),
        "killed": killed,
        "observed": i["observed"],
    }
    want_all = {
        "verdict": truth.verdict,
        "flags": sorted(truth.flags),
        "evicted": truth.evicted,
        "killed": truth.killed,
        "observed": truth.observed,
    }
    wrong = [f"{key} {seen[key]!r} instead of {want_all[key]!r}" for key in seen if seen[key] != want_all[key]]
    if not i["domain"].endswith(truth.domain):
        wrong.append(f"domain {i['domain']!r} instead of {truth.domain!r}")
    return f"{'; '.join(wrong)} ({i['summary']})" if wrong else ""


def _forecasts(scenario: Scenario, stage: Stage) -> list[tuple[Forecast, int | None]]:
    """What was forecast from each look on, and when the threshold was really crossed."""
    quantity = next((t for s in scenario.thresholds if (t := _quantity(s)) is not None), None)
    if quantity is None:
        return []
    level = stage.node.memory_bytes - quantity
    reached = next((ts for ts, used in stage.points if used >= level), None)
    made = []
    for n in range(1, len(stage.points) + 1):
        if reached is not None and stage.points[n - 1][0] >= reached:
            break
        one = forecast(stage.points[:n], level)
        if one is not None and one.rate > MIB:  # before it begins to grow there is nothing to say
            made.append((one, reached))
    return made


def _quantity(option: str) -> int | None:
    """The bytes of `memory.available<NMi`."""
    _, found, text = option.partition("memory.available<")
    return int(text.removesuffix("Mi")) * MIB if found else None


def play(scenario: Scenario, runs: int = 1, on_run: Callable[[int], None] = lambda _: None) -> list[Outcome]:
    """Play a scenario ``runs`` times and judge what the daemon stored. Raises MonitorError where the situation itself
    did not come about. ``on_run`` hears of each run that is over.
    """
    if scenario.needs is not None and not scenario.needs.is_dir():
        raise MonitorError(f"scenario {scenario.name} needs {scenario.needs}", "leave it out with --only")
    done: list[Outcome] = []
    while len(done) < runs:
        done += _played(scenario, len(done), 1 if scenario.stops else runs, on_run)
    return done


def _played(scenario: Scenario, first: int, runs: int, on_run: Callable[[int], None]) -> list[Outcome]:
    """Runs under one daemon."""
    stages: list[tuple[Stage, tuple[float, float]]] = []
    options = (*scenario.thresholds, *(("--enforce",) if scenario.enforce else ()))
    with LabNode(f"scenario-{scenario.name}", scenario.node_mib * MIB) as node:
        if scenario.prepare is not None:
            scenario.prepare(node)
        with LabDaemon(node, *options) as daemon:
            for run in range(first, first + runs):
                with Stage(node, daemon, run) as stage:
                    scenario.play(stage)
                stage.calm()
                if scenario.truth.verdict != NOTHING and not scenario.stops:
                    stage.over()
                stages.append((stage, stage.window()))
                stage.leave()
                on_run(run)
            if daemon.process is not None and daemon.process.poll() is None:
                daemon.stop()
            stored = list(IncidentReader(daemon.state_dir / "incidents.db").all())
    return [judged(scenario, stage, [i for i in stored if _began_in(i, window)]) for stage, window in stages]


def _began_in(incident: Incident, window: tuple[float, float]) -> bool:
    from datetime import datetime

    # An incident's times are in whole milliseconds.
    return window[0] - 0.001 <= datetime.fromisoformat(incident["start"]).timestamp() <= window[1]
