"""Metrics about limits of memory cgroups and swap. A limit that is not set, and swap on a machine without, are absent:
0 would say something else.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from monitor.side.view import View

_LIMITS = "What the cgroup is limited to or protected up to: min, low, high, max, swap_max; soft on cgroup v1."
_SWAP = "Swapped out; no part of usage or working set."


def limit_metrics(view: View) -> Iterator[Metric]:
    """All of them; read a second ago at most."""
    domains = {("node",): view.node_path}
    if view.kubepods is not None:
        domains[("kubepods",)] = view.kubepods
    pods = {name: found.cgroup for name, found in view.named_pods().items()}
    for prefix, labels, cgroups in (("", ("domain",), domains), ("pod_", ("namespace", "pod"), pods)):
        limits = GaugeMetricFamily(f"outrace_{prefix}memory_limit_bytes", _LIMITS, labels=(*labels, "limit"))
        swap = GaugeMetricFamily(f"outrace_{prefix}memory_swap_bytes", _SWAP, labels=labels)
        for key, path in cgroups.items():
            found = view.limits.look(path)
            if found is None:
                continue  # removed between two looks: the pod source reports it
            for name, value in found.named().items():
                if value is not None:
                    limits.add_metric((*key, name), value)
            if found.swap is not None:
                swap.add_metric(key, found.swap)
        yield from (limits, swap)
