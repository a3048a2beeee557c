"""`outrace explain`: the thresholds, the order of eviction, and why one pod stands where it stands in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import click

from monitor.actions.oomadj import OomScores, pod_scores
from monitor.cli.daemons import choose_daemon, no_daemon_option
from monitor.cli.explain_text import lines
from monitor.cli.options import as_settled, node_options, resolve_here, with_disks
from monitor.cli.output import emit, output_option
from monitor.cli.top_frame import Node
from monitor.errors import ConfigError, MonitorError
from monitor.kernel import cgroup_procs, cgroupfs, disks
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.disks import Disks
from monitor.pods.model import FoundPod
from monitor.pods.storage import Roots, measure, process_stats
from monitor.policy import signals
from monitor.policy.eviction_pass import Outcome, PassConfig, State, run_pass
from monitor.policy.explain import comparisons, contrast, why_class, why_critical, why_request
from monitor.policy.kubelet_pass import KubeletResult, admit, is_limited, kubelet_pass, message_for, storage_violation
from monitor.policy.layout import NO_OVERLAY
from monitor.policy.pods import Pod
from monitor.policy.resources import pod_limit
from monitor.policy.signals import MEMORY, PID, Observation
from monitor.policy.stats import Summary
from monitor.policy.thresholds import Threshold
from monitor.policy.victims import Ranked, rank_pods
from monitor.settings.config import RunConfig
from monitor.settings.read import Resolved, resolved_again

_DISK_SIGNALS = frozenset(signals.KUBELET_SIGNALS) - signals.MEMORY_SIGNALS - {PID}
STORAGE = "ephemeral-storage"


@click.command()
@click.argument("pod", required=False, metavar="[NS/POD]")
@click.option("--signal", metavar="SIGNAL", help="Rank pods for this signal. [the one met, else memory.available]")
@node_options
@no_daemon_option
@output_option
def explain(pod: str | None, signal: str | None, no_daemon: bool, output: str, **settings: Any) -> None:
    """Show which pod would be evicted next and why; with NS/POD (a uid, or a unique name), why this one or why not.

    Without options: the node, pods and thresholds of the running daemon. With --no-daemon, or an option that describes
    a node: that node, with figures from the cgroup files. The output says which.
    """
    found = choose_daemon(settings, no_daemon)
    resolved = resolved_again(found.config) if found is not None else resolve_here(settings)
    config = as_settled(resolved.config)
    rules = config.pass_config().era
    if signal is not None and signal not in (*rules.signals, *signals.OWN_SIGNALS):
        raise ConfigError(f"--signal: {rules.name} does not know {signal}", f"it knows {', '.join(rules.signals)}")
    with closing(Node(config, found)) as node:
        seen = look(node, signal)
    order = seen.order()
    answer = {
        "time": seen.frame["time"],
        "source": seen.frame["source"],
        "node": _node(seen, resolved),
        "signal": seen.signal,
        "policy": [config.policy],
        "order": _order(seen, order),
    }
    if pod is not None:
        answer["pod"] = about(seen, order, _find(order, pod))
    answer["problems"] = list(seen.problems)
    emit(output, answer, lambda: lines(answer))
    for problem in seen.problems if output == "table" else ():
        click.echo(f"outrace: {problem}", err=True)


def _find(order: Sequence[Ranked], text: str) -> Ranked:
    """The pod meant by ``text``: namespace/name, uid or a name of its own. Raises MonitorError."""
    found = [one for one in order if text in (label(one.pod), one.pod.uid)] or [
        one for one in order if one.pod.name == text
    ]
    if len(found) == 1:
        return found[0]
    names = ", ".join(label(one.pod) for one in (found or order)[:10])
    if found:
        raise MonitorError(f"{len(found)} pods are called {text}", f"say which: {names}")
    nothing = "there are no pods here: say where they are with --pods manifests:DIR or --node-cgroup PATH"
    raise MonitorError(f"no pod {text!r}", f"pods are {names}" if order else nothing)


def _node(seen: Situation, resolved: Resolved) -> dict[str, Any]:
    """The thresholds, and what a pass does about them now."""
    outcome = seen.result.outcome
    evictions = [
        {"pod": label(e.pod), "uid": e.pod.uid, "grace_s": e.grace_s, "message": e.message}
        for e in seen.result.evictions
    ]
    starved = outcome.starved if outcome is not None else None
    return {
        "cgroup": str(seen.node.path),
        "capacity": seen.node.capacity,
        "thresholds": _thresholds(seen, resolved, outcome),
        "conditions": sorted(outcome.conditions) if outcome is not None else [],
        "held_conditions": None if seen.held is None else list(seen.held),
        "braked": seen.frame["braked"],
        "held": seen.frame["held"],
        "starved": None if starved is None else {"signal": starved.signal, "threshold": str(starved)},
        "verdict": _verdict(seen, outcome),
        "cleanup": [action for action in seen.result.reclaimed if action in seen.config.cleanups()],
        "evictions": evictions,
    }


def _verdict(seen: Situation, outcome: Outcome | None) -> str:
    evicted = [label(e.pod) for e in seen.result.evictions]
    if outcome is None or outcome.starved is None:
        text = "nothing is starved" if seen.config.thresholds() else "no threshold is configured"
        if evicted:
            return f"{text}, but over a limit of local storage: {', '.join(evicted)} would be evicted now"
        waiting = "".join(f"; {t} is met and acts if it stays so" for t in (outcome.observed if outcome else ()))
        return f"{text}: no pod would be evicted now{waiting}"
    text = f"{outcome.starved.signal} is starved"
    if evicted:
        first = "unless cleaning up is enough, " if seen.config.cleanups() & set(seen.result.reclaimed) else ""
        return f"{text}: {first}{', '.join(evicted)} would be evicted now"
    return f"{text}, but {'every pod is critical' if seen.found else 'there are no pods'}: no pod would be evicted"


def _thresholds(seen: Situation, resolved: Resolved, outcome: Outcome | None) -> list[dict[str, Any]]:
    in_force = resolved.settings.thresholds(seen.rules.era, seen.rules.layout)
    as_written = {e.threshold: e.text for e in in_force if not (e.copy or e.overlay)}
    rows: list[dict[str, Any]] = []
    acting = None if outcome is None else outcome.starved or next(iter(outcome.observed), None)
    for t in seen.config.thresholds():
        o = seen.summary.observations.get(t.signal)
        quantity = None if o is None else t.quantity(o.capacity)
        row = {
            "signal": t.signal,
            "kind": "hard" if t.hard else "soft",
            "value": as_written.get(t, str(t.value)),
            "grace_s": t.grace_ns / 1e9,
            "min_reclaim": None if t.min_reclaim is None else str(t.min_reclaim),
            "quantity": quantity,
            "available": None if o is None else o.available,
            "capacity": None if o is None else o.capacity,
            "distance": None if o is None or quantity is None else o.available - quantity,
            "met": o is not None and t.met(o.available, o.capacity),
            "in_bytes": signals.RESOURCE[t.signal] in signals.IN_BYTES,
            "first": t == acting,
        }
        rows.append(row)
    if acting is None and (observed := [row for row in rows if row["capacity"]]):
        min(observed, key=lambda row: row["distance"] / row["capacity"])["first"] = True
    return rows


def _order(seen: Situation, order: Sequence[Ranked]) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "pod": label(one.pod),
            "uid": one.pod.uid,
            "qos": seen.rules.era.qos_class(one.pod),
            "priority": one.fixed.priority,
            "spec_known": one.pod.spec_known,
            "critical": one.fixed.critical,
            "usage": one.usage,
            "request": one.fixed.request,
            "comparisons": [
                {"name": name, "verdict": verdict}
                for name, verdict in comparisons(one, seen.signal, seen.rules.layout, seen.rules.era).items()
            ],
        }
        for rank, one in enumerate(order, 1)
    ]


# The node as one answer of the Summary API, and a pass of the policy over it.


@dataclass(frozen=True)
class Situation:
    """The node as it is now. ``summary`` has what was measured, ``result`` what a first pass of a fresh daemon decides
    on it (a soft threshold begins its grace there), ``signal`` what the pods are ranked for. ``frame`` is `top`'s;
    ``held`` are the conditions of the daemon that answered, None without one.
    """

    config: RunConfig
    rules: PassConfig
    node: Node
    frame: Mapping[str, Any]
    found: Mapping[str, FoundPod]
    summary: Summary
    result: KubeletResult
    signal: str
    held: tuple[str, ...] | None
    problems: Sequence[str]

    @property
    def conditions(self) -> tuple[str, ...]:
        """The node's conditions: those the daemon holds, transition period included, else those of the pass."""
        if self.held is not None:
            return self.held
        return tuple(sorted(self.result.outcome.conditions)) if self.result.outcome is not None else ()

    def order(self) -> list[Ranked]:
        pods = [found.pod for found in self.found.values()]
        return rank_pods(self.signal, pods, self.summary.pods, self.rules.layout, self.rules.era)


