"""Why a pod has its place in the order of eviction, as text, and what would move it.

Nothing is decided here: places are compared by the keys of `victims.rank_pods`, and a change is found by asking the
same ranker again for the changed pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from monitor.policy.layout import LOGS, ROOTFS, DiskLayout, measured
from monitor.policy.pod_reasons import why_critical
from monitor.policy.pods import Pod
from monitor.policy.qos import LEAST_PRIORITY, MOST_PRIORITY
from monitor.policy.quantity import ZERO, Quantity
from monitor.policy.ranking import Key
from monitor.policy.releases import CURRENT, Era
from monitor.policy.resources import pod_level_resources_set
from monitor.policy.signals import IN_BYTES, MEMORY_SIGNALS, PID, RESOURCE
from monitor.policy.stats import PodStats
from monitor.policy.victims import DECIDING, Ranked

_PARTS = {"rootfs": "writable layers", "logs": "logs", "volumes": "local volumes"}
#: More than any pod asks for or uses of anything.
_MOST = 2**62


class Comparison(NamedTuple):
    """One thing pods are compared by: what it is called, and how this pod does in it."""

    name: str
    verdict: str


class Contrast(NamedTuple):
    """One comparison of two pods: the verdict on each, and whether it is the one that decides who goes first."""

    name: str
    one: str
    other: str
    decides: bool


class Change(NamedTuple):
    """What would move a pod to the other side of another: a `request` (bytes), a `priority` or a `usage` (bytes,
    inodes, processes), from ``old`` to ``new``, the nearest that does. `pod` and `stats` are those after the change.
    """

    kind: str
    old: int
    new: int
    text: str
    pod: Pod
    stats: PodStats | None


def comparisons(one: Ranked, signal: str, layout: DiskLayout, era: Era = CURRENT) -> list[Comparison]:
    """What decides about this pod's place for ``signal``, in the order in which it is compared."""
    c = one.candidate
    last = ", unknown ones last" if c.priority is None else ""
    known = "unknown" if c.priority is None else c.priority
    priority = Comparison("priority", f"{known}: lower ones go first{last}")
    if era.name == "kubelet-1.8":
        found = [Comparison("QoS class", f"{era.qos_class(one.pod)}: BestEffort goes first, Guaranteed last")]
        if RESOURCE[signal] != "inodes":
            found.append(_usage(one, signal, layout, era, compared=signal in MEMORY_SIGNALS))
    elif signal == PID:
        found = [priority]
        if era is CURRENT:
            found.append(Comparison("processes", "no stats: goes first" if c.usage is None else str(c.usage)))
    else:
        found = [_usage(one, signal, layout, era, compared=True), priority]
        if c.usage is not None:
            found.append(Comparison("excess", _excess(signal, c.usage, c.request)))
    if c.critical:
        found.append(Comparison("critical", f"{why_critical(one.pod, era)}: never evicted"))
    return found


def contrast(one: Ranked, other: Ranked, signal: str, layout: DiskLayout, era: Era = CURRENT) -> list[Contrast]:
    """Both pods, comparison by comparison. Of equal pods the names decide (the kubelet leaves those to chance)."""
    decisive = next((name for i, name in enumerate(_deciding(signal, era)) if one.key[i] != other.key[i]), None)
    mine = dict(comparisons(one, signal, layout, era))
    theirs = dict(comparisons(other, signal, layout, era))
    names = dict.fromkeys((*mine, *theirs))
    found = [Contrast(name, mine.get(name, "-"), theirs.get(name, "-"), name == decisive) for name in names]
    if decisive is None:
        labels = [f"{pod.namespace}/{pod.name}".lstrip("/") for pod in (one.pod, other.pod)]
        found.append(Contrast("name", labels[0], labels[1], True))
    return found


