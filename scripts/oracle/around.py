"""What needs more than files: an API server (that of the tests), a small node out of a cgroup, a daemon on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asked import SHAPE, Question
from kept import ROOT, Answers
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from asking import Tree

sys.path.insert(0, str(ROOT))

from monitor.lab.node import MIB, LabNode
from tests.daemon.config_files import kubeconfig
from tests.evicted.made import evicted as left_behind
from tests.evicted.made import owned, put
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_apiserver import pod as running
from tests.kube.fake_tls import Authority

#: From the start of a daemon until it has to be ready, and to its end from SIGTERM.
PATIENCE_S = 60
#: Exit code of a command that this machine cannot run.
CANNOT = 3
#: Labels whose values are of this machine, or of the pods that are there.
OPEN_LABELS = {"version", "python", "kernel", "receiver", "namespace", "pod", "uid", "domain"}


@contextmanager
def cluster(place: Path) -> Iterator[tuple[FakeApiServer, str]]:
    """An API server with evicted pods and others, and the kubeconfig for it."""
    authority = Authority(place)
    server = FakeApiServer(authority.issue("server", "127.0.0.1").server_context())
    server.tokens = {"good"}
    day = 86400.0
    web = owned("ReplicaSet", "web-5d9c", labels={"pod-template-hash": "5d9c", "app": "web"})
    put(server, left_behind("web-5d9c-a", "shop", 73 * day, **web), left_behind("web-5d9c-b", "shop", 2 * day, **web))
    put(server, left_behind("db-0", "shop", 3 * day, **owned("StatefulSet", "db")), running("live"))
    put(server, left_behind("import-x", ago_s=4 * day, **owned("Job", "import")), left_behind("bare", "lab", 5 * day))
    path = kubeconfig(place / "kubeconfig", server.url, authority.certificate, token="good")
    try:
        yield server, str(path)
    finally:
        server.close()


def evicted(tree: Tree) -> Answers:
    """`outrace evicted` from a list to deletes, in turn."""
    criteria = ("", "--older-than 2d12h", "--keep 2", "-n shop --node node-1", "-l app=web", "--check")
    asked = [("list", more) for more in (*criteria, "--owner-kind deployment")] + [("delete", "--older-than 100h")]
    asked += [("delete", "-n shop --yes"), ("delete", "--yes --rate 1000"), ("list", "--check ")]
    with cluster(tree.place) as (_, kubeconfig):
        here, vary = ("--kubeconfig", kubeconfig, "-o", "json"), ("out.pods.*.age_s", "out.pods.*.uid")
        return tree.ask_in_turn(
            [
                Question(f"cluster/evicted {command} {more}", ("evicted", command, *more.split(), *here), vary=vary)
                for command, more in asked
            ]
        )


@contextmanager
def node(tree: Tree) -> Iterator[tuple[LabNode, tuple[str, ...]]]:
    """A node with four pods that use something, and the options with which commands find it."""
    if os.geteuid() != 0:
        raise PermissionError("root makes cgroups")
    with LabNode("oracle", 256 * MIB) as made:
        pods = (
            (made.add_pod("guaranteed", "Guaranteed", request=64 * MIB), 24),
            (made.add_pod("burstable", "Burstable", request=8 * MIB, limit=100 * MIB, priority=-5), 40),
            (made.add_pod("besteffort", containers=2), 16),
            (made.add_pod("critical", priority=2 * 10**9), 8),
        )
        for pod, mib in pods:
            hog = made.start_hog(pod, mib=mib)
            hog.go()
            hog.expect("grown")
        tree.hidden |= {made.cgroup.name: "NODE", str(made.manifests): "MANIFESTS"}
        tree.hidden |= {pod.uid: f"UID-{name}" for name, pod in made.pods.items()}
        # The paths of the manifests begin with the node's name.
        tree.hidden = dict(sorted(tree.hidden.items(), key=lambda pair: -len(pair[0])))
        yield made, ("--node-cgroup", made.cgroup.name, "--pods", f"manifests:{made.manifests}")


def explained(tree: Tree) -> Answers:
    """`outrace explain` and `outrace top` on the node."""
    with node(tree) as (_, here):
        options = (*here, "--no-daemon", "--state-dir", str(tree.place / "files/nothing"), "-o", "json")
        hard = ("--eviction-hard", "memory.available<300Mi")
        soft = ("--eviction-soft", "memory.available<300Mi", "--eviction-soft-grace-period", "memory.available=1m")
        asked = [("quiet", ("--eviction-hard", "memory.available<100Mi")), ("starved", hard), ("soft", soft)]
        asked += [("policies", (*hard, "--policy", "all"))]
        asked += [(f"pod {name}", (f"lab/{name}", *hard)) for name in ("burstable", "critical", "guaranteed")]
        # The kernel has charged some pages, and the disks are those of this machine.
        vary = ("out.time", "*.available", "*.distance", "*.quantity", "*.capacity", "*.first", "*.message")
        vary += ("*.usage", "*.comparisons.*.verdict", "*.comparisons.*.one", "*.comparisons.*.other", "*.changes.*")
        vary += ("out.pod.oom_score_adj", "*.pid", "*.points", "*.rss", "*.page_tables", "*_usage")
        questions = [Question(f"node/explain {n}", ("explain", *more, *options), vary=vary) for n, more in asked]
        questions.append(Question("node/top", ("top", "--once", *hard, *options), SHAPE))
        return tree.ask(questions)


def metrics(tree: Tree) -> Answers:
    """Every family that two daemons serve: name -> type, help, labels with their values."""
    found: Answers = {}
    with node(tree) as (_, here), cluster(tree.place) as (_, kubeconfig):
        shared = (*here, "--eviction-hard", "memory.available<16Mi")
        api = ("--mode", "enforce", "--evict-by", "api", "--kubeconfig", kubeconfig, "--node-name", "node-1")
        api = (*api, "--pods", "apiserver")
        hold = ("--mode", "hold", "--record", str(tree.place / "rec"), "--alertmanager", "http://127.0.0.1:9")
        for options in ((*shared, *hold), (*shared, *api)):
            for family in text_string_to_metric_families(_scraped(tree, options)):
                _add(found.setdefault(f"metrics/{family.name}", {}), family)
    return found


def _add(answer: dict[str, Any], family: Any) -> None:
    labels = answer.setdefault("labels", {})
    answer |= {"type": family.type, "help": family.documentation}
    for sample in family.samples:
        for label, value in sample.labels.items():
            labels[label] = sorted({*labels.get(label, ()), "*" if label in OPEN_LABELS else value})


def _scraped(tree: Tree, options: tuple[str, ...]) -> str:
    """What a daemon with these options answers to /metrics. It is ended, and its pins are removed."""
    from asking import python_of

    outrace = [python_of(tree.tree), "-m", "monitor.cli.main"]
    with tempfile.TemporaryDirectory(prefix="outrace-oracle-state-") as state:
        words = ("--state-dir", state, "--listen", "127.0.0.1:0", "--log-format", "json")
        process = subprocess.Popen(
            [*outrace, "run", *words, *options], stderr=subprocess.PIPE, env=tree.environment, cwd=tree.place
        )
        try:
            return _answered(process)
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
            unload = [*outrace, "unload", "--state-dir", state]
            subprocess.run(unload, env=tree.environment, cwd=tree.place, check=True, capture_output=True)


def _answered(process: subprocess.Popen[bytes]) -> str:
    """Raises PermissionError where this machine cannot, and RuntimeError if the daemon does not get ready."""
    assert process.stderr is not None
    last = line = process.stderr.readline()
    while line and b'"listen"' not in line:
        last, line = line, process.stderr.readline()
    if not line:
        kind = PermissionError if process.wait(PATIENCE_S) == CANNOT else RuntimeError
        raise kind(f"the daemon did not start: {last.decode().strip()}")
    address = f"http://{json.loads(line)['listen']}"
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        time.sleep(0.3)
        try:
            with urllib.request.urlopen(f"{address}/readyz", timeout=PATIENCE_S):
                pass
            with urllib.request.urlopen(f"{address}/metrics", timeout=PATIENCE_S) as answer:
                text: str = answer.read().decode()
                return text
        except OSError:
            continue
    raise RuntimeError("the daemon is not ready")
