"""`outrace bench race`.

Eviction against the OOM killer, margin by margin, beside what polling achieves in the same run.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from monitor.cli.output import format_bytes, output_option, print_json, print_table
from monitor.errors import ConfigError, MonitorError
from monitor.kernel import loader, meminfo
from monitor.kernel.rungs import AUTO, NAMES, choose, facts, rungs
from monitor.lab.child import Child, Hog
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode, LabPod
from monitor.lab.race import Monitor, RaceResult, Watcher, populate, run_race
from monitor.settings.config import fastest_fill
from monitor.sources.arming import MIN_LOOK_NS, RESERVE_NS

KIB = 1 << 10
MARGINS = (1 * MIB, 2 * MIB, 4 * MIB, 8 * MIB)
KERNEL_MARGINS = (256 * KIB, 512 * KIB, 1 * MIB, 2 * MIB)
HOGS = (1, 2, 4)
#: What rungs without BPF can hold begins where the others have long won.
RUNG_MARGINS = (256 * KIB, 512 * KIB, 1 * MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB)
#: What polls: name, interval in microseconds.
POLLERS = (("poll 1 ms", 1_000), ("poll 100 ms (earlyoom's floor)", 100_000), ("poll 10 s (kubelet)", 10_000_000))
NODE_BYTES = 256 * MIB


class Poller:
    """A watcher that polls, in a process of its own (monitor/lab/poller.py)."""

    def __init__(self, node: LabNode, margin: int, interval_us: int) -> None:
        self.node, self.margin, self.interval_us = node, margin, interval_us
        self._child: Child | None = None
        self.cpu_s = self.wall_s = 0.0

    def begin(self, pod: LabPod, hogs: list[Hog]) -> None:
        del pod
        phase = random.randrange(self.interval_us)  # where in its interval the race finds it
        self._child = Child(
            Path(__file__).parent.parent / "lab" / "poller.py",
            f"cgroup={self.node.cgroup}",
            f"margin={self.margin}",
            f"interval_us={self.interval_us}",
            f"phase_us={phase}",
            f"kill={','.join(str(hog.pid) for hog in hogs)}",
        )
        self._child.expect("ready")
        self._child.say("go")

    def finish(self, evicted: bool) -> dict[str, Any]:
        assert self._child is not None
        self._child.say("stop")
        out: dict[str, Any] = {}
        line = self._child.answer()
        if line.startswith("killed"):
            out = {"evicted": "all hogs", "trigger": "poll"} if evicted else {}
            line = self._child.answer()
        self._child.close()
        self._child = None
        words = line.split()
        if len(words) != 4 or words[0] != "used":
            raise MonitorError(f"the poller said {line!r} instead of what it used")
        self.cpu_s += float(words[1])
        self.wall_s += float(words[2])
        return out


@contextmanager
def _quiet_cost(node: LabNode, interval_us: int, seconds: float) -> Iterator[float]:
    """CPU per second of a poller that watches ``node`` while nothing happens."""
    poller = Poller(node, 0, interval_us)
    poller.begin(next(iter(node.pods.values())), [])
    time.sleep(seconds)
    poller.finish(evicted=False)
    yield poller.cpu_s / poller.wall_s


def _row(name: str, results: Sequence[RaceResult], cpu: float | None) -> dict[str, Any]:
    kills = sorted(r.kill_us for r in results if r.kill_us is not None)
    detections = sorted(r.detection_us for r in results if r.detection_us is not None)
    row: dict[str, Any] = {
        "name": name,
        "unit": "us",
        "runs": len(results),
        "wins": sum(r.winner == "eviction" for r in results),
        "p50": statistics.median(detections) if detections else None,
        "max": detections[-1] if detections else None,
        "kill_p50": statistics.median(kills) if kills else None,
        "kill_max": kills[-1] if kills else None,
        "least_left_bytes": min((r.headroom_bytes for r in results if r.winner == "eviction"), default=None),
    }
    if cpu is not None:
        row["cpu_ms_per_s"] = cpu * 1000
    return row


def _races(node: LabNode, pod: LabPod, watcher: Watcher, runs: int, hogs: int, thp: bool) -> list[RaceResult]:
    return [run_race(node, pod, watcher, hogs, thp) for _ in range(runs)]


class Bench:
    """Rows as they come, with progress on stderr."""

    def __init__(self, runs: int, node: LabNode, pod: LabPod, state_dir: Path) -> None:
        self.runs, self.node, self.pod, self.state_dir = runs, node, pod, state_dir
        self.rows: list[dict[str, Any]] = []

    def add(self, name: str, results: Sequence[RaceResult], cpu: float | None = None) -> None:
        row = _row(name, results, cpu)
        self.rows.append(row)
        click.echo(f"{name}: {row['wins']} of {row['runs']}", err=True)

    def monitored(self, trigger: str, margin: int, hog_counts: Sequence[int], hooks: str = AUTO) -> None:
        """Races under the monitor, started anew for each margin: a threshold is a start-up option."""
        options = ("--enforce", "--trigger", trigger, "--hooks", hooks, "--eviction-hard", f"memory.available<{margin}")
        # A state dir holds the programs of one rung: with one for all they would be compiled anew at every turn.
        state_dir = self.state_dir if hooks == AUTO else self.state_dir / hooks
        with LabDaemon(self.node, *options, state_dir=state_dir, keep_pins=True) as daemon:
            watcher = Monitor(daemon)
            quiet = _cpu_s(daemon.pid)
            time.sleep(1.0)
            quiet = _cpu_s(daemon.pid) - quiet
            for hogs in hog_counts:
                for thp in (False, True):
                    results = _races(self.node, self.pod, watcher, self.runs, hogs, thp)
                    self.add(f"{trigger if hooks == AUTO else hooks} {_where(hogs, thp, margin)}", results, quiet)

    def polled(self, name: str, interval_us: int, margin: int) -> None:
        with _quiet_cost(self.node, interval_us, 2.0) as cpu:
            for thp in (False, True):
                poller = Poller(self.node, margin, interval_us)
                self.add(
                    f"{name} {_where(1, thp, margin)}", _races(self.node, self.pod, poller, self.runs, 1, thp), cpu
                )


def from_detached(runs: int, state_dir: Path, rows: Bench) -> None:
    """Races that begin with the fine-grained programs detached: were they attached in time?

    Huge pages only: with 4K pages the machine is six times slower and the outcome is the easier one.
    """
    size = 4 * fastest_fill() * (MIN_LOOK_NS + RESERVE_NS) // 1_000_000_000
    if size > meminfo.mem_total() // 2:
        click.echo(f"races from detached left out: they need a node of {format_bytes(size)}", err=True)
        return
    margin = 8 * MIB
    with LabNode("detached", size) as node:
        pod = populate(node)
        options = ("--enforce", "--eviction-hard", f"memory.available<{margin}")
        with LabDaemon(node, *options, state_dir=state_dir, keep_pins=True) as daemon:
            for hogs in (1, 2):
                results = []
                for _ in range(runs):
                    deadline = time.monotonic() + 30
                    while daemon.metrics()["outrace_armed"]:
                        if time.monotonic() > deadline:
                            raise MonitorError("the monitor stays attached although the node is empty")
                        time.sleep(0.1)
                    results.append(run_race(node, pod, Monitor(daemon), hogs, thp=True))
                rows.add(f"user from detached {_where(hogs, True, margin)}", results)


def _where(hogs: int, thp: bool, margin: int) -> str:
    return f"hogs={hogs} pages={'thp' if thp else '4k'} margin={format_bytes(margin)}"


def _cpu_s(pid: int) -> float:
    """User and system time of a process in seconds."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def _rungs(hooks: str | None) -> tuple[str, ...]:
    """The rungs named by --hooks, each checked to be one and to be offered here. Raises MonitorError."""
    if hooks is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in hooks.split(",")))
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"--hooks {name}: no rung of that name", f"they are {', '.join(NAMES)}")
    offered = rungs(facts(fastest_fill()))
    for name in names:
        choose(offered, name)
    return names


