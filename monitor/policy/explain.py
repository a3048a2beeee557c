"""Why a pod has its place in the order of eviction, as text.

Nothing is decided here: places are compared by the keys of `victims.rank_pods`.
"""

from __future__ import annotations

from typing import NamedTuple

from monitor.policy.layout import DiskLayout, measured
from monitor.policy.pod_reasons import why_critical
from monitor.policy.quantity import Quantity
from monitor.policy.releases import CURRENT, Era
from monitor.policy.signals import IN_BYTES, MEMORY_SIGNALS, PID, RESOURCE
from monitor.policy.victims import Ranked

_PARTS = {"rootfs": "writable layers", "logs": "logs", "volumes": "local volumes"}


class Comparison(NamedTuple):
    """One thing pods are compared by: what it is called, and how this pod does in it."""

    name: str
    verdict: str


class Contrast(NamedTuple):
    """One comparison of two pods: the verdict on each, and whether it decides which is evicted first."""

    name: str
    one: str
    other: str
    decides: bool


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
        if era.ranker is None:  # counts are compared since 1.19
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
    # No pod requests inodes, so any use of them is above the request.
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
