"""`outrace explain`: the thresholds, the order of eviction, and why one pod stands where it stands in it."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from monitor.cli.daemons import choose_daemon, no_daemon_option
from monitor.cli.explain_node import Situation, look
from monitor.cli.explain_pod import about, label
from monitor.cli.explain_text import lines
from monitor.cli.options import as_settled, node_options, resolve_here
from monitor.cli.output import emit, output_option
from monitor.errors import ConfigError, MonitorError
from monitor.kernel import cgroupfs, meminfo
from monitor.pods.source import open_for
from monitor.policy.explain import comparisons
from monitor.policy.signals import ALL_SIGNALS, IN_BYTES, OWN_SIGNALS, RESOURCE
from monitor.policy.synchronize import Outcome
from monitor.policy.victims import Ranked
from monitor.settings.read import Resolved, resolved_again


@click.command()
@click.argument("pod", required=False, metavar="[NS/POD]")
@click.option("--signal", metavar="SIGNAL", help="Rank pods for this signal. [the starved one, else memory.available]")
@node_options
@no_daemon_option
@output_option
def explain(
    pod: str | None,
    signal: str | None,
    no_daemon: bool,
    output: str,
    **settings: Any,
) -> None:
    """Show who would be evicted next and why; with NS/POD (a uid, or a name that is unique), why this one or why not.

    Nothing is changed. Without options: the node, pods and thresholds of the running daemon. With --no-daemon, or an
    option that describes a node: that node, with figures from the cgroup files. The output says which.
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
    hierarchy = cgroupfs.detect()
    node = None if config.node_cgroup is None else cgroupfs.resolve(hierarchy, config.node_cgroup)
    source = open_for(config, hierarchy, meminfo.mem_total(), node)
    try:
        seen = look(config, source, signal, found)
    finally:
        source.close()
    order = seen.order()
    answer = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
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
    cleanup = [action for action in seen.result.reclaimed if action in seen.config.cleanups()]
    return {
        "cgroup": str(seen.node.path),
        "capacity": seen.node.capacity,
        "thresholds": list(_thresholds(seen, resolved, outcome)),
        "conditions": sorted(outcome.conditions) if outcome is not None else [],
        "held_conditions": None if seen.held is None else list(seen.held),
        "braked": seen.frame["braked"],
        "held": seen.frame["held"],
        "starved": None if starved is None else {"signal": starved.signal, "threshold": str(starved)},
        "verdict": _verdict(seen, outcome),
        "cleanup": cleanup,
        "evictions": evictions,
    }


def _verdict(seen: Situation, outcome: Outcome | None) -> str:
    evicted = [label(e.pod) for e in seen.result.evictions]
    if outcome is None or outcome.starved is None:
        text = "nothing is starved" if seen.config.thresholds() else "no threshold is configured"
        if evicted:
            return f"{text}, but over a limit of local storage: {', '.join(evicted)} would be evicted now"
        waiting = "".join(f"; {t} is met and acts if it stays so" for t in (outcome.observed if outcome else ()))
        return f"{text}: nobody would be evicted now{waiting}"
    text = f"{outcome.starved.signal} is starved"
    if evicted:
        first = "unless cleaning up is enough, " if seen.config.cleanups() & set(seen.result.reclaimed) else ""
        return f"{text}: {first}{', '.join(evicted)} would be evicted now"
    return f"{text}, but {'every pod is critical' if seen.found else 'there are no pods'}: nobody would be evicted"


def _thresholds(seen: Situation, resolved: Resolved, outcome: Outcome | None) -> Iterator[dict[str, Any]]:
    in_force = resolved.settings.thresholds(seen.era, seen.layout)
    as_written = {e.threshold: e.text for e in in_force if not (e.copy or e.overlay)}
    rows: list[tuple[float, dict[str, Any]]] = []
    acting = None if outcome is None else outcome.starved or next(iter(outcome.observed), None)
    for t in seen.config.thresholds():
        o = seen.summary.observations.get(t.signal)
        quantity = None if o is None else t.quantity(o.capacity)
        row: dict[str, Any] = {
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
        rows.append((row["distance"] / o.capacity if o is not None and o.capacity else float("inf"), row))
    if acting is None and rows:
        share, nearest = min(rows, key=lambda one: one[0])
        nearest["first"] = share != float("inf")
    for _, row in rows:
        yield row


def _order(seen: Situation, order: Sequence[Ranked]) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "pod": label(one.pod),
            "uid": one.candidate.uid,
            "qos": seen.era.qos_class(one.pod),
            "priority": one.candidate.priority,
            "spec_known": one.pod.spec_known,
            "critical": one.candidate.critical,
            "usage": one.candidate.usage,
            "request": one.candidate.request,
            "comparisons": [p._asdict() for p in comparisons(one, seen.signal, seen.layout, seen.era)],
        }
        for rank, one in enumerate(order, 1)
    ]