@click.command()
@click.option("--runs", default=20, show_default=True, type=click.IntRange(1), help="Races of each kind.")
@click.option("--quick", is_flag=True, help="One margin of each kind (2Mi; 256Ki in the kernel).")
@click.option(
    "--hooks", metavar="NAME,...", help="Only races by these rungs of the hook ladder, on every margin, side by side."
)
@click.option("--no-baselines", is_flag=True, help="Leave out the pollers.")
@output_option
def race(runs: int, quick: bool, hooks: str | None, no_baselines: bool, output: str) -> None:
    """Race the OOM killer.

    1, 2 and 4 processes at full speed, 4K and huge pages, several margins; with the trigger in the kernel down to 256
    KiB; and, in the same run, pollers of the same counters with everything the monitor has but its events.

    p50 and max are crossing to decision in microseconds; kill_* are crossing to SIGKILL sent.
    """
    names = _rungs(hooks)
    with tempfile.TemporaryDirectory(prefix="outrace-bench-") as state, LabNode("race", NODE_BYTES) as node:
        state_dir = Path(state)
        instances = [loader.instance_directory(state_dir / name) for name in ("", *names)]
        for instance in instances:
            node.also_remove(instance)
        bench = Bench(runs, node, populate(node), state_dir)
        try:
            for margin in (2 * MIB,) if quick else MARGINS if not names else RUNG_MARGINS:
                for name in names:
                    bench.monitored("user", margin, HOGS[:2], name)
                if not names:
                    bench.monitored("user", margin, HOGS)
            if not names:
                for margin in KERNEL_MARGINS[:1] if quick else KERNEL_MARGINS:
                    bench.monitored("kernel", margin, (1,))
                if not quick:
                    from_detached(runs, state_dir, bench)
            if not no_baselines and not names:
                for name, interval_us in POLLERS:
                    for margin in (2 * MIB,) if quick else MARGINS:
                        bench.polled(name, interval_us, margin)
        finally:
            for instance in instances:
                loader.unload(instance)
    if output == "json":
        print_json({"bench": "race", "results": bench.rows})
        return
    print_table(
        ("who", "wins", "of", "decided p50", "max", "killed p50", "max", "least left", "idle CPU ms/s"),
        [
            (
                r["name"],
                r["wins"],
                r["runs"],
                *(None if r[k] is None else f"{r[k]:.0f}" for k in ("p50", "max", "kill_p50", "kill_max")),
                format_bytes(r["least_left_bytes"]),
                f"{r['cpu_ms_per_s']:.2f}" if "cpu_ms_per_s" in r else None,
            )
            for r in bench.rows
        ],
    )
    sys.stdout.flush()
