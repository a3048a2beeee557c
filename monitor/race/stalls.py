"""What an incident says of a stall: which pod waited, for how long, which pod caused it, and what ended it."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.policy.stall import (
    EVICTED,
    FILES,
    FREED,
    GONE,
    GREW,
    OUTSIDE,
    OWN_LIMIT,
    RELAXED,
    SWAP,
    SWAPPED,
    THROTTLED,
)
from monitor.race.codec import Record
from monitor.race.facts import Facts
from monitor.race.units import quantity, size, span


@dataclass(frozen=True, slots=True)
class StalledPod(Record):
    """The pod that stalled, or "machine", "kubepods"; "swap.used": swap was full. `share`: the most of a second, of
    swap what was in use. `ms`: how long it has lasted. `cause`: the pod that caused it; None: no pod did. `why`: of
    `monitor.policy.stall`. `lacks_bytes` it had, the cause grew by `grew_bytes`, or has so much of swap. `over`: why
    it is over; "" while it lasts. `full`: the most of memory pressure `full` over 10 s, 0 to 1, or of swap; None: not
    known. `oomd`: whether systemd-oomd would have killed, by its defaults. (The kubelet looks at no stall.)
    """

    pod: str
    share: float
    ms: float
    cause: str | None
    why: str
    lacks_bytes: int
    grew_bytes: int
    over: str
    full: float | None
    oomd: bool


def stalled_pod(f: Facts) -> StalledPod:
    last = f.stalls[-1]
    ms = round(((last.ts_ns if last.over else f.episode.end_ns) - last.since_ns) / 1e6, 3)
    figures = last.lacks, last.grew, last.over, last.full, last.oomd
    return StalledPod(last.pod_name, last.share, ms, last.cause_name, last.why, *figures)


def sentence(f: Facts) -> str:
    """The first part of the summary."""
    found = stalled_pod(f)
    if found.pod == SWAP:
        used = f"up to {found.share:.0%} of swap was in use for {span(found.ms * 1e6)}"
        return f"Stalled: {used}; {_because(found)}; {_ended_by(found)}{_oomd(found)}"
    waited = f"{found.pod} waited for memory for {span(found.ms * 1e6)}, up to {found.share:.0%} of the time"
    return f"Stalled: {waited}; {_because(found)}; {_ended_by(found)}{_oomd(found)}"


def _because(found: StalledPod) -> str:
    if found.why == OWN_LIMIT:
        return "it is at its own limit"
    if found.why == THROTTLED:
        return "it is at its memory.high"
    if found.pod == SWAP:
        return f"{found.cause} had {size(found.grew_bytes)} of it" if found.cause else "no pod had much of it"
    lacks, grew = f"it lacks {size(found.lacks_bytes)}", f"grew by {size(found.grew_bytes)}"
    if found.why == GREW:
        return f"{lacks}, and {grew} itself" if found.cause == found.pod else f"{lacks}, and {found.cause} {grew}"
    if found.why == OUTSIDE:
        return f"{lacks}, and memory outside every pod {grew}"
    if found.why == FILES:
        return f"{lacks}, and files that are read or written once took its place"
    return f"{lacks}, and no growth explains a third of that"


def _ended_by(found: StalledPod) -> str:
    if found.over == FREED:
        return f"it ended when {found.cause} had freed memory"
    if found.over == EVICTED:
        return f"it ended when outrace had evicted {found.cause}"
    if found.over == RELAXED:
        return "it ended when outrace had raised that"
    return {"": "nothing has ended it yet", GONE: "it ended with the pod"}.get(found.over, "it ended by itself")


def _oomd(found: StalledPod) -> str:
    if found.oomd:
        return "; systemd-oomd would have killed"
    if found.full is None:
        return ""
    return (
        f"; systemd-oomd would do nothing ({'swap' if found.pod == SWAP else 'memory pressure full'} {found.full:.0%})"
    )


def remedy(f: Facts) -> list[str]:
    """What would have prevented it."""
    found = stalled_pod(f)
    if found.why == OWN_LIMIT:
        return [f"Raise the memory limit of {found.pod}: its files and memory do not fit."]
    if found.why == THROTTLED:
        return [f"Raise memory.high of {found.pod}: the kernel puts each allocation to sleep there."]
    if found.why == GREW and found.cause != found.pod:
        return [
            f"Limit the memory of {found.cause}, or protect {quantity(found.lacks_bytes)} more of {found.pod} "
            "(memory.low; its request with MemoryQoS)."
        ]
    if found.why == FILES:
        protect = f"Protect {quantity(found.lacks_bytes)} more of {found.pod} (memory.low; its request with MemoryQoS)"
        return [f"{protect}, or give the pod that reads or writes those files a memory limit."]
    if found.why == SWAPPED:
        return [f"Limit the swap of {found.cause} (memory.swap.max; v1: memory.memsw.limit_in_bytes), or its memory."]
    return []