def look(node: Node, signal: str | None) -> Situation:
    """Measure the node and let the policy pass over it.

    ``signal`` None is the one a pass would act on, else one that waits for its grace, else ``memory.available``.
    Raises MonitorError.
    """
    config, found_disks = with_disks(node.config)
    frame, source = node.frame(), node.source
    measured = {pod["uid"] for pod in frame["pods"]}
    # One that ended since the poll has no figures, and would rank first for that.
    found = {uid: pod for uid, pod in source.pods.items() if uid in measured or cgroupfs.exists(pod.cgroup)}
    observations = _observe(frame, found_disks)
    rules = config.pass_config()
    if signal is None:
        outcome = run_pass(rules, State(), observations, 0, lambda _: ()).outcome
        wanted = outcome.starved or next(iter(outcome.observed), None)
        signal = MEMORY if wanted is None else wanted.signal
    problems = [*source.problems, *filter(None, (source.unlisted_text(),)), *_unknown_pods(frame, found)]
    stats = {pod["uid"]: _stats(pod, found[pod["uid"]], node.hierarchy) for pod in frame["pods"] if pod["uid"] in found}
    problems += _measure(config, stats, found, signal, Roots.of(found_disks))
    summary = Summary({"pods": list(stats.values())})
    summary.observations |= observations
    pods = [one.pod for one in found.values()]
    # What cleaning up would free is not known before it is done: as if it were not enough.
    result = kubelet_pass(rules, State(), pods, lambda: summary, 0, lambda _: None)
    held = None
    if node.daemon is not None and frame["source"].startswith("daemon "):
        held = tuple(sorted(node.daemon.info.conditions))
    return Situation(config, rules, node, frame, found, summary, result, signal, held, problems)


