"""Everyday load on a lab node, watched by two daemons that must have nothing to say about it.

One takes the node's cgroup for the node, the other watches the whole machine; both only observe. On a machine that
others use too, an OOM kill in a cgroup of theirs is rightly an incident to the second one: it is counted as foreign.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from monitor.lab.child import Child
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from monitor.side.incidents.reader import IncidentReader

#: What each kind holds at once at most. Up to half of the rest may be active page cache, which the kubelet's formula
#: counts like memory: still 170 MiB of 512 are available, and the threshold is 100.
KINDS = {"copy": 640, "build": 48, "tree": 16, "breathe": 64, "tmpfs": 24, "stops": 8}
NODE_BYTES = 512 * MIB
#: MiB of files at once: what is copied is there twice, a tree three times and its directories.
_ROOM = {"copy": 2 * KINDS["copy"], "build": 8, "tree": 4 * KINDS["tree"]}
#: Between two pods that come and go.
CHURN_S = 2.0
_LOAD = Path(__file__).parent / "load.py"
#: MiB requested, above what they use; those without are BestEffort and would go first.
REQUESTS = {"copy": 200, "build": 96, "tree": 96, "tmpfs": 48, "stops": 32}


def room(kinds: tuple[str, ...]) -> int:
    """Bytes of files that these kinds of load write at most."""
    return MIB * sum(_ROOM.get(kind, 0) for kind in kinds)


class Receiver:
    """Context manager: a webhook on loopback that takes alerts and counts them, by the path they are posted to."""

    def __init__(self) -> None:
        self.alerts: list[tuple[str, dict[str, Any]]] = []
        heard = self.alerts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the name http.server looks for
                body = self.rfile.read(int(self.headers["Content-Length"]))
                heard.append((self.path, json.loads(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """stderr is for progress."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/{path}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


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

    def row(self) -> dict[str, Any]:
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


class Load:
    """The children that make the load, one pod each, and a pod that comes and goes."""

    def __init__(self, node: LabNode, directory: Path, kinds: tuple[str, ...]) -> None:
        self.node = node
        self.did: Counter[str] = Counter()
        self._children: list[Child] = []
        self._churned = 0
        for kind in kinds:
            request = REQUESTS.get(kind, 0) * MIB
            pod = node.add_pod(kind, "Burstable" if request else "BestEffort", request)
            child = node.start(pod, _LOAD, f"kind={kind}", f"mib={KINDS[kind]}", f"dir={directory / kind}")
            child.expect("ready")
            _score(child, request)
            self._children.append(child)

    def churn(self) -> None:
        """A pod of two containers comes, takes a little, is done, and goes."""
        pod = self.node.add_pod(f"job-{self._churned}", containers=2)
        self._churned += 1
        hogs = [self.node.start_hog(pod, container, mib=8) for container in pod.containers]
        for hog in hogs:
            _score(hog, 0)
            hog.go()
            hog.expect("grown")
        for hog in hogs:
            assert hog.process.stdin is not None
            hog.process.stdin.close()
            hog.wait()
            hog.close()
            self.node.children.remove(hog)
        self.node.remove_pod(pod)
        self.did["pods_made_and_removed"] += 1

    def end(self) -> None:
        """Let all of it finish what it does, and count."""
        for child in self._children:
            assert child.process.stdin is not None
            child.process.stdin.close()
        for child in self._children:
            self.did.update(json.loads(child.expect("did", 120.0)))
            child.wait()


def _score(child: Child, request: int) -> None:
    """The oom_score_adj a kubelet gives it, so that the kernel would take the same pods first as the policy."""
    Path(f"/proc/{child.pid}/oom_score_adj").write_text(str(1000 - 1000 * request // NODE_BYTES))


def soak(
    seconds: float,
    kinds: tuple[str, ...],
    directory: Path,
    measure: Callable[[LabDaemon], tuple[int, int]],
    progress: Callable[[float], None],
) -> tuple[Counter[str], list[Watched]]:
    """Load for ``seconds``; what it did, and what the daemons made of it. ``measure`` gives a daemon's resident bytes
    and its CPU time in ns; ``directory`` is for the files; ``progress`` hears of the seconds gone by, now and then.
    """
    with Receiver() as receiver, LabNode("soak", NODE_BYTES) as node:
        here = ("--eviction-hard", "memory.available<100Mi", "--webhook", receiver.url("node"))
        with (
            LabDaemon(node, *here) as own,
            LabDaemon(node, "--webhook", receiver.url("machine"), machine=True) as whole,
        ):
            daemons = {"node": own, "machine": whole}
            load = Load(node, directory, kinds)
            began = time.monotonic()
            warm = dict.fromkeys(daemons, (0, 0))
            while (gone := time.monotonic() - began) < seconds:
                progress(gone)
                if gone < seconds / 5 or not any(warm["node"]):  # allocators and caches find their size
                    warm, warm_at = {name: measure(d) for name, d in daemons.items()}, time.monotonic()
                load.churn()
                time.sleep(CHURN_S)
            last, last_at = {name: measure(d) for name, d in daemons.items()}, time.monotonic()
            found = []
            for name, d in daemons.items():
                watched = _looked_at(name, d)
                watched.rss = warm[name][0], last[name][0]
                watched.cpu_ms_per_s = (last[name][1] - warm[name][1]) / 1e6 / (last_at - warm_at)
                found.append(watched)
            load.end()
            for watched in found:
                daemons[watched.name].stop()  # what is going on is judged then at the latest
                _judge(watched, daemons[watched.name], node, receiver)
    return load.did, found


def _looked_at(name: str, daemon: LabDaemon) -> Watched:
    metrics = daemon.metrics()
    dropped = {key: int(n) for key, n in metrics.items() if key.startswith("outrace_events_lost_total") and n}
    return Watched(name, decisions=int(metrics["outrace_pods_chosen_total"]), lost=dropped)


def _judge(watched: Watched, daemon: LabDaemon, node: LabNode, receiver: Receiver) -> None:
    inside = f"/{node.cgroup.relative_to(node.hierarchy.root)}"
    for incident in IncidentReader(daemon.state_dir / "incidents.db").all():
        if _is_foreign(incident["domain"], inside):
            watched.foreign_incidents += 1
        else:
            watched.incidents.append(incident)
    for path, alert in list(receiver.alerts):
        if path != f"/{watched.name}" or alert["status"] != "firing":
            continue
        if _is_foreign(alert["labels"].get("cgroup", ""), inside):
            watched.foreign_alerts += 1
        else:
            watched.alerts.append(alert)


def _is_foreign(place: str, inside: str) -> bool:
    """Whether a cgroup is neither the soak's node nor below it; "node" and "kubepods" are no cgroups."""
    return place[:1] in ("/", "#") and place != inside and not place.startswith(f"{inside}/")
