"""Limits and swap in `outrace top`: always from the cgroup files, which are exact about them; a Summary has neither."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from monitor.cli.output import format_bytes, table_lines
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.limits import Limits, read

#: In the tables only where somebody has one. `max` is what they call capacity.
_OPTIONAL = ("min", "low", "high", "soft")
Row = Mapping[str, Any]


def limit_fields(hierarchy: Hierarchy, path: Path | None) -> dict[str, Any]:
    """What a frame says of one cgroup, in bytes; all None where it is not known or gone."""
    found = None if path is None else read(hierarchy, path)
    found = found or Limits()
    return {"swap": found.swap, "limits": found.named(), "oom_group": found.oom_group}


def pod_fields(hierarchy: Hierarchy, cgroup: str | None, containers: Mapping[str, Path]) -> dict[str, Any]:
    """The same of a pod and of each of its containers: on these the kubelet sets memory.high (KEP-2570)."""
    return {
        **limit_fields(hierarchy, None if cgroup is None else Path(cgroup)),
        "containers": {name: limit_fields(hierarchy, path) for name, path in containers.items()},
    }


def columns(rows: Sequence[Row]) -> list[str]:
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


def cells(row: Row, names: Sequence[str]) -> list[str]:
    """One row of these columns."""
    return [format_bytes(row["swap"] if name == "swap" else row["limits"][name]) for name in names]


def container_lines(pods: Sequence[Row]) -> Iterator[str]:
    """A table of the containers that have one of the optional limits of their own; nothing if none has."""
    found = [
        (f"{pod['namespace']}/{pod['name']}/{name}".lstrip("/"), container)
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