def _deciding(signal: str, era: Era) -> tuple[str, str, str, str]:
    """The name in `comparisons` of each of the deciding parts of a key."""
    if era.name == "kubelet-1.8":
        return ("QoS class", "usage", "usage", "usage")
    if signal == PID:
        return ("priority", "processes", "processes", "processes")
    return ("usage", "priority", "excess", "excess")


# ---- what would move a pod


def changes(one: Ranked, other: Ranked, signal: str, layout: DiskLayout, era: Era = CURRENT) -> list[Change]:
    """What would take ``one`` to the other side of ``other``, each change by itself; empty if none would.

    Behind it, if it stands before it now: a higher request or priority, less usage; else the opposite. Each is the
    smallest in whole units, so one byte less does not do.
    """
    behind = one.key < other.key

    def key(pod: Pod, stats: PodStats | None) -> Key:
        return era.ranker(pod, stats, signal, layout, True)[0]

    def crosses(pod: Pod, stats: PodStats | None) -> bool:
        return key(pod, stats) > other.key if behind else key(pod, stats) < other.key

    found = (
        _request_change(one, signal, behind, crosses),
        _priority_change(one, behind, crosses),
        _usage_change(one, signal, layout, era, behind, crosses),
    )
    made = [change for change in found if change is not None]
    for i, change in enumerate(made):
        if key(change.pod, change.stats)[:DECIDING] == other.key[:DECIDING]:
            made[i] = change._replace(text=f"{change.text}; they are equal then, and the names decide")
    return made


_Crosses = Callable[[Pod, PodStats | None], bool]
_Changed = Callable[[int], tuple[Pod, PodStats | None]]


def _search(crosses: _Crosses, changed: _Changed, near: int, far: int) -> int | None:
    """The number nearest to ``near``, with which it does not cross, toward ``far``; None if it does not with that."""
    if near == far or not crosses(*changed(far)):
        return None
    while abs(far - near) > 1:
        middle = (near + far) // 2
        if crosses(*changed(middle)):
            far = middle
        else:
            near = middle
    return far


def _request_change(one: Ranked, signal: str, behind: bool, crosses: _Crosses) -> Change | None:
    """The request of the whole pod where it has one, else that of the container that uses most and helps."""
    resource = "memory" if signal in MEMORY_SIGNALS else "ephemeral-storage"
    if signal == PID:
        return None
    for where, holder, put in _requests(one, resource):

        def changed(n: int, holder: Any = holder, put: Callable[[Any], Pod] = put) -> tuple[Pod, PodStats | None]:
            return put(_with_request(holder, resource, n)), one.stats

        asked = holder.requests.get(resource, ZERO)
        near = asked.nanos // 10**9 if behind else asked.value
        new = _search(crosses, changed, near, _MOST if behind else 0)
        if new is not None:
            limit_too = _with_request(holder, resource, new).limits != holder.limits
            text = f"{'raise' if behind else 'lower'} the {resource} request of {where} from {asked} "
            text += f"to {Quantity.of_bytes(new)}{', and its limit with it' if limit_too else ''}"
            return Change("request", near, new, text, *changed(new))
    return None


def _requests(one: Ranked, resource: str) -> Iterator[tuple[str, Any, Callable[[Any], Pod]]]:
    """Whose request may be changed, a container or the resources of the pod, and the pod with another one of these."""
    pod = one.pod
    if pod.resources is not None and pod_level_resources_set(pod) and resource == "memory":
        yield "the whole pod (spec.resources)", pod.resources, lambda changed: replace(pod, resources=changed)
    used = dict(one.stats.container_memory()) if one.stats is not None and resource == "memory" else {}
    for at in sorted(range(len(pod.containers)), key=lambda i: -used.get(pod.containers[i].name, 0)):

        def put(changed: Any, at: int = at) -> Pod:
            return replace(pod, containers=(*pod.containers[:at], changed, *pod.containers[at + 1 :]))

        yield f"container {pod.containers[at].name}", pod.containers[at], put


