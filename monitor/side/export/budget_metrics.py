"""Metrics about pods that cause more than is looked at one by one. What a pod has never caused is absent."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from monitor.side.over_budget import over
from monitor.side.view import View


def budget_metrics(view: View) -> Iterator[Metric]:
    """By pod and by what it was."""
    counted = CounterMetricFamily(
        "outrace_pod_over_budget",
        "What a pod's processes caused faster than it is looked at one by one: steps of memory, SIGKILLs, new "
        "processes, reclaim, and lines of the log.",
        labels=("namespace", "pod", "what"),
    )
    for (namespace, name), found in view.named_pods().items():
        numbers = over(view, found)
        if view.log_budget is not None:
            numbers["log_lines"] = view.log_budget.left_out[f"{namespace}/{name}"]
        for what, n in numbers.items():
            if n:
                counted.add_metric((namespace, name, what), n)
    yield counted
