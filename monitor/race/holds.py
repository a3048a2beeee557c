"""Pods that were held in an episode: how long, by which brake, how it ended, and what would have been without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monitor.race.codec import Record
from monitor.race.events import KUBELET, KubeletEvicted, PodHeld, PodReleased
from monitor.race.facts import Facts
from monitor.race.units import size, span

#: Why a hold ended that the kubelet did not answer, or answered with another pod.
UNANSWERED = frozenset({"unanswered", "other_pod"})


@dataclass(frozen=True, slots=True)
class HeldPod(Record):
    """One hold. `ms`: how long it lasted, or has so far; `why` it ended, "" while it goes on. `available_bytes` of the
    signal as it began, and `cap_bytes` that the pod could have at most (0: no limit). `grew_bytes`: the pod's growth
    meanwhile. `lasts_ms`: how long what was left would have lasted without the hold, at the growth before it (None: not
    known, or no growth). `by_kubelet`: the kubelet evicted the pod; `instead`: another one.
    """

    pod: str
    reason: str
    brake: str
    cap_bytes: int
    available_bytes: int
    ms: float
    why: str
    grew_bytes: int | None
    lasts_ms: float | None
    by_kubelet: bool
    instead: str | None


def held_pods(f: Facts) -> tuple[HeldPod, ...]:
    begun = [e for e in f.episode.events if isinstance(e, PodHeld)]
    first = {(e.pod, e.hold): e for e in reversed(begun)}
    last = {(e.pod, e.hold): e for e in begun}
    ends = {(e.pod, e.hold): e for e in f.episode.events if isinstance(e, PodReleased)}
    evicted = _evicted_by_kubelet(f)
    found = []
    for key in last:
        hold, end = first[key], ends.get(key)
        lasts_ns = f.lasts_ns(hold.ts_ns) if hold.ts_ns == begun[0].ts_ns else None
        found.append(
            HeldPod(
                pod=hold.pod_name,
                reason=hold.reason,
                brake=last[key].brake,
                cap_bytes=last[key].cap,
                available_bytes=hold.available,
                ms=round((end.held_ns if end is not None else max(0, f.episode.end_ns - hold.ts_ns)) / 1e6, 3),
                why=end.why if end is not None else "",
                grew_bytes=end.grew if end is not None else None,
                lasts_ms=None if lasts_ns is None else round(lasts_ns / 1e6, 3),
                by_kubelet=evicted.get(hold.pod, -1) >= hold.ts_ns,
                instead=end.instead if end is not None else None,
            )
        )
    return tuple(found)


def _evicted_by_kubelet(f: Facts) -> dict[str, int]:
    """Uid -> when it was known, of the pods that a kubelet evicted."""
    found = {e.pod: e.ts_ns for e in f.episode.events if isinstance(e, KubeletEvicted)}
    mine = [e for e in f.evictions if e.decision.by == KUBELET and not e.decision.observed]
    return found | {e.decision.pod: e.gone_ns or e.decision.ts_ns for e in mine if e.decision.pod not in found}


_ENDS = {
    "": "and is",
    "clear": "until there was room again",
    "evicted": "until it was evicted",
    "gone": "until nobody was left of it",
    "time_limit": "until its time limit",
    "second_line": "down to the kill threshold, and then evicted",
    "other_pod": "until the kubelet evicted another pod",
    "unanswered": "and the kubelet did not answer",
    "grace": "for its grace",
    "stopped": "until outrace ended",
}


def remark(holds: Sequence[HeldPod]) -> str:
    """What happened, as part of a sentence: to the pod that was held first, and how many others were. (One that the
    kubelet does not take at once is released when there is room, and held again.)
    """
    mine = [one for one in holds if one.pod == holds[0].pod]
    last = mine[-1]
    end = _ENDS.get(last.why, last.why)
    if last.by_kubelet:
        end = "until the kubelet evicted it"
    elif last.instead is not None:
        end = f"until the kubelet evicted {last.instead} instead"
    held = span(sum(one.ms for one in mine) * 1e6)
    text = f"{last.pod} was held {f'for {held}' if len(mine) == 1 else f'{len(mine)} times, for {held} in all,'} {end}"
    if last.instead is None:
        grew = [one.grew_bytes for one in mine if one.grew_bytes is not None]
        text += f", and grew {size(max(0, sum(grew)))}" if grew else ""
        lasts_ms = mine[0].lasts_ms
        text += "" if lasts_ms is None else f" (else memory would have lasted {span(lasts_ms * 1e6)})"
    others = len({one.pod for one in holds}) - 1
    return text + (f", and {others} more pod{'s' * (others > 1)} with it" if others else "")
