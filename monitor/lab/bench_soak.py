"""`outrace bench soak`: everyday load on a lab node for an hour, watched by two daemons that must have nothing to say.

One takes the node's cgroup for the node, the other watches the whole machine; both only observe. On a machine that
others use too, an OOM kill in a cgroup of theirs is rightly an incident to the second one: it is counted as foreign.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil

from monitor.cli.output import format_bytes, print_table
from monitor.errors import EXIT_FINDINGS, EXIT_OK, CannotError, ConfigError
from monitor.lab.bench import Found, Row, bench, number, print_rows, progress
from monitor.lab.bench_footprint import memory, processes
from monitor.lab.child import Child
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from monitor.lab.receivers import Receiver
from monitor.side.incidents.reader import IncidentReader

#: What each kind holds at once at most. Up to half of the rest may be active page cache, which the kubelet's formula
#: counts like memory: still 170 MiB of 512 are available, and the threshold is 100.
KINDS = {"copy": 640, "build": 48, "tree": 16, "breathe": 64, "tmpfs": 24, "stops": 8}
NODE_BYTES = 512 * MIB
#: MiB of files at once: what is copied is there twice, a tree three times and its directories.
_ROOM = {"copy": 2 * KINDS["copy"], "build": 8, "tree": 4 * KINDS["tree"]}
#: Between two pods that come and go.
CHURN_S = 2.0
#: MiB requested, above what they use; those without are BestEffort and would go first.
REQUESTS = {"copy": 200, "build": 96, "tree": 96, "tmpfs": 48, "stops": 32}
_PROGRESS_S = 60.0


def room(kinds: tuple[str, ...]) -> int:
    """Bytes of files that these kinds of load write at most."""
    return MIB * sum(_ROOM.get(kind, 0) for kind in kinds)


@dataclass
class Watched:
    """What one daemon reported. ``rss``: resident bytes of both its processes after the warm-up and at the end."""

    name: str
    incidents: list[dict[str, Any]] = field(default_factory=list)
    foreign_incidents: int = 0
    alerts: list[dict[str, Any]] = field(default_factory=list)
    foreign_alerts: int = 0
    decisions: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    rss: tuple[int, int] = (0, 0)
    cpu_ms_per_s: float = 0.0

    @property
    def quiet(self) -> bool:
        return not (self.incidents or self.alerts or self.decisions or self.lost)

    def row(self) -> Row:
        return {
            "name": self.name,
            "incidents": len(self.incidents),
            "foreign_incidents": self.foreign_incidents,
            "alerts": dict(Counter(a["name"] for a in self.alerts)),
            "foreign_alerts": self.foreign_alerts,
            "decisions": self.decisions,
            "lost": self.lost,
            "rss_bytes": self.rss[1],
            "rss_growth_bytes": self.rss[1] - self.rss[0],
            "cpu_ms_per_s": round(self.cpu_ms_per_s, 3),
            "said": [i["summary"] for i in self.incidents] + [a["annotations"].get("summary") for a in self.alerts],
        }

    def judge(self, daemon: LabDaemon, node: LabNode, posts: list[tuple[float, str, Any]]) -> None:
        """What the daemon stored and sent, and which of it is about the node."""
        inside = f"/{node.cgroup.relative_to(node.hierarchy.root)}"
        for incident in IncidentReader(daemon.state_dir / "incidents.db").all():
            if _is_foreign(incident["domain"], inside):
                self.foreign_incidents += 1
            else:
                self.incidents.append(incident)
        for alert in [a for _, path, a in posts if path == f"/{self.name}" and a["status"] == "firing"]:
            if _is_foreign(alert["labels"].get("cgroup", ""), inside):
                self.foreign_alerts += 1
            else:
                self.alerts.append(alert)


def _is_foreign(cgroup: str, inside: str) -> bool:
    """Whether a cgroup is neither the soak's node nor below it; "node" and "kubepods" are no cgroups."""
    return cgroup[:1] in ("/", "#") and cgroup != inside and not cgroup.startswith(f"{inside}/")


class Load:
    """The children that make the load, one pod each, and a pod that comes and goes."""

    def __init__(self, node: LabNode, directory: Path, kinds: tuple[str, ...]) -> None:
        self.node = node
        self.did: Counter[str] = Counter()
        self._children: list[Child] = []
        for kind in kinds:
            request = REQUESTS.get(kind, 0) * MIB
            pod = node.add_pod(kind, "Burstable" if request else "BestEffort", request)
            child = node.start(pod, "load", kind=kind, mib=KINDS[kind], dir=directory / kind)
            _score(child, request)
            self._children.append(child)

    def churn(self) -> None:
        """A pod of two containers comes, takes a little, is done, and goes."""
        pod = self.node.add_pod(f"job-{self.did['pods_made_and_removed']}", containers=2)
        hogs = [self.node.start_hog(pod, container, mib=8) for container in pod.containers]
        for hog in hogs:
            _score(hog, 0)
            hog.go()
            hog.expect("grown")
        for hog in hogs:
            hog.close_stdin()
            hog.wait()
            self.node.end(hog)
        self.node.remove_pod(pod)
        self.did["pods_made_and_removed"] += 1

    def end(self) -> None:
        """Let all of it finish what it does, and count."""
        for child in self._children:
            child.close_stdin()
        for child in self._children:
            self.did.update(json.loads(child.expect("did")))
            child.wait()