def _unknown_pods(frame: Mapping[str, Any], found: Mapping[str, FoundPod]) -> list[str]:
    unknown = [f"{pod['namespace']}/{pod['name']}" for pod in frame["pods"] if pod["uid"] not in found]
    if not unknown:
        return []
    return [f"the daemon also knows {', '.join(unknown)}, left out here: give explain the --pods the daemon has"]


def _observe(frame: Mapping[str, Any], found: Disks) -> dict[str, Observation]:
    """What each signal reads: of memory by the frame, of disks and process ids now."""
    seen = {signal: Observation(of["available"], of["capacity"], 0) for signal, of in frame["signals"].items()}
    for path, (space, inodes) in zip((found.nodefs, found.imagefs, found.imagefs), signals.OF_DISK, strict=True):
        fs = disks.file_system(path)
        seen[space] = Observation(fs.available, fs.capacity, 0)
        if fs.inodes is not None and fs.inodes_free is not None:
            seen[inodes] = Observation(fs.inodes_free, fs.inodes, 0)
    most, running = disks.pid_counts()
    return seen | {PID: Observation(most - running, most, 0)}


def _stats(pod: Mapping[str, Any], found: FoundPod, hierarchy: Hierarchy) -> dict[str, Any]:
    """The memory of a pod of the frame, in the shape of the Summary API."""
    return {
        "podRef": {key: pod[key] for key in ("name", "namespace", "uid")},
        "memory": {"workingSetBytes": pod["working_set"]},
        "containers": list(_containers(hierarchy, found)),
    }


