"""What is available by each memory signal, for those who export it."""

from __future__ import annotations

from collections.abc import Mapping

from monitor.kernel.cgroupfs import MemoryReading
from monitor.policy.signals import OF_DOMAIN, used
from monitor.side.view import View


def memory_signals(view: View, domains: Mapping[str, MemoryReading]) -> dict[str, tuple[int | None, int | None]]:
    """Signal -> available and capacity (bytes): the kubelet's, and those of outrace's own that have thresholds."""
    wanted = {threshold.signal for threshold in view.thresholds}
    seen: dict[str, tuple[int | None, int | None]] = {}
    for name, reading in domains.items():
        kubelets, *others = OF_DOMAIN[name]
        seen[kubelets] = reading.available, reading.capacity
        for signal in wanted.intersection(others):
            if reading.capacity is not None:
                taken = used(signal, reading.usage, reading.inactive_file, reading.active_file)
                seen[signal] = reading.capacity - taken, reading.capacity
    return seen
