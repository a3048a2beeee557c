"""Metrics of single pods, and the limits of pods, node and kubepods.

A limit that is not set, swap on a machine without, and what a pod has never caused are absent: 0 would say something
else.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from monitor.policy.releases import era
from monitor.side.export.families import counter, gauge
from monitor.side.over_budget import over
from monitor.side.view import View

_POD = ("namespace", "pod")
_LIMITS = "What the cgroup is limited to or protected up to: min, low, high, max, swap_max; soft on cgroup v1."
_SWAP = "Swapped out; no part of usage or working set."
_OVER = (
    "What a pod's processes caused faster than it is looked at one by one: steps of memory, SIGKILLs, new processes, "
    "reclaim, and lines of the log."
)


def pod_metrics(view: View) -> Iterator[Metric]:
    """Memory, limits, and what is over a budget."""
    request = era(view.config.policy).request
    pods = view.named_pods()
    used = {key: reading for key, found in pods.items() if (reading := view.used(found.cgroup)) is not None}
    usage = {key: reading.usage for key, reading in used.items()}
    working_set = {key: reading.working_set for key, reading in used.items()}
    requests = {key: request(found.pod, "memory").value for key, found in pods.items()}
    yield gauge("pod_memory_usage_bytes", "Memory in use by the pod.", usage, *_POD)
    yield gauge("pod_memory_working_set_bytes", "The pod's working set.", working_set, *_POD)
    yield gauge("pod_memory_request_bytes", "The pod's memory request.", requests, *_POD)
    yield from limit_metrics(view)
    caused: dict[tuple[str, str, str], int] = {}
    for key, found in pods.items():
        numbers = over(view, found) | {"log_lines": view.log_budget.left_out["/".join(key)]}
        caused |= {(*key, what): n for what, n in numbers.items() if n}
    yield counter("pod_over_budget", _OVER, caused, *_POD, "what")


def limit_metrics(view: View) -> Iterator[Metric]:
    """Limits and swap; read a second ago at most."""
    domains = {("node",): view.node_path}
    if view.kubepods is not None:
        domains[("kubepods",)] = view.kubepods
    pods = {name: found.cgroup for name, found in view.named_pods().items()}
    for prefix, labels, cgroups in (("", ("domain",), domains), ("pod_", _POD, pods)):
        # One that was removed between two looks: the pod source reports it.
        read = {key: found for key, path in cgroups.items() if (found := view.limits.look(path)) is not None}
        limits = {(*key, name): n for key, found in read.items() for name, n in found.named().items() if n is not None}
        swap = {key: found.swap for key, found in read.items() if found.swap is not None}
        yield gauge(f"{prefix}memory_limit_bytes", _LIMITS, limits, *labels, "limit")
        yield gauge(f"{prefix}memory_swap_bytes", _SWAP, swap, *labels)