def _containers(hierarchy: Hierarchy, pod: FoundPod) -> Iterator[dict[str, Any]]:
    """The working set of each container, which only messages name: always from the cgroup files."""
    for name, path in pod.containers.items():
        with suppress(cgroupfs.CgroupGone):
            yield {"name": name, "memory": {"workingSetBytes": cgroupfs.read_cgroup(hierarchy, path).working_set}}


def _measure(
    config: RunConfig, stats: dict[str, Any], found: Mapping[str, FoundPod], signal: str, roots: Roots
) -> list[str]:
    """Add what ranking for ``signal`` and own limits of storage take beside memory; the problems met.

    Walks the pods' directories for a disk signal, and those of pods with such limits always.
    """
    problems: list[str] = []
    for uid, pod in found.items():
        if signal in signals.MEMORY_SIGNALS and uid not in stats:
            continue  # without memory figures it is one without stats, and ranks as such
        if signal in _DISK_SIGNALS or (config.local_storage and is_limited(pod.pod)):
            measured = measure(pod, roots)
            figures = measured.stats
            problems += measured.problems
        elif signal == PID:
            figures = process_stats(pod)
        else:
            continue
        stats[uid] = _merged(figures._raw, stats.get(uid, {}))
    return problems


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two sets of figures of one pod, container by container."""
    containers: dict[str, dict[str, Any]] = {}
    for entry in (*one.get("containers", ()), *other.get("containers", ())):
        containers.setdefault(entry["name"], {}).update(entry)
    return {**one, **other, "containers": list(containers.values())}


# One pod: its rank, class, request, scores and limits.


def label(pod: Pod) -> str:
    """namespace/name; for a pod known by its cgroup alone its uid."""
    return f"{pod.namespace}/{pod.name}".lstrip("/")


def about(seen: Situation, order: Sequence[Ranked], one: Ranked) -> dict[str, Any]:
    """The facts as data; sizes in bytes."""
    pod, found = one.pod, seen.found[one.pod.uid]
    at = order.index(one)
    victim = next((other for other in order if not other.fixed.critical), None)
    rules = seen.rules.era
    resource = "memory" if seen.signal in signals.MEMORY_SIGNALS else STORAGE
    request = None
    if seen.signal != PID:
        why = why_request(pod, resource, rules)
        request = {"resource": resource, "value": rules.request(pod, resource).value, "why": why}
    return {
        "pod": label(one.pod),
        "uid": pod.uid,
        "cgroup": str(found.cgroup),
        "rank": at + 1,
        "of": len(order),
        "next": one is victim,
        "qos": {"class": rules.qos_class(pod), "why": why_class(pod, rules)},
        "request": request,
        "spec_known": pod.spec_known,
        "written": dict(pod.written),
        "critical": {"critical": one.fixed.critical, "why": why_critical(pod, rules)},
        "against": _against(seen, order, at, victim),
        "oom_score_adj": _scores(seen, found),
        "local_storage": _storage(seen, one),
        "admission": {"conditions": list(seen.conditions), **admit(pod, seen.conditions, rules.qos_class)._asdict()},
        "eviction": _eviction(seen, one),
    }


def _against(seen: Situation, order: Sequence[Ranked], at: int, victim: Ranked | None) -> list[dict[str, Any]]:
    """The comparisons with the first victim and both neighbours; pods that are never evicted do not count."""
    one = order[at]
    evictable = [other for other in order if other is one or not other.fixed.critical]
    n = evictable.index(one)
    before = evictable[n - 1] if n else None
    behind = evictable[n + 1] if n + 1 < len(evictable) else None
    roles = {"first victim": victim, "before it": before, "behind it": behind}
    found: dict[str, dict[str, Any]] = {}
    for role, other in roles.items():
        if other is not None and other is not one and other.pod.uid not in found:
            compared = contrast(one, other, seen.signal, seen.rules.layout, seen.rules.era)
            found[other.pod.uid] = {
                "role": role,
                "pod": label(other.pod),
                "uid": other.pod.uid,
                "rank": order.index(other) + 1,
                "goes_first": other.key < one.key,
                "comparisons": compared,
            }
    return list(found.values())


def _scores(seen: Situation, found: FoundPod) -> dict[str, Any]:
    """What oom_score_adj each container should have, and what its processes have."""
    mismatches: list[dict[str, Any]] = []

    def note(_level: str, _message: str, /, **fields: object) -> None:
        mismatches.append({key: fields[key] for key in ("container", "pid", "is_now", "should_be")})

    wanted = pod_scores(found, seen.node.whole, seen.rules.era)
    OomScores(seen.node.hierarchy, seen.node.whole, None, note, seen.rules.era).set_pod(found)
    containers = [
        {
            "name": c.name,
            "wanted": wanted.get(c.name),
            "processes": len(cgroup_procs.processes(found.containers[c.name])) if c.name in found.containers else None,
        }
        for c in (*found.pod.containers, *found.pod.init_containers)
    ]
    return {"containers": containers, "mismatches": mismatches}


def _storage(seen: Situation, one: Ranked) -> dict[str, Any]:
    """The pod's limits of local storage, and which one it is over."""
    pod = one.pod
    limits = [
        {"of": f"volume {v.name}", "limit": str(v.size_limit)}
        for v in pod.volumes
        if v.source == "emptyDir" and v.size_limit is not None and not v.size_limit.is_zero
    ]
    sidecars = seen.rules.era.sidecar_storage
    own = (*pod.containers, *(c for c in pod.init_containers if sidecars and c.sidecar))
    limits += [{"of": f"container {c.name}", "limit": str(c.limits[STORAGE])} for c in own if STORAGE in c.limits]
    whole = pod_limit(pod, STORAGE)
    if whole is not None:
        limits.append({"of": "the pod", "limit": str(whole)})
    over = None
    if seen.config.local_storage and one.stats is not None:
        over = storage_violation(pod, one.stats, seen.rules.layout, sidecars=sidecars)
    return {"limits": limits, "enforced": seen.config.local_storage, "over": over}


