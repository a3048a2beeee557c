"""The growth that the threshold of a sized node survives, and the threshold that a growth needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from monitor.cli.advice_text import REACTIONS as NAMES
from monitor.cli.advice_text import survives_lines
from monitor.cli.output import format_bytes, table_lines
from monitor.policy.signals import MEMORY
from monitor.policy.sizing import EVICTION, HUGE, KUBE, SYSTEM, Sizing, written
from monitor.race.reaction import REACTIONS, Reaction, Survives, survives, threshold_for
from monitor.race.units import quantity, rate


def growth_json(memory: Sizing, wanted: int | None, kernels: int = 0) -> dict[str, Any]:
    """``wanted``: bytes a second that are to be survived; None: nobody asked. ``kernels``: bytes that the kernel keeps
    (`monitor.kernel.meminfo.kernels_share`; 0: not known): they count as available, and no process gets them.
    """
    return {
        "threshold_bytes": memory.of(EVICTION),
        "system_may_use_bytes": _left_to_the_system(memory),
        "kernel_keeps_bytes": kernels,
        "survives": [
            {
                "reaction": each.reaction,
                "always_bytes_per_s": each.always,
                "at_best_bytes_per_s": each.at_best,
                "rule": each.rule,
            }
            for each in _survived(memory, kernels)
        ],
        "wanted_bytes_per_s": wanted,
        "needs": None
        if wanted is None
        else [
            {"reaction": reaction.name, "threshold_bytes": needed, "allocatable_bytes": allocatable}
            for reaction, needed, allocatable in _needs(memory, wanted, kernels)
        ],
    }


def growth_lines(memory: Sizing, wanted: int | None, kernels: int = 0) -> Iterator[str]:
    """What `growth_json` has, as tables."""
    if threshold := memory.of(EVICTION):
        yield f"With {MEMORY}<{written(memory, threshold)}, eviction wins against this growth:"
        if beyond := _beyond(memory, kernels):
            what = "that the kernel keeps" if kernels > memory.of(HUGE) else "in huge pages"
            yield f"({written(memory, beyond)} {what} count as available, and pods cannot grow into them.)"
        yield from survives_lines(_survived(memory, kernels))
        system = written(memory, _left_to_the_system(memory))
        yield f"While pods use no more than their requests, the system may use {system} before any is evicted."
    else:
        yield f"No hard threshold for {MEMORY}: eviction wins against no growth at all."
    if wanted is None:
        return
    yield ""
    yield f"To win against {rate(wanted)} in every phase:"
    rows = [
        (
            NAMES[reaction.name],
            f"{MEMORY}<{quantity(needed)}" if needed < memory.capacity else "none is enough",
            "-" if allocatable is None else format_bytes(allocatable),
        )
        for reaction, needed, allocatable in _needs(memory, wanted, kernels)
    ]
    yield from table_lines(["who reacts", "threshold", "allocatable then"], rows, prose=True)


def _survived(memory: Sizing, kernels: int) -> list[Survives]:
    return [survives(memory.of(EVICTION), reaction, _beyond(memory, kernels)) for reaction in REACTIONS]


def _beyond(memory: Sizing, kernels: int) -> int:
    """Bytes that count as available and that nobody can grow into. (Huge pages are in what the kernel keeps.)"""
    return max(memory.of(HUGE), kernels)


def _left_to_the_system(memory: Sizing) -> int:
    """Pods that use all of Allocatable leave this much above the threshold: what is reserved."""
    return memory.of(SYSTEM, KUBE)


def _needs(memory: Sizing, wanted: int, kernels: int) -> list[tuple[Reaction, int, int | None]]:
    """For each way of reacting: the threshold in bytes, and Allocatable with it (None: there would be none)."""
    found = []
    for reaction in REACTIONS:
        needed = threshold_for(wanted, reaction, _beyond(memory, kernels))
        allocatable = memory.capacity - memory.of(SYSTEM, KUBE, HUGE) - needed
        found.append((reaction, needed, allocatable if allocatable >= 0 else None))
    return found
