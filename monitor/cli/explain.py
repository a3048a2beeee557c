"""`outrace explain`: the thresholds, the order of eviction, and why one pod stands where it stands in it."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import click

from monitor.actions.oomadj import OomScores, pod_scores
from monitor.cli.daemons import choose_daemon, no_daemon_option
from monitor.cli.explain_node import Situation, look
from monitor.cli.explain_text import lines
from monitor.cli.options import as_settled, node_options, resolve_here
from monitor.cli.output import emit, output_option
from monitor.cli.top_frame import Node
from monitor.errors import ConfigError, MonitorError
from monitor.kernel import cgroup_procs
from monitor.pods.model import FoundPod
from monitor.policy.admission import admit
from monitor.policy.eviction_pass import run_pass
from monitor.policy.explain import comparisons, contrast, why_class, why_critical, why_request
from monitor.policy.kubelet_pass import message_for, storage_violation
from monitor.policy.layout import NO_OVERLAY
from monitor.policy.pods import Pod
from monitor.policy.resources import pod_limit
from monitor.policy.signals import ALL_SIGNALS, IN_BYTES, MEMORY_SIGNALS, OWN_SIGNALS, PID, RESOURCE, Observation
from monitor.policy.synchronize import Outcome, State
from monitor.policy.thresholds import Threshold
from monitor.policy.victims import Ranked
from monitor.settings.read import Resolved, resolved_again


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
    if signal is not None and signal not in ALL_SIGNALS:
        raise ConfigError(f"--signal: {signal!r} is not an eviction signal", f"signals are {', '.join(ALL_SIGNALS)}")
    if (policy := settings["policy"]) == "all" or "," in (policy or ""):
        raise ConfigError("--policy: several releases side by side are gone", "run explain once for each")
    found = choose_daemon(settings, no_daemon)
    resolved = resolved_again(found.config) if found is not None else resolve_here(settings)
    config = as_settled(resolved.config)
    rules = config.pass_config().era
    if signal is not None and signal not in (*rules.signals, *OWN_SIGNALS):
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
    if found:
        raise MonitorError(
            f"{len(found)} pods are called {text}", f"say which: {', '.join(label(one.pod) for one in found)}"
        )
    names = list(dict.fromkeys(name for one in order for name in (label(one.pod), one.pod.name, one.pod.uid)))
    close = difflib.get_close_matches(text, names, 3, 0.5)
    if close:
        remedy = f"did you mean {' or '.join(close)}?"
    elif order:
        remedy = f"pods are {', '.join(label(one.pod) for one in order[:10])}{', ...' if len(order) > 10 else ''}"
    else:
        remedy = "there are no pods here: say where they are with --pods manifests:DIR or --node-cgroup PATH"
    raise MonitorError(f"no pod {text!r}", remedy)


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
            "in_bytes": RESOURCE[t.signal] in IN_BYTES,
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


# One pod: its rank, class, request, scores and limits.


STORAGE = "ephemeral-storage"


def label(pod: Pod) -> str:
    """namespace/name; for a pod known by its cgroup alone its uid."""
    return f"{pod.namespace}/{pod.name}".lstrip("/")


def about(seen: Situation, order: Sequence[Ranked], one: Ranked) -> dict[str, Any]:
    """The facts as data; sizes in bytes."""
    pod, found = one.pod, seen.found[one.pod.uid]
    at = order.index(one)
    victim = next((other for other in order if not other.fixed.critical), None)
    rules = seen.rules.era
    resource = "memory" if seen.signal in MEMORY_SIGNALS else STORAGE
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
    """The first victim, the pod before this one and the one behind it: the comparisons.

    Those that are never evicted are left out: to stand before or behind one changes nothing.
    """
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
