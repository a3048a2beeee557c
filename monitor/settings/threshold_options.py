"""The options of the policy: release, thresholds, reservations. A part of the table in `monitor.settings.options`."""

from __future__ import annotations

from monitor.policy.releases import ERAS
from monitor.settings.option import (
    BOOLEAN,
    ENFORCEABLE,
    KUBELET_SWITCH,
    NUMBER,
    PERIOD,
    SECONDS,
    Option,
    choice,
    key,
    setting,
    text_map,
)

THRESHOLD_OPTIONS: tuple[Option, ...] = (
    choice(
        "policy",
        ERAS,
        "The release whose policy decides.",
        why="The newest release that the recorded cases cover; an older node is compared with its own.",
    ),
    text_map(
        "eviction-hard",
        "<",
        "Hard eviction thresholds",
        "memory.available<100Mi",
        default="those of the release",
        live=True,
        why="Below it pods are evicted at once. 100Mi is the kubelet's default, so both decide alike; with --pods "
        "services what the kernel keeps for itself comes on top. Naming one signal switches the other defaults off, "
        "as in the kubelet.",
    ),
    text_map(
        "eviction-soft",
        "<",
        "Soft eviction thresholds",
        "memory.available<300Mi",
        default="none",
        live=True,
        why="Below it pods are evicted with a grace, but only after the grace period. The kubelet has none by default.",
    ),
    text_map(
        "eviction-soft-grace-period",
        "=",
        "How long a soft threshold has to be met before pods are evicted",
        "memory.available=1m30s",
        default="none",
        live=True,
        why="A short peak is no reason to evict. Every soft threshold needs one.",
    ),
    setting(
        "eviction-max-pod-grace-period",
        SECONDS,
        "Longest grace of a soft eviction.",
        "SECONDS",
        kind=NUMBER,
        kubelet=True,
        field="eviction_max_pod_grace_period_s",
        default="0",
        live=True,
        why="Bounds how long a pod that is to go may stay. 0, the kubelet's default, kills at once; below 0 each pod "
        "has its own grace.",
    ),
    text_map(
        "eviction-minimum-reclaim",
        "=",
        "How far above its threshold a signal has to be brought back",
        "memory.available=0Mi",
        default="none",
        live=True,
        why="Without it a node that is just above the threshold crosses it again at the next allocation.",
    ),
    setting(
        "eviction-pressure-transition-period",
        PERIOD,
        "How long a condition stays.",
        "DURATION",
        default="5m",
        kubelet=True,
        field="eviction_pressure_transition_period_ns",
        live=True,
        why="Keeps the node's condition from flapping around a threshold; the kubelet's default.",
    ),
    key(
        "enforce-node-allocatable",
        ENFORCEABLE,
        "With pods the hard threshold for memory holds for the memory of all pods together too.",
        default="pods",
    ),
    text_map(
        "system-reserved",
        "=",
        "Reserved for daemons of the system",
        "memory=500Mi",
        default="none",
        why="Is taken off what pods may use; has to be the kubelet's.",
    ),
    text_map(
        "kube-reserved",
        "=",
        "Reserved for daemons of Kubernetes",
        "memory=500Mi",
        default="none",
        why="Is taken off what pods may use; has to be the kubelet's.",
    ),
    setting(
        "kernel-memcg-notification",
        BOOLEAN,
        "Accepted for compatibility; no effect.",
        kind=KUBELET_SWITCH,
        kubelet=True,
        default="false",
        why="Every threshold is compared in the kernel already.",
    ),
    key(
        "local-storage-capacity-isolation",
        BOOLEAN,
        "Evict pods over their own limits of local storage.",
        default="true",
        field="local_storage",
    ),
)
