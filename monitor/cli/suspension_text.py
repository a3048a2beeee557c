"""Which pods are held, whether evictions are suspended, and why, in words: for `outrace top` and `outrace explain`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monitor.cli.output import format_bytes
from monitor.policy.suspension import NO_GAIN, NOT_COVERED, OUTGROWN


def suspension_lines(braked: Mapping[str, Any] | None) -> Iterator[str]:
    """No line while evictions are not suspended. ``braked``: `View.braked`."""
    if braked is None:
        return
    pods, outside = format_bytes(braked["pods_bytes"]), format_bytes(braked["outside_bytes"])
    rate = "at an unknown rate"
    if braked["growth_outside"] is not None:
        rate = f"by {format_bytes(max(0, braked['growth_outside']))} a second"
    why = {
        NOT_COVERED: f"all pods that may be evicted have {pods} together, less than what is missing",
        OUTGROWN: f"what is outside of the pods grows {rate} and would use up all they have, {pods}, within a minute",
        NO_GAIN: "the last evictions gained nothing",
    }
    reason = why.get(braked["reason"], braked["reason"])
    yield f"evictions for {braked['signal']} are suspended for {braked['held_s']:.1f} s: {reason}"
    yield f"the kubelet would evict {braked['name']} now; {outside} are in use that no eviction frees"
    for taker in braked["takers"]:
        yield f"  {taker}"


def held_lines(held: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line for each held pod. ``held``: `monitor.side.holds.Holds.shown`."""
    for one in held:
        why = "it is the next victim" if one["reason"] == "victim" else "it grows"
        cap = "" if one["cap"] is None else f", at most {format_bytes(one['cap'])}"
        line = "" if one["second_line"] is None else f", killed below {format_bytes(one['second_line'])}"
        step = f" {one['step']} the kubelet's line" if one["step"] else ""
        yield (
            f"{one['pod']} is held{step} for {one['held_s']:.1f} s ({one['brake']}{cap}), because {why}; "
            f"{one['signal']} was {format_bytes(one['available'])}{line}; its time limit is in {one['left_s']:.0f} s"
        )
