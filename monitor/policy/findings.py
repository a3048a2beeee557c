"""What is allowed in a configuration and yet surprises: where it was written, what it does, what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monitor.policy import configuration as conf
from monitor.policy import signals as sig
from monitor.policy.configuration import Effective, Settings
from monitor.policy.errors import PolicyError
from monitor.policy.layout import SINGLE_DISK, DiskLayout
from monitor.policy.quantity import BINARY_SI, Quantity, shown
from monitor.policy.releases import CURRENT, Era
from monitor.policy.sizing import BYTES, DISK, MEMORY_RESOURCE, kubelet_terms, size
from monitor.policy.thresholds import Threshold

MAX_GRACE = "evictionMaxPodGracePeriod"
#: More inodes than ordinary disks have, so many that are bytes if written as 1Mi, and bytes for each inode of ext4.
_MOST_INODES, _AS_BYTES, _OF_AN_INODE = 1 << 25, 1 << 20, 1 << 14
#: A threshold of fewer bytes has lost its unit: the kernel keeps more for itself (min_free_kbytes).
_LEAST_BYTES = 1 << 20


@dataclass(frozen=True)
class Node:
    """What is known of the node: capacities by signal (bytes, inodes or pids; absent: not known), the layout of its
    disks, and bytes in huge pages.
    """

    capacity: Mapping[str, int] = field(default_factory=dict)
    layout: DiskLayout = SINGLE_DISK
    huge_pages: int = 0


def findings(settings: Settings, node: Node, rules: Era = CURRENT) -> list[str]:
    """Every finding, the most surprising first. Raises PolicyError if the thresholds do not parse."""
    # What holds for a threshold holds for its copy on the container file system too, and is reported once.
    thresholds = [e for e in settings.thresholds(rules, node.layout) if not e.overlay]
    own = [e for e in thresholds if not e.copy]
    nothing = f"{settings.origins[conf.HARD]}: no memory threshold is left: no pod is evicted before memory runs out"
    return [
        *_defaults(settings, rules),
        *([] if any(e.threshold.signal in sig.MEMORY_SIGNALS for e in thresholds) else [nothing]),
        *_without_effect(settings, own),
        *_each(thresholds, _by_definition, node),
        *_never_reclaimed(settings, thresholds, node),
        *_units(settings, own, node),
        *_each(thresholds, _below_huge_pages, node, rules),
        *_soft_below_hard(thresholds, node),
        *_exceeded(settings, node, rules),
        *_grace_and_notification(settings, thresholds),
    ]


def _defaults(settings: Settings, rules: Era) -> Iterator[str]:
    by_origin: dict[str, list[str]] = {}
    for signal, origin in settings.switched_off.items():
        by_origin.setdefault(origin, []).append(f"{signal}<{rules.default_hard[signal]}")
    for origin, lost in by_origin.items():
        # `mergeDefaultEvictionSettings` is read in the kubelet's file and never applies to flags.
        merge = f", or set {conf.MERGE_DEFAULTS}: true" if origin.endswith(f": {conf.HARD}") else ""
        yield (
            f"{origin}: naming any hard threshold switches the other defaults off: {', '.join(lost)}; "
            f"name those you want too, and the rest with 0%{merge}"
        )


def _without_effect(settings: Settings, thresholds: Sequence[Effective]) -> Iterator[str]:
    guarded = {e.threshold.signal for e in thresholds}
    for key, with_one, what, needed in (
        (conf.SOFT_GRACE, settings.maps[conf.SOFT], "grace period", "soft threshold"),
        (conf.MIN_RECLAIM, guarded, "min reclaim", "threshold"),
    ):
        for signal, (text, origin) in settings.maps[key].items():
            if signal not in with_one:
                remedy = "give it one, or leave it out"
                yield f"{origin}: {signal}: a {what} of {text} has no effect without a {needed}; {remedy}"


def _each(thresholds: Sequence[Effective], check: Callable[..., str], *about: Any) -> Iterator[str]:
    """What a check finds in any of these; "" is nothing."""
    for e in thresholds:
        if found := check(e, *about):
            yield f"{e.origin}: {e.threshold.signal}: {found}"


def _by_definition(e: Effective, node: Node) -> str:
    value, capacity = e.threshold.value, node.capacity.get(e.threshold.signal)
    if value.quantity is None and not value.percentage > 0:  # NaN is not, either
        return f"{e.text} is never met; 0% says that it is not wanted"
    if value.quantity is None and value.percentage >= 1:
        return f"{e.text} is always met: pods are evicted for ever; 100% would switch it off"
    if capacity is None or e.threshold.quantity(capacity) < capacity:
        return ""
    known = shown(e.threshold.signal, capacity)
    return f"{e.text} is always met, with a capacity of {known}: pods are evicted for ever; lower it"


def _never_reclaimed(settings: Settings, thresholds: Sequence[Effective], node: Node) -> Iterator[str]:
    """Min reclaims with which more has to be available than there is."""
    for e in thresholds:
        t, known = e.threshold, node.capacity.get(e.threshold.signal)
        if t.min_reclaim is None:
            continue
        relative = t.value.quantity is None and t.min_reclaim.quantity is None
        capacity = 1 << 62 if relative else known
        if capacity is None or not t.quantity(capacity) < capacity <= t.quantity(capacity, with_reclaim=True):
            continue
        origin = e.origin if e.copy else settings.maps[conf.MIN_RECLAIM][t.signal].origin
        of = "" if known is None else f", with a capacity of {shown(t.signal, known)}"
        yield (
            f"{origin}: {t.signal}: min reclaim {e.min_reclaim} above {e.text} is never reached{of}: pods are evicted "
            "for ever; lower it"
        )


def _units(settings: Settings, thresholds: Sequence[Effective], node: Node) -> Iterator[str]:
    """Inodes as if they were bytes, where the node's are not known, and bytes without a unit."""
    written = [
        (e.origin, e.threshold.signal, e.text, e.threshold.value.quantity, "always met", "met too late")
        for e in thresholds
    ]
    written += [
        (origin, name, text, None if text.endswith("%") else Quantity.parse(text), "never reached", "too few to matter")
        for key in (conf.MIN_RECLAIM, conf.SYSTEM_RESERVED, conf.KUBE_RESERVED)
        for name, (text, origin) in settings.maps[key].items()
    ]
    for origin, name, text, quantity, many, few in written:
        if quantity is None:
            continue
        resource, amount = sig.RESOURCE.get(name, name), quantity.value
        least = _AS_BYTES - 1 if quantity.format == BINARY_SI else _MOST_INODES
        if resource == "inodes" and name not in node.capacity and amount > least:
            disks = f"ordinary disks (below {amount * _OF_AN_INODE >> 30:,} GiB)"
            advice = "write a number as 500k, or a percentage"
            yield f"{origin}: {name}: {text} is {amount:,} inodes, not bytes: {many} on {disks}; {advice}"
        elif resource in sig.IN_BYTES and 0 < amount < _LEAST_BYTES:
            yield f"{origin}: {name}: {text} is {amount:,} bytes: {few}; write a unit, as in 100Mi"


