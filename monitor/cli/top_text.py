"""A frame of `outrace top` as tables: for a pipe, a file, a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monitor.cli.brake_text import brake_lines, held_lines
from monitor.cli.forecast_text import forecast_lines
from monitor.cli.incident_text import local_time
from monitor.cli.output import format_bytes, table_lines
from monitor.cli.spans import plain
from monitor.policy.signals import DOMAIN_OF, OF_DOMAIN

#: Limits in the tables only where somebody has one. `max` is what they call capacity.
_OPTIONAL = ("min", "low", "high", "soft")
_MEMORY = ("usage", "active_file", "inactive_file", "working_set")


def lines(frame: Mapping[str, Any]) -> Iterator[str]:
    """A frame as text."""
    hierarchy = frame["hierarchy"]
    yield f"{frame['time']}  {frame['source']}  cgroup v{hierarchy['version']} at {hierarchy['root']}"
    yield ""
    domains = [(name, frame[name]) for name in ("node", "kubepods") if frame[name] is not None]
    figures = (*_MEMORY, "capacity", "available")
    limits = columns([d for _, d in domains])
    others = [signal.partition(".")[2] for signal in OF_DOMAIN["node"][1:]]
    by_signal = {s: format_bytes(seen["available"]) for s, seen in frame["signals"].items()}
    yield from table_lines(
        ["domain", *figures, *others, *limits],
        [
            [
                name,
                *(format_bytes(d[f]) for f in figures),
                *(by_signal.get(s) for s in OF_DOMAIN[name][1:]),
                *cells(d, limits),
            ]
            for name, d in domains
        ],
    )
    if frame["thresholds"]:
        yield ""
        yield from table_lines(
            ["signal", "kind", "value", "quantity", "available", "distance", "met"],
            [
                (
                    t["signal"],
                    f"{t['kind']}, a kubelet's" if t["compared"] else t["kind"],
                    t["value"],
                    *(format_bytes(t[c]) for c in ("quantity", "available", "distance")),
                    "yes" if t["met"] else "no",
                )
                for t in frame["thresholds"]
            ],
        )
        yield from _compared(frame["thresholds"])
    if frame["forecasts"]:
        yield ""
        yield from forecast_lines(frame["forecasts"])
    if frame["braked"] is not None:
        yield ""
        yield from brake_lines(frame["braked"])
    if frame["held"]:
        yield ""
        yield from held_lines(frame["held"])
    yield from _daemon_lines(frame)
    yield ""
    yield from _pod_lines(frame["pods"])
    yield from container_lines(frame["pods"])
    if frame["unlisted"]:
        yield plain(frame["unlisted"])
    yield ""
    for name, value in frame.items():
        if name.startswith("memory_"):
            # As the scripts print them: memory.available_in_kb 123
            yield f"{name.replace('_', '.', 1)} {value}"
    for pod in frame["evicted"]:
        yield plain(f"evicted {pod['namespace']}/{pod['name']}: {pod['message']}")
    for one in frame.get("incidents", ()):
        yield plain(f"incident {one['id']} at {local_time(one['start'])}: {one['verdict']}; {one.get('summary') or ''}")


def _daemon_lines(frame: Mapping[str, Any]) -> Iterator[str]:
    """How the daemon works, what it lost, and the kernel's next victim, as far as they are known."""
    daemon, victim = frame.get("daemon"), frame.get("kernel_victim")
    if daemon is not None or victim is not None:
        yield ""
    if daemon is not None:
        lost = daemon["lost"] or {}
        counts = ", ".join(f"{where} {count}" for where, count in lost.items() if count)
        records = "losses unknown" if daemon["lost"] is None else f"lost records: {counts or 'none'}"
        yield plain(f"mode {daemon['mode']}, rung {daemon['rung']}, trigger {daemon['trigger']}; {records}")
    if victim is not None:
        of = f" of {victim['pod']}" if victim["pod"] else " outside every pod"
        what = f"{format_bytes(victim['rss'])} with oom_score_adj {victim['oom_score_adj']}"
        yield plain(f"the kernel would kill next: {victim['comm']} (pid {victim['pid']}){of}, {what}")


def _compared(thresholds: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Whether a kubelet would evict where the formulas in force see nothing short."""
    for line in (t for t in thresholds if t["compared"] and t["met"]):
        ours = [t for t in thresholds if not t["compared"] and DOMAIN_OF[t["signal"]] == DOMAIN_OF[line["signal"]]]
        if ours and not any(t["met"] for t in ours):
            left = ", ".join(f"{format_bytes(t['available'])} by {t['signal']}" for t in ours)
            yield f"a kubelet would evict now ({line['signal']}); nothing is wrong: available are {left}"


def _pod_lines(pods: list[dict[str, Any]]) -> list[str]:
    if not pods:
        return ["no pods"]
    figures = (*_MEMORY, "request", "over_request", "capacity", "available")
    limits = columns(pods)
    return table_lines(
        ["pod", "qos", "priority", *figures, *limits],
        [
            [
                plain(f"{p['namespace']}/{p['name']}".lstrip("/")),
                p["qos"],
                "unknown" if p["priority"] is None else p["priority"],
                *(format_bytes(p[f]) for f in figures),
                *cells(p, limits),
            ]
            for p in pods
        ],
    )


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns in which at least one row has something to show.

    A limit of no swap at all is nothing to show, unless somebody has swapped: the kubelet gives it to every container
    of a node on which pods do not swap.
    """
    found = [name for name in _OPTIONAL if any(row["limits"][name] is not None for row in rows)]
    swapping = any(row["swap"] for row in rows)
    if swapping:
        found.append("swap")
    if any(row["limits"]["swap_max"] or (swapping and row["limits"]["swap_max"] is not None) for row in rows):
        found.append("swap_max")
    return found


def cells(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """One row of these columns."""
    return [format_bytes(row["swap"] if name == "swap" else row["limits"][name]) for name in names]


def container_lines(pods: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table of the containers that have one of the optional limits of their own; nothing if none has."""
    found = [
        (plain(f"{pod['namespace']}/{pod['name']}/{name}".lstrip("/")), container)
        for pod in pods
        for name, container in pod["containers"].items()
        if any(container["limits"][limit] is not None for limit in _OPTIONAL)
    ]
    if not found:
        return
    names = columns([container for _, container in found])
    rows = [[label, *cells(c, names), format_bytes(c["limits"]["max"])] for label, c in found]
    yield ""
    yield from table_lines(["container", *names, "max"], rows)
