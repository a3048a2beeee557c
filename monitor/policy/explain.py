"""Why a pod stands where it stands in the order of eviction, in plain words, comparison by comparison."""

from __future__ import annotations

from typing import NamedTuple

from monitor.policy.eras import CURRENT, Era
from monitor.policy.layout import DiskLayout, measured
from monitor.policy.pods import Pod
from monitor.policy.qos import CRITICAL_PRIORITY, is_mirror, is_static, qos_class
from monitor.policy.quantity import Quantity
from monitor.policy.signals import IN_BYTES, MEMORY_SIGNALS, PID, RESOURCE
from monitor.policy.victims import Ranked

_PARTS = {"rootfs": "writable layers", "logs": "logs", "volumes": "local volumes"}


class Comparison(NamedTuple):
    """One thing pods are compared by: what it is called, and how this pod does in it."""

    name: str
    verdict: str


def comparisons(one: Ranked, signal: str, layout: DiskLayout, era: Era = CURRENT) -> list[Comparison]:
    """What decides about this pod's place for ``signal``, in the order in which it is compared."""
    c = one.candidate
    old = era.name == "kubelet-1.8"
    priority = Comparison("priority", f"{c.priority}: lower ones go first")
    if old:
        found = [Comparison("QoS class", f"{qos_class(one.pod)}: BestEffort goes first, Guaranteed last")]
        if RESOURCE[signal] != "inodes":
            found.append(_usage(one, signal, layout, compared=signal in MEMORY_SIGNALS))
    elif signal == PID:
        found = [priority]
        if era is CURRENT:
            found.append(Comparison("processes", "no stats: goes first" if c.usage is None else str(c.usage)))
    else:
        found = [_usage(one, signal, layout, compared=True), priority]
        if c.usage is not None:
            found.append(Comparison("excess", _excess(one, signal)))
    if c.critical:
        reason = "marked by annotation" if old else why_critical(one.pod)
        found.append(Comparison("critical", f"{reason}: never evicted"))
    return found


def why_critical(pod: Pod) -> str:
    """What protects the pod from eviction today; empty if nothing does."""
    if is_static(pod):
        return "static pod"
    if is_mirror(pod):
        return "mirror pod"
    if (pod.priority or 0) >= CRITICAL_PRIORITY:
        return f"priority {pod.priority}"
    return ""


def _usage(one: Ranked, signal: str, layout: DiskLayout, compared: bool) -> Comparison:
    """``compared``: what was requested plays a part."""
    c = one.candidate
    if c.usage is None:
        return Comparison("usage", "no stats: goes first")
    if signal in MEMORY_SIGNALS:
        what = "working set"
    else:
        what = ", ".join(_PARTS[part] for part in measured(signal, layout)) or "nothing is counted for this disk"
    text = f"{_shown(signal, c.usage)} ({what})"
    if not compared:
        return Comparison("usage", f"{text}: more goes first")
    # Nobody requests inodes, so any use of them is above the request.
    request = c.request if RESOURCE[signal] in IN_BYTES else 0
    place = "above" if c.usage > request else "within"
    return Comparison("usage", f"{text}, requested {_shown(signal, request)}: {place} its request")


def _excess(one: Ranked, signal: str) -> str:
    c = one.candidate
    assert c.usage is not None
    above = c.usage - c.request
    if RESOURCE[signal] == "inodes":
        return f"{c.usage} inodes less a request of {c.request} bytes: {above}"
    return f"{_shown(signal, abs(above))} {'above' if above > 0 else 'below'} its request"


def _shown(signal: str, n: int) -> str:
    return str(Quantity.of_bytes(n) if RESOURCE[signal] in IN_BYTES else Quantity.of_count(n))
