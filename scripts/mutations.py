"""The rules of the eviction policy that `mutate.py` breaks, one at a time."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """In ``file`` (below monitor/policy) ``old``, which stands there once, becomes ``new``: that breaks ``rule``."""

    rule: str
    file: str
    old: str
    new: str


MUTATIONS = (
    Mutation(
        "a threshold is met strictly below its value",
        "synchronize.py",
        "if needed > seen.available:",
        "if needed >= seen.available:",
    ),
    Mutation("a grace is over at its end, not after it", "synchronize.py", "if now_ns >= due:", "if now_ns > due:"),
    Mutation(
        "one healthy pass starts the grace anew",
        "synchronize.py",
        "since: list[int | None] = [None] * len(first)",
        "since: list[int | None] = list(first)",
    ),
    Mutation(
        "a condition ends with the transition period, not after it",
        "synchronize.py",
        "now_ns - when >= period",
        "now_ns - when > period",
    ),
    Mutation(
        "a soft threshold raises its condition at once, before its grace is over",
        "synchronize.py",
        "_conditions(config, state, merged, now_ns, deadline)",
        "_conditions(config, state, list(met), now_ns, deadline)",
    ),
    Mutation(
        "the same observation twice does not act twice",
        "synchronize.py",
        "stamp == 0 or stamp > old)",
        "stamp == 0 or stamp >= old)",
    ),
    Mutation(
        "an observation without a time always acts",
        "synchronize.py",
        "old is None or stamp == 0 or stamp > old",
        "old is None or stamp > old",
    ),
    Mutation(
        "min reclaim lets go when value and min reclaim are available, not a byte later",
        "synchronize.py",
        "_reclaimed(rule, seen.capacity) > seen.available",
        "_reclaimed(rule, seen.capacity) >= seen.available",
    ),
    Mutation(
        "min reclaim in percent is added to the value",
        "synchronize.py",
        "(0 if reclaim is None else reclaim.amount(capacity))",
        "0",
    ),
    Mutation(
        "min reclaim holds only what has acted",
        "synchronize.py",
        "merged = _merged(config, state.met,",
        "merged = _merged(config, tuple(range(len(config.rules))),",
    ),
    Mutation("hard before soft", "synchronize.py", "not threshold.hard, signal", "threshold.hard, signal"),
    Mutation(
        "memory before everything else",
        "synchronize.py",
        "return (signal not in MEMORY_SIGNALS,",
        "return (signal in MEMORY_SIGNALS,",
    ),
    Mutation("a critical pod is passed over", "synchronize.py", "if not candidate.critical:", "if candidate.uid:"),
    Mutation(
        "a soft eviction gets the smaller of the pod's grace and the maximum",
        "synchronize.py",
        "min(config.max_pod_grace_s, victim.grace_period_s)",
        "max(config.max_pod_grace_s, victim.grace_period_s)",
    ),
    Mutation("a hard eviction gets one second", "synchronize.py", "HARD_GRACE_S = 1\n", "HARD_GRACE_S = 0\n"),
    Mutation(
        "a clean-up must clear min reclaim as well",
        "kubelet_pass.py",
        "seen.capacity, with_reclaim=True):",
        "seen.capacity, with_reclaim=False):",
    ),
    Mutation(
        "a pass that evicts for local storage evicts for nothing else",
        "eviction_pass.py",
        "    if over_limit:\n",
        "    if over_limit and clean is None:\n",
    ),
    Mutation(
        "the first pass does not look at the container file system",
        "eviction_pass.py",
        "replace(later, thresholds=in_place)",
        "replace(later, thresholds=thresholds)",
    ),
    Mutation(
        "critical pods are spared by limits of local storage too",
        "kubelet_pass.py",
        "for pod, message in over if not is_critical(pod)]",
        "for pod, message in over]",
    ),
    Mutation("usage strictly exceeds the request", "ranking.py", "usage > allowed else", "usage >= allowed else"),
    Mutation("pods without stats go first", "ranking.py", "return (0, priority, 0, 0,", "return (3, priority, 0, 0,"),
    Mutation(
        "lower priority goes first",
        "ranking.py",
        "return (group, priority, request - usage,",
        "return (group, -priority, request - usage,",
    ),
    Mutation(
        "more above the request goes first",
        "ranking.py",
        "priority, request - usage,",
        "priority, usage - request,",
    ),
    Mutation("more processes go first", "victims.py", "else (1, -processes, 0)", "else (1, processes, 0)"),
    Mutation(
        "process ids: priority before missing stats",
        "victims.py",
        "return (rank_priority(pod.known_priority), *order,",
        "return (order[0], rank_priority(pod.known_priority), *order[1:],",
    ),
    Mutation(
        "inodes are held against the request for bytes",
        "victims.py",
        'amount = request if resource == "memory" else',
        'amount = request if resource != "ephemeral-storage" else',
    ),
    Mutation(
        "nodefs does not count writable layers that are on a dedicated imagefs",
        "layout.py",
        "return (LOGS, VOLUMES) if",
        "return (ROOTFS, LOGS, VOLUMES) if",
    ),
    Mutation(
        "containerfs copies the thresholds of the disk the containers are on",
        "layout.py",
        "_IMAGEFS_SIGNALS if layout.image_fs and not layout.container_fs else",
        "_IMAGEFS_SIGNALS if layout.image_fs else",
    ),
    Mutation("an emptyDir may be filled to its limit", "local_storage.py", "used[name] > most:", "used[name] >= most:"),
    Mutation(
        "with a dedicated imagefs a container's limit is about its logs alone",
        "local_storage.py",
        "(LOGS,) if layout.image_fs else",
        "(LOGS,) if layout.split else",
    ),
    Mutation(
        "the allocatable copy is made of hard thresholds only",
        "thresholds.py",
        "if t.signal in ALLOCATABLE_OF and t.hard\n",
        "if t.signal in ALLOCATABLE_OF\n",
    ),
    Mutation("100% switches a threshold off", "thresholds.py", 'text in ("0%", "100%")', 'text in ("0%",)'),
    Mutation(
        "a percentage is rounded to 32 bits",
        "gosyntax.py",
        'return float(struct.unpack("<f", struct.pack("<f", number / 100))[0])',
        "return number / 100",
    ),
    Mutation(
        "an amount rounds up to whole units",
        "quantity.py",
        "return -(-self.nanos // _NANO)",
        "return self.nanos // _NANO",
    ),
    Mutation(
        "amounts too fine to hold round away from zero",
        "quantity.py",
        "else -(-number // _pow10(-power))",
        "else number // _pow10(-power)",
    ),
    Mutation(
        "an init container runs beside the sidecars started before it",
        "resources.py",
        "sidecars if request is None else sidecars + request",
        "sidecars if request is None else request",
    ),
    Mutation(
        "a sidecar's request counts beside those of the containers",
        "resources.py",
        "total = total if request is None else total + request",
        "total = total if request is None else max(total, request)",
    ),
    Mutation(
        "pod-level resources hide those of the containers",
        "resources.py",
        "elif pod_level and pod_level_resources_set(pod):",
        "elif pod_level and pod_level_requests_set(pod):",
    ),
    Mutation(
        "overhead is for pods that asked for something",
        "resources.py",
        "if resource in pod.overhead and not total.is_zero:",
        "if resource in pod.overhead:",
    ),
    Mutation("priority 2000000000 is critical", "qos.py", ">= CRITICAL_PRIORITY", "> CRITICAL_PRIORITY"),
    Mutation("an empty source is that of a static pod", "qos.py", '(SOURCE, "api") != "api"', '(SOURCE) == "file"'),
    Mutation(
        "Guaranteed needs limits in every container",
        "qos.py",
        "if limited and requests == limits:",
        "if requests == limits:",
    ),
    Mutation("a Burstable score is 3 at least", "oom_score.py", "= 1000 + GUARANTEED_ADJ", "= 999 + GUARANTEED_ADJ"),
    Mutation(
        "a Burstable score of 1000 becomes 999",
        "oom_score.py",
        "return BURSTABLE_MAX if adj == BEST_EFFORT_ADJ else adj",
        "return adj",
    ),
    Mutation(
        "a sidecar counts as at least the smallest of the containers it serves",
        "oom_score.py",
        "adj = min(adj, by_request(min(",
        "adj = min(adj, by_request(max(",
    ),
    Mutation(
        "critical pods are admitted", "admission.py", "if not conditions or is_critical(pod):", "if not conditions:"
    ),
    Mutation(
        "BestEffort pods are refused under memory pressure",
        "admission.py",
        "if qos_class(pod, pod_level) != BEST_EFFORT:",
        "if qos_class(pod, pod_level):",
    ),
    Mutation(
        "a container is named only for using more than it requested",
        "messages.py",
        "not usage > requests[name]",
        "not usage >= requests[name]",
    ),
    Mutation(
        "the hard threshold is kept back from what pods are offered, not from their cgroup",
        "reservation.py",
        "kept = system.get(name, ZERO) + kube.get(name, ZERO)",
        "kept = system.get(name, ZERO) + kube.get(name, ZERO) + evicted_for.get(name, ZERO)",
    ),
)
