"""The options of what is done at a crossing. A part of the table in `monitor.settings.options`."""

from __future__ import annotations

from monitor.settings.config import MODES
from monitor.settings.option import DURATION, WHOLE_SECONDS, Option, choice, setting, switch

TRIGGERS = ("user", "kernel")
KILL, API = EVICT_BY = ("kill", "api")
NODE_TAINTS = ("none", "own")

CROSSING_OPTIONS: tuple[Option, ...] = (
    choice(
        "mode",
        MODES,
        "At a crossing: observe logs, hold brakes the pod until room is there again and kills only below a "
        "second line, enforce kills at once.",
        why="Nobody is touched before somebody asks for it.",
    ),
    switch("enforce", "Short for --mode enforce.", why="As short as possible; mode says the same."),
    setting(
        "hold-limit",
        DURATION,
        "After so long the policy decides, and a pod is held no longer than twice that; --hard-grace comes on top.",
        "DURATION",
        default="2m",
        field="hold_limit_ns",
        why="A pod that stands still for longer fails its probes; what would have made room has had time.",
    ),
    setting(
        "hard-grace",
        WHOLE_SECONDS,
        "With --mode enforce on cgroup v2: brake, then SIGTERM, and SIGKILL after this or below the second line.",
        "DURATION",
        default="none",
        example="5s",
        field="hard_grace_ns",
        why="None: at a hard threshold memory is gone in milliseconds, and the kubelet gives no grace either.",
    ),
    choice(
        "trigger",
        TRIGGERS,
        "Who kills under --enforce: user space, or the BPF program too.",
        why="User space asks everything once more before it kills; kernel is for thresholds of less than 1 MiB.",
    ),
    choice(
        "evict-by",
        EVICT_BY,
        "How --enforce evicts: kill, at once; or api, by pods/eviction, which asks PodDisruptionBudgets.",
        why="An eviction by the API takes seconds, and the OOM killer does not wait.",
    ),
    choice(
        "node-taints",
        NODE_TAINTS,
        "Taint the node while a condition holds: own is outrace.io/memory-pressure:NoSchedule and so on.",
        why="None: the kubelet's own conditions taint the node too, and taints take rights in the cluster.",
    ),
)
