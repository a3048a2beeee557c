"""`outrace explain`: the thresholds for memory, the order of eviction, and why one pod stands where it stands in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import click

from monitor.cli.daemons import choose_daemon, no_daemon_option
from monitor.cli.options import as_settled, node_options, resolve_here
from monitor.cli.output import Columns, amount_of, emit, format_bytes, output_option, table, yaml_lines
from monitor.cli.top_frame import Node, threshold_row
from monitor.cli.top_screen import held_lines, suspension_lines
from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.pods.model import FoundPod
from monitor.policy.eviction_pass import PassConfig, PassResult, State, run_pass
from monitor.policy.explain import contrast, why_class, why_critical, why_request
from monitor.policy.pods import Pod
from monitor.policy.signals import MEMORY, Observation
from monitor.policy.stats import PodStats
from monitor.policy.thresholds import Threshold
from monitor.policy.victims import Ranked, rank_pods

Data = Mapping[str, Any]


@click.command()
@click.argument("pod", required=False, metavar="[NS/POD]")
@node_options
@no_daemon_option
@output_option
def explain(pod: str | None, no_daemon: bool, output: str, **settings: Any) -> None:
    """Show which pod would be evicted next for memory, and why; with NS/POD (a uid, or a unique name), why this one or
    why not.

    Without options: the node, pods and thresholds of the running daemon. With --no-daemon, or an option that describes
    a node: that node, with figures from the cgroup files. The output says which.
    """
    found = choose_daemon(settings, no_daemon)
    config = as_settled(resolve_here(settings).config if found is None else found.config)
    with closing(Node(config, found)) as node:
        seen = look(node)
    answer = {
        "time": seen.frame["time"],
        "source": seen.frame["source"],
        "node": _node(seen),
        "signal": seen.signal,
        "policy": [config.policy],
        "order": _order(seen),
    }
    if pod is not None:
        answer["pod"] = about(seen, _find(seen.order, pod))
    answer["problems"] = seen.problems
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


class Situation(NamedTuple):
    """A frame of `top`, and a pass of the policy over it: ``result`` is what the first pass of a fresh daemon decides
    (a soft threshold begins its grace there), ``order`` the pods as ranked for any signal of memory. ``held``: the
    conditions of the daemon, None without one.
    """

    frame: Data
    rules: PassConfig
    observations: Mapping[str, Observation]
    result: PassResult
    order: Sequence[Ranked]
    found: Mapping[str, FoundPod]
    held: list[str] | None
    problems: list[str]

    @property
    def thresholds(self) -> list[Threshold]:
        """Those that are compared here."""
        return [t for t in self.rules.thresholds if t.signal in self.observations]

    @property
    def acting(self) -> Threshold | None:
        """The first to act: of those that are met, else the nearest by its share of the capacity."""
        outcome = self.result.outcome
        met = outcome.starved or next(iter(outcome.observed), None)
        return met or min(self.thresholds, key=self._left, default=None)

    def _left(self, threshold: Threshold) -> float:
        seen = self.observations[threshold.signal]
        return (seen.available - threshold.quantity(seen.capacity)) / max(1, seen.capacity)

    @property
    def signal(self) -> str:
        """What the pass acts on."""
        outcome = self.result.outcome
        return next((t.signal for t in (outcome.starved, *outcome.observed) if t is not None), MEMORY)

    @property
    def victim(self) -> Ranked | None:
        """Critical pods are never evicted."""
        return next((one for one in self.order if not one.fixed.critical), None)


def look(node: Node) -> Situation:
    """Measure the memory of the node and let the policy pass over it. Raises MonitorError."""
    frame, source, rules = node.frame(), node.source, node.config.pass_config()
    used = {pod["uid"]: pod["working_set"] for pod in frame["pods"]}
    # One that ended since the poll has no figures, and would rank first for that.
    found = {uid: pod for uid, pod in source.pods.items() if uid in used or cgroupfs.exists(pod.cgroup)}
    stats = {uid: PodStats({"memory": {"workingSetBytes": size}}) for uid, size in used.items()}
    order = rank_pods(MEMORY, [one.pod for one in found.values()], stats, rules.layout, rules.era)
    seen = {signal: Observation(of["available"], of["capacity"], 0) for signal, of in frame["signals"].items()}
    result = run_pass(rules, State(), seen, 0, lambda _: [one.candidate for one in order])
    problems = [*source.problems, *filter(None, (source.unlisted_text(),))]
    if unknown := [f"{pod['namespace']}/{pod['name']}" for pod in frame["pods"] if pod["uid"] not in found]:
        also = f"the daemon also knows {', '.join(unknown)}, left out here"
        problems.append(f"{also}: give explain the --pods the daemon has")
    held = None if node.daemon is None else sorted(node.daemon.info.conditions)
    return Situation(frame, rules, seen, result, order, found, held, problems)


# What `-o json` prints: the thresholds and what a pass does about them, the order, one pod.


def _node(seen: Situation) -> dict[str, Any]:
    starved = seen.result.outcome.starved
    rows = [
        threshold_row(t, seen.observations[t.signal]) | {"grace_s": t.grace_ns / 1e9, "first": t == seen.acting}
        for t in seen.thresholds
    ]
    return {
        **{name: seen.frame["node"][name] for name in ("cgroup", "capacity")},
        "thresholds": rows,
        "conditions": sorted(seen.result.outcome.conditions),
        "held_conditions": seen.held,
        "braked": seen.frame["braked"],
        "held": seen.frame["held"],
        "starved": None if starved is None else {"signal": starved.signal, "threshold": str(starved)},
        "verdict": _verdict(seen),
    }


def _verdict(seen: Situation) -> str:
    outcome = seen.result.outcome
    if outcome.starved is None:
        text = "memory is not short" if seen.thresholds else "no threshold for memory is configured"
        waiting = "".join(f"; {t} is met and acts if it stays so" for t in outcome.observed)
        return f"{text}: no pod would be evicted for it now{waiting}"
    text = f"{outcome.starved.signal} is starved"
    if (victim := seen.victim) is not None:
        return f"{text}: {label(victim.pod)} would be evicted now, with {seen.result.grace_s} s of grace"
    return f"{text}, but {'every pod is critical' if seen.order else 'there are no pods'}: no pod would be evicted"


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
    return {
        "pod": label(pod),
        "uid": pod.uid,
        "cgroup": str(seen.found[pod.uid].cgroup),
        "rank": seen.order.index(one) + 1,
        "of": len(seen.order),
        "next": one is seen.victim,
        "qos": {"class": rules.qos_class(pod), "why": why_class(pod, rules)},
        "request": {"resource": "memory", "value": rules.request(pod, "memory").value, "why": why_request(pod, rules)},
        "spec_known": pod.spec_known,
        "written": dict(pod.written),
        "critical": {"critical": one.fixed.critical, "why": why_critical(pod, rules)},
        "against": list(_against(seen, one)),
    }


def _against(seen: Situation, one: Ranked) -> Iterator[dict[str, Any]]:
    """The comparison with the first victim, of the victim itself with the next; critical pods do not count."""
    for other in [other for other in seen.order if other is not one and not other.fixed.critical][:1]:
        yield {
            "role": "behind it" if one is seen.victim else "first victim",
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
    "met": lambda t: "yes" if t["met"] else "no",
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
    yield f"conditions of memory a pass would raise now: {', '.join(node['conditions']) or 'none'}"
    if node["held_conditions"] is not None:
        yield f"conditions in force at the daemon: {', '.join(node['held_conditions']) or 'none'}"
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
