"""The thresholds in force, as events: those of the configuration, and those that only a kubelet would have."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.link.messages import State
from monitor.policy.signals import DOMAIN_OF
from monitor.policy.thresholds import kubelets
from monitor.race.events import NODE, Watched
from monitor.side.view import View


def watched(view: View, message: State, now_ns: int) -> Iterator[Watched]:
    """Every memory threshold of a domain that the hot process watches."""
    there = {threshold.signal for threshold in view.thresholds}
    compared = [threshold for threshold in kubelets(view.thresholds) if threshold.signal not in there]
    for threshold in (*view.thresholds, *compared):
        domain = DOMAIN_OF.get(threshold.signal)
        seen = message.observation.get(domain) if domain is not None else None
        if domain is None or seen is None:
            continue
        reclaim = threshold.min_reclaim
        on_machine = domain == NODE and view.config.node_cgroup is None
        yield Watched(
            ts_ns=now_ns,
            domain=domain,
            signal=threshold.signal,
            hard=threshold.hard,
            quantity=threshold.quantity(seen["capacity"]),
            capacity=seen["capacity"],
            limit=None if on_machine else seen["capacity"],
            grace_s=threshold.grace_ns / 1e9,
            min_reclaim=0 if reclaim is None else reclaim.amount(seen["capacity"]),
            compared=threshold in compared,
        )