def _with_request(holder: Any, resource: str, n: int) -> Any:
    """The same holder with this request. A limit below it rises with it: none may be."""
    amount = Quantity.of_bytes(n)
    limit = holder.limits.get(resource)
    limits = {**holder.limits, resource: amount} if limit is not None and limit < amount else holder.limits
    return replace(holder, requests={**holder.requests, resource: amount}, limits=limits)


def _priority_change(one: Ranked, behind: bool, crosses: _Crosses) -> Change | None:
    old = one.candidate.priority
    if old is None:
        return None  # it has one, which is not known here
    far = max(old, MOST_PRIORITY) if behind else LEAST_PRIORITY

    def changed(n: int) -> tuple[Pod, PodStats | None]:
        return replace(one.pod, priority=n), one.stats

    new = _search(crosses, changed, old, far)
    if new is None:
        return None
    text = f"{'raise' if behind else 'lower'} its priority from {old} to {new}"
    return Change("priority", old, new, text, *changed(new))


def _usage_change(
    one: Ranked, signal: str, layout: DiskLayout, era: Era, behind: bool, crosses: _Crosses
) -> Change | None:
    old = one.candidate.usage
    if old is None:
        return None

    def reads(kind: str) -> bool:
        return era.ranker(one.pod, _using(signal, 1, kind), signal, layout, True)[1].usage == 1

    kind = next((kind for kind in (LOGS, ROOTFS) if reads(kind)), None)
    if kind is None:
        return None  # nothing the pod has is counted for this disk
    new = _search(crosses, lambda n: (one.pod, _using(signal, n, kind)), old, 0 if behind else _MOST)
    if new is None:
        return None
    by, instead = _shown(signal, abs(new - old)), f"{_shown(signal, new)} instead of {_shown(signal, old)}"
    if RESOURCE[signal] in IN_BYTES:
        text = f"use {by} {'less' if behind else 'more'} {RESOURCE[signal]}: {instead}"
    else:
        text = f"have {by} {'fewer' if behind else 'more'} {'processes' if signal == PID else 'inodes'}: {instead}"
    return Change("usage", old, new, text, one.pod, _using(signal, new, kind))


def _using(signal: str, n: int, kind: str) -> PodStats:
    """Figures of a pod that uses ``n`` of what ``signal`` counts; for a disk as files of this ``kind``."""
    if signal in MEMORY_SIGNALS:
        return PodStats({"memory": {"workingSetBytes": n}})
    if signal == PID:
        return PodStats({"process_stats": {"process_count": n}})
    return PodStats({"containers": [{kind: {"usedBytes": n, "inodesUsed": n}}]})


def _usage(one: Ranked, signal: str, layout: DiskLayout, era: Era, compared: bool) -> Comparison:
    """``compared``: what was requested plays a part."""
    c = one.candidate
    if c.usage is None:
        return Comparison("usage", "no stats: goes first")
    if signal in MEMORY_SIGNALS:
        what = "working set"
    else:
        # Before there were container file systems, the containers were always where the images are.
        kinds = measured(signal, layout if era.containerfs else layout._replace(container_fs=False))
        what = ", ".join(_PARTS[part] for part in kinds) or "nothing is counted for this disk"
    text = f"{_shown(signal, c.usage)} ({what})"
    if not compared:
        return Comparison("usage", f"{text}: more goes first")
    # Nobody requests inodes, so any use of them is above the request.
    request = c.request if RESOURCE[signal] in IN_BYTES else 0
    place = "above" if c.usage > request else "within"
    return Comparison("usage", f"{text}, requested {_shown(signal, request)}: {place} its request")


def _excess(signal: str, usage: int, request: int) -> str:
    above = usage - request
    if RESOURCE[signal] == "inodes":
        return f"{usage} inodes less a request of {request} bytes: {above}"
    return f"{_shown(signal, abs(above))} {'above' if above > 0 else 'below'} its request"


def _shown(signal: str, n: int) -> str:
    return str(Quantity.of(n, RESOURCE[signal]))