def _eviction(seen: Situation, one: Ranked) -> dict[str, Any] | None:
    """The message of an eviction now for this signal; None for a pod that is never evicted."""
    if one.fixed.critical:
        return None
    threshold = _threshold(seen)
    message, annotations = message_for(one.pod, seen.signal, threshold, seen.summary)
    grace_s = None if threshold is None else _grace_s(seen, threshold, one)
    return {"grace_s": grace_s, "message": message, "annotations": annotations}


def _threshold(seen: Situation) -> Threshold | None:
    """The one the pod would be evicted for: the starved one, else the first of the signal, hard before soft."""
    outcome = seen.result.outcome
    if outcome is not None and outcome.starved is not None and outcome.starved.signal == seen.signal:
        return outcome.starved
    of_signal = [t for t in seen.config.thresholds() if t.signal == seen.signal]
    return next((t for t in of_signal if t.hard), next(iter(of_signal), None))


def _grace_s(seen: Situation, threshold: Threshold, one: Ranked) -> int:
    """The grace of an eviction for ``threshold``, asked of a pass in which it is met and past its own grace."""
    rules = dataclasses.replace(seen.rules, thresholds=(threshold,), layout=NO_OVERLAY)
    starved = {threshold.signal: Observation(-(2**62), 1, 0)}
    before = run_pass(rules, State(), starved, 0, lambda _: ())
    return run_pass(rules, before.state, starved, threshold.grace_ns, lambda _: [one.candidate]).grace_s