def _below_huge_pages(e: Effective, node: Node, rules: Era) -> str:
    t, capacity = e.threshold, node.capacity.get(e.threshold.signal)
    if rules.huge_pages_apart or t.signal not in sig.OF_DOMAIN["node"] or not capacity:
        return ""
    if not 0 < t.quantity(capacity) <= node.huge_pages:
        return ""
    return (
        f"{e.text} is never met: under {rules.name} huge pages count as available, here "
        f"{shown(t.signal, node.huge_pages)}, and memory runs out before less is; raise it above that, or give "
        f"--policy {CURRENT.name} if no older kubelet runs here"
    )


def _soft_below_hard(thresholds: Sequence[Effective], node: Node) -> Iterator[str]:
    for soft in thresholds:
        for hard in thresholds:
            s, h = soft.threshold, hard.threshold
            if s.signal != h.signal or s.hard or not h.hard or not _below(s, h, node.capacity.get(s.signal)):
                continue
            yield (
                f"{soft.origin}: {s.signal}: the soft threshold of {soft.text} is not above the hard one of "
                f"{hard.text} ({hard.origin}), which acts first and without grace; raise it"
            )


def _below(soft: Threshold, hard: Threshold, capacity: int | None) -> bool:
    """Whether soft is not above hard; False where that is not known."""
    a, b = soft.value, hard.value
    if a.quantity is None and b.quantity is None:
        return a.percentage <= b.percentage
    if capacity is not None or (a.quantity is not None and b.quantity is not None):
        return a.shown(capacity or 0) <= b.shown(capacity or 0)
    return False


def _exceeded(settings: Settings, node: Node, rules: Era) -> Iterator[str]:
    apart = node.huge_pages if rules.huge_pages_apart else 0  # what is reserved is kept from the whole memory
    for signal, resource, more in ((sig.MEMORY, MEMORY_RESOURCE, apart), (sig.NODEFS, DISK, 0)):
        if (capacity := node.capacity.get(signal)) is None:
            continue
        try:
            size(resource, BYTES, capacity + more, kubelet_terms(resource, capacity + more, settings))
        except PolicyError as error:
            yield f"{resource}: {error}; lower one of them"


def _grace_and_notification(settings: Settings, thresholds: Sequence[Effective]) -> Iterator[str]:
    soft = [e.origin for e in thresholds if not e.threshold.hard]
    seconds, origin = settings.values.get(MAX_GRACE, (None, ""))
    if soft and not seconds:
        yield (
            f"{origin or soft[0]}: the maximum pod grace is 0, so pods get 1 s whatever their own grace; "
            f"set {MAX_GRACE} to the seconds that they may take"
        )
    elif not soft and seconds is not None and seconds > 0:
        yield f"{origin}: {seconds} has no effect without a soft threshold; give one, or leave it out"
    if seconds is not None and seconds < 0:
        yield (
            f"{origin}: {seconds} leaves the grace to the pod, but a kubelet kills it at once (Kubernetes "
            "issue 118172); give the seconds you want"
        )
    notification = settings.values.get("kernelMemcgNotification")
    if notification is not None and notification.value is True:
        yield (
            f"{notification.origin}: true changes nothing: a kubelet ignores it on cgroup v2, and outrace compares "
            "every memory threshold in the kernel anyway; leave it out"
        )
