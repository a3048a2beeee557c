"""`outrace explain`: the thresholds, the order of eviction, and why one pod stands where it stands in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import click

from monitor.cli.daemons import choose_daemon, no_daemon_option
from monitor.cli.options import as_settled, node_options, resolve_here, with_disks
from monitor.cli.output import Columns, amount_of, emit, format_bytes, output_option, table, yaml_lines
from monitor.cli.top_frame import Node, threshold_row
from monitor.cli.top_screen import held_lines, suspension_lines
from monitor.errors import MonitorError
from monitor.kernel import cgroupfs, disks
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.disks import Disks
from monitor.pods.model import FoundPod
from monitor.policy import signals
from monitor.policy.eviction_pass import PassConfig, PassResult, State, is_of_memory, run_pass
from monitor.policy.explain import contrast, why_class, why_critical, why_request
from monitor.policy.kubelet_pass import admit, message_for
from monitor.policy.pods import Pod
from monitor.policy.ranking import Candidate
from monitor.policy.signals import MEMORY, MEMORY_SIGNALS, PID, Observation
from monitor.policy.stats import Summary
from monitor.policy.victims import Ranked, rank_pods
from monitor.settings.config import RunConfig
from monitor.settings.read import Resolved, resolved_again

Data = Mapping[str, Any]


@click.command()
@click.argument("pod", required=False, metavar="[NS/POD]")
@node_options
@no_daemon_option
@output_option
def explain(pod: str | None, no_daemon: bool, output: str, **settings: Any) -> None:
    """Show which pod would be evicted next and why; with NS/POD (a uid, or a unique name), why this one or why not.

    Without options: the node, pods and thresholds of the running daemon. With --no-daemon, or an option that describes
    a node: that node, with figures from the cgroup files. The output says which.
    """
    found = choose_daemon(settings, no_daemon)
    resolved = resolved_again(found.config) if found is not None else resolve_here(settings)
    config = as_settled(resolved.config)
    with closing(Node(config, found)) as node:
        seen = look(node)
    answer = {
        "time": seen.frame["time"],
        "source": seen.frame["source"],
        "node": _node(seen, resolved),
        "signal": seen.signal,
        "policy": [config.policy],
        "order": _order(seen),
    }
    if pod is not None:
        answer["pod"] = about(seen, _find(seen.order, pod))
    answer["problems"] = list(seen.problems)
    emit(output, answer, lambda: _lines(answer))
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


def label(pod: Pod) -> str:
    """namespace/name; for a pod known by its cgroup alone its uid."""
    return f"{pod.namespace}/{pod.name}".lstrip("/")


# The node as one answer of the Summary API, and a pass of the policy over it.


@dataclass(frozen=True)
class Situation:
    """The node as it is now. ``summary`` has what was measured, ``result`` what a first pass of a fresh daemon decides
    on it (a soft threshold begins its grace there), ``signal`` the one of memory that it acts on, ``order`` the pods as
    ranked for any signal of memory. ``frame`` is `top`'s;
    ``held`` are the conditions of the daemon that answered, None without one.
    """

    config: RunConfig
    rules: PassConfig
    node: Node
    frame: Data
    found: Mapping[str, FoundPod]
    summary: Summary
    result: PassResult
    signal: str
    order: Sequence[Ranked]
    held: tuple[str, ...] | None
    problems: Sequence[str]

    @property
    def raised(self) -> list[str]:
        """The conditions that the pass raises."""
        return sorted(self.result.outcome.conditions)


def look(node: Node) -> Situation:
    """Measure the node and let the policy pass over it. Raises MonitorError."""
    config, found_disks = with_disks(node.config)
    frame, source = node.frame(), node.source
    measured = {pod["uid"] for pod in frame["pods"]}
    # One that ended since the poll has no figures, and would rank first for that.
    found = {uid: pod for uid, pod in source.pods.items() if uid in measured or cgroupfs.exists(pod.cgroup)}
    rules, pods = config.pass_config(), [one.pod for one in found.values()]
    stats = [_stats(pod, found[pod["uid"]], node.hierarchy) for pod in frame["pods"] if pod["uid"] in found]
    summary = Summary({"pods": stats})
    summary.observations |= _observe(frame, found_disks)

    order = rank_pods(MEMORY, pods, summary.pods, rules.layout, rules.era)

    def ranked(signal: str) -> list[Candidate]:  # what a pod has on a disk is not measured here
        return [one.candidate for one in order] if signal in MEMORY_SIGNALS else []

    result = run_pass(rules, State(), summary.observations, 0, ranked)
    acting = (result.outcome.starved, *result.outcome.observed)
    signal = next((t.signal for t in acting if t is not None and t.signal in MEMORY_SIGNALS), MEMORY)
    problems = [*source.problems, *filter(None, (source.unlisted_text(),))]
    if unknown := [f"{pod['namespace']}/{pod['name']}" for pod in frame["pods"] if pod["uid"] not in found]:
        also = f"the daemon also knows {', '.join(unknown)}, left out here"
        problems.append(f"{also}: give explain the --pods the daemon has")
    held = None
    if node.daemon is not None and frame["source"].startswith("daemon "):
        held = tuple(sorted(node.daemon.info.conditions))
    return Situation(config, rules, node, frame, found, summary, result, signal, order, held, problems)


def _observe(frame: Data, found: Disks) -> dict[str, Observation]:
    """What each signal reads: of memory by the frame, of disks and process ids now."""
    seen = {signal: Observation(of["available"], of["capacity"], 0) for signal, of in frame["signals"].items()}
    for path, (space, inodes) in zip((found.nodefs, found.imagefs, found.imagefs), signals.OF_DISK, strict=True):
        fs = disks.file_system(path)
        seen[space] = Observation(fs.available, fs.capacity, 0)
        if fs.inodes is not None and fs.inodes_free is not None:
            seen[inodes] = Observation(fs.inodes_free, fs.inodes, 0)
    most, running = disks.pid_counts()
    return seen | {PID: Observation(most - running, most, 0)}


def _stats(pod: Data, found: FoundPod, hierarchy: Hierarchy) -> dict[str, Any]:
    """The memory of a pod of the frame, in the shape of the Summary API. The working set of each container, which only
    messages name, is always from the cgroup files.
    """
    containers = []
    for name, path in found.containers.items():
        with suppress(cgroupfs.CgroupGone):
            used = cgroupfs.read_cgroup(hierarchy, path).working_set
            containers.append({"name": name, "memory": {"workingSetBytes": used}})
    names = {key: pod[key] for key in ("name", "namespace", "uid")}
    return {"podRef": names, "memory": {"workingSetBytes": pod["working_set"]}, "containers": containers}


# What `-o json` prints: the thresholds and what a pass does about them, the order, one pod.


def _node(seen: Situation, resolved: Resolved) -> dict[str, Any]:
    starved = seen.result.outcome.starved
    return {
        "cgroup": str(seen.node.path),
        "capacity": seen.node.capacity,
        "thresholds": _thresholds(seen, resolved),
        "conditions": seen.raised,
        "held_conditions": None if seen.held is None else list(seen.held),
        "braked": seen.frame["braked"],
        "held": seen.frame["held"],
        "starved": None if starved is None else {"signal": starved.signal, "threshold": str(starved)},
        "verdict": _verdict(seen),
        "evictions": list(_evictions(seen)),
    }


def _evictions(seen: Situation) -> Iterator[dict[str, Any]]:
    """The pod that the pass chooses, if it chooses one."""
    starved, victim = seen.result.outcome.starved, seen.result.outcome.victim
    if starved is not None and victim is not None:
        pod = seen.found[victim.uid].pod
        message, _ = message_for(pod, starved.signal, starved, seen.summary)
        yield {"pod": label(pod), "uid": pod.uid, "grace_s": seen.result.grace_s, "message": message}


def _verdict(seen: Situation) -> str:
    outcome = seen.result.outcome
    if outcome.starved is None:
        text = "nothing is starved" if seen.config.thresholds() else "no threshold is configured"
        waiting = "".join(f"; {t} is met and acts if it stays so" for t in outcome.observed)
        return f"{text}: no pod would be evicted for a threshold now{waiting}"
    text = f"{outcome.starved.signal} is starved"
    if outcome.victim is not None:
        return f"{text}: {label(seen.found[outcome.victim.uid].pod)} would be evicted now"
    if not is_of_memory(outcome) and any(not one.fixed.critical for one in seen.order):
        return f"{text}: the log of the daemon names the pod, if one has to go"
    return f"{text}, but {'every pod is critical' if seen.found else 'there are no pods'}: no pod would be evicted"


def _thresholds(seen: Situation, resolved: Resolved) -> list[dict[str, Any]]:
    in_force = resolved.settings.thresholds(seen.rules.era, seen.rules.layout)
    as_written = {e.threshold: e.text for e in in_force if not (e.copy or e.overlay)}
    rows: list[dict[str, Any]] = []
    outcome = seen.result.outcome
    acting = outcome.starved or next(iter(outcome.observed), None)
    for t in seen.config.thresholds():
        o = seen.summary.observations.get(t.signal)
        more = {
            "value": as_written.get(t, str(t.value)),
            "grace_s": t.grace_ns / 1e9,
            "min_reclaim": None if t.min_reclaim is None else str(t.min_reclaim),
            "capacity": None if o is None else o.capacity,
            "in_bytes": signals.RESOURCE[t.signal] in signals.IN_BYTES,
            "first": t == acting,
        }
        rows.append(threshold_row(t, o) | more)
    if acting is None and (observed := [row for row in rows if row["capacity"]]):
        min(observed, key=lambda row: row["distance"] / row["capacity"])["first"] = True
    return rows


def _order(seen: Situation) -> list[dict[str, Any]]:
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
        }
        for rank, one in enumerate(seen.order, 1)
    ]


def about(seen: Situation, one: Ranked) -> dict[str, Any]:
    """One pod; sizes in bytes."""
    pod, rules = one.pod, seen.rules.era
    victim = next((other for other in seen.order if not other.fixed.critical), None)
    conditions = seen.raised if seen.held is None else list(seen.held)
    return {
        "pod": label(pod),
        "uid": pod.uid,
        "cgroup": str(seen.found[pod.uid].cgroup),
        "rank": seen.order.index(one) + 1,
        "of": len(seen.order),
        "next": one is victim,
        "qos": {"class": rules.qos_class(pod), "why": why_class(pod, rules)},
        "request": {"resource": "memory", "value": rules.request(pod, "memory").value, "why": why_request(pod, rules)},
        "spec_known": pod.spec_known,
        "written": dict(pod.written),
        "critical": {"critical": one.fixed.critical, "why": why_critical(pod, rules)},
        "against": list(_against(seen, one, victim)),
        "admission": {"conditions": conditions, **admit(pod, conditions, rules.qos_class)._asdict()},
    }


def _against(seen: Situation, one: Ranked, victim: Ranked | None) -> Iterator[dict[str, Any]]:
    """The comparison with the first victim, of the victim itself with the next; critical pods do not count."""
    for other in [other for other in seen.order if other is not one and not other.fixed.critical][:1]:
        yield {
            "role": "behind it" if one is victim else "first victim",
            "pod": label(other.pod),
            "uid": other.pod.uid,
            "rank": seen.order.index(other) + 1,
            "goes_first": other.key < one.key,
            "comparisons": contrast(one, other, seen.rules.era),
        }


# The same as text.

_COLUMNS: Columns = {
    "signal": "signal",
    "kind": lambda t: f"{t['kind']} for {t['grace_s']:g}s" if t["grace_s"] else t["kind"],
    "value": "value",
    "quantity": "quantity",
    "available": amount_of("available"),
    "distance": amount_of("distance"),
    "min reclaim": "min_reclaim",
    "met": lambda t: "yes" if t["met"] else "not observed" if t["available"] is None else "no",
    "first to act": lambda t: "<--" if t["first"] else "",
}
_ORDER: Columns = {
    "rank": "rank",
    "pod": "pod",
    "used": lambda one: format_bytes(one["usage"]),
    "requested": lambda one: format_bytes(one["request"]),
    "above": lambda one: None if one["usage"] is None else format_bytes(one["usage"] - one["request"]),
    "priority": "priority",
    "class": "qos",
    "": lambda one: "never evicted" if one["critical"] else "",
}


def _lines(answer: Data) -> Iterator[str]:
    node, signal = answer["node"], answer["signal"]
    capacity = format_bytes(node["capacity"])
    yield f"{answer['time']}  {answer['source']}  node {node['cgroup']} of {capacity}  policy {answer['policy'][0]}"
    yield ""
    yield from (*table(_COLUMNS, node["thresholds"]), "") if node["thresholds"] else ()
    yield node["verdict"]
    yield from (*suspension_lines(node["braked"]), *held_lines(node["held"]))
    yield f"conditions a pass would raise now: {', '.join(node['conditions']) or 'none'}"
    if node["held_conditions"] is not None:
        yield f"conditions in force at the daemon: {', '.join(node['held_conditions']) or 'none'}"
    for e in node["evictions"]:
        yield f"{e['pod']}, with {e['grace_s']} s of grace: {e['message'].strip()}"
    yield ""
    yield f"order of eviction for {signal} ({answer['policy'][0]}):"
    yield from table(_ORDER, answer["order"]) if answer["order"] else ["no pods"]
    if "pod" in answer:
        yield ""
        yield from _pod_lines(answer["pod"], signal)


def _pod_lines(pod: Data, signal: str) -> Iterator[str]:
    rank = f"rank {pod['rank']} of {pod['of']}"
    if pod["critical"]["critical"]:
        rank = f"never evicted (it would be {rank})"
    yield f"{pod['pod']}: {rank}{', the next to be evicted' if pod['next'] else ''} for {signal}"
    facts = {name: value for name, value in pod.items() if name not in ("pod", "rank", "of", "next", "against")}
    yield from (f"  {line}" for line in yaml_lines(facts, inline=True))
    for other in pod["against"]:
        goes = "goes before it" if other["goes_first"] else "comes after it"
        yield ""
        yield f"  against {other['pod']} ({other['role']}, rank {other['rank']}), which {goes}:"
        columns: Columns = {"": "name", "this pod": "one", other["pod"]: "other", " ": _decides}
        yield from (f"    {line}".rstrip() for line in table(columns, other["comparisons"], prose=True))


def _decides(comparison: Data) -> str:
    return "<-- decides" if comparison["decides"] else ""