def _score(child: Child, request: int) -> None:
    """The oom_score_adj a kubelet gives it, so that the kernel would take the same pods first as the policy."""
    Path(f"/proc/{child.pid}/oom_score_adj").write_text(str(1000 - 1000 * request // NODE_BYTES))


def run(seconds: float, kinds: tuple[str, ...], directory: Path) -> tuple[Counter[str], list[Watched]]:
    """Load for ``seconds``; what it did, and what the daemons made of it. ``directory`` is for the files."""
    with Receiver() as receiver, LabNode("soak", NODE_BYTES) as node:
        here = ("--eviction-hard", "memory.available<100Mi", "--webhook", f"{receiver.url}/node")
        with (
            LabDaemon(node, *here) as own,
            LabDaemon(node, "--webhook", f"{receiver.url}/machine", machine=True) as whole,
        ):
            daemons = {"node": own, "machine": whole}
            load = Load(node, directory, kinds)
            began = reported = time.monotonic()
            warm: dict[str, tuple[int, int]] = {}
            while (gone := time.monotonic() - began) < seconds:
                if time.monotonic() - reported >= _PROGRESS_S:
                    reported = time.monotonic()
                    progress(f"{gone / 60:.0f} of {seconds / 60:g} minutes")
                if gone < seconds / 5 or not warm:  # allocators and caches find their size
                    warm, warm_at = {name: _measure(d) for name, d in daemons.items()}, time.monotonic()
                load.churn()
                time.sleep(CHURN_S)
            lasted, found = time.monotonic() - warm_at, []
            for name, d in daemons.items():
                rss, cpu_ns = _measure(d)
                chosen, lost = int(d.metrics()["outrace_pods_chosen_total"]), {k: int(n) for k, n in d.lost().items()}
                cpu_ms_per_s = (cpu_ns - warm[name][1]) / 1e6 / lasted
                watched = Watched(
                    name, decisions=chosen, lost=lost, rss=(warm[name][0], rss), cpu_ms_per_s=cpu_ms_per_s
                )
                found.append(watched)
            load.end()
            for watched in found:
                daemons[watched.name].stop()  # what is going on is judged then at the latest
                watched.judge(daemons[watched.name], node, list(receiver.posts))
    return load.did, found


def _measure(daemon: LabDaemon) -> tuple[int, int]:
    """Resident bytes of both processes of a daemon; their CPU time in ns, of threads that ended too, in ticks of 10 ms,
    which over an hour are nothing.
    """
    pids = processes(daemon.pid)
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(memory(pid)[0] for pid in pids), round(sum(t.user + t.system for t in times) * 1e9)


@bench()
@number("--minutes", 60.0, "Minutes under load.", 0.1)
@click.option("--load", default="all", show_default=True, metavar="KIND,…", help=f"Kinds of load: {', '.join(KINDS)}.")
@click.option(
    "--directory", default="/var/tmp", show_default=True, type=click.Path(), help="Directory for the copied files."
)
def soak(minutes: float, load: str, directory: str) -> Found:
    """Put everyday load on a small node under two observing daemons: its own and one of the whole machine.

    File copies far beyond the node's memory, compilers, cp and tar, memory and tmpfs that come and go, SIGTERM, pods
    made and removed. Exit code 4 if there was an incident, an alert, a decision or a lost event. (Incidents of cgroups
    outside the node are somebody else's; they are counted, not held against it.)
    """
    kinds = _kinds(load)
    _check_room(directory, kinds)
    with tempfile.TemporaryDirectory(prefix="outrace-soak-", dir=directory) as files:
        began = time.monotonic()
        did, found = run(minutes * 60, kinds, Path(files))
        lasted = time.monotonic() - began
    clean = all(watched.quiet for watched in found)
    rows = [watched.row() for watched in found]

    def show() -> None:
        print_table(("load", "count"), sorted(did.items()))
        click.echo()
        print_rows(
            "name incidents foreign_incidents alerts decisions lost rss_bytes rss_growth_bytes cpu_ms_per_s", rows
        )
        for row in rows:
            for line in dict.fromkeys(row["said"]):
                click.echo(f"{row['name']}: {line}")

    more = {"seconds": round(lasted), "clean": clean, "load": dict(did)}
    return Found(rows, more, EXIT_OK if clean else EXIT_FINDINGS, show)


def _kinds(text: str) -> tuple[str, ...]:
    if text == "all":
        return tuple(KINDS)
    found = tuple(word.strip() for word in text.split(","))
    for kind in found:
        if kind not in KINDS:
            raise ConfigError(f"--load {text}: {kind!r} is no kind of load", f"name some of {', '.join(KINDS)}, or all")
    return found


def _check_room(directory: str, kinds: tuple[str, ...]) -> None:
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        raise ConfigError(f"--directory {directory}: {error.strerror}", "name a directory that is there") from None
    if free < room(kinds):
        raise CannotError(
            f"--directory {directory}: {format_bytes(free)} are free, and the files take {format_bytes(room(kinds))}",
            "name another directory, or fewer kinds of --load (`copy` takes most)",
        )
