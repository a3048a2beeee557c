"""`outrace bench overhead`: what a page fault costs with the programs attached, against without.

Rounds of some 50 ms alternate between nothing attached and one of two states, so that every round is compared with
the two beside it and a machine that gets slower or faster in between does not matter:

* ``armed``: everything attached, the fine-grained programs included, with the lab node, its pod and its container
  watched as the daemon watches them;
* ``disarmed``: what stays attached far from every threshold, the OOM chain and the process events.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack

from monitor.kernel import cgroupfs, loader
from monitor.kernel.domains import POD, DomainTable, ceiling_pages
from monitor.kernel.pins import OOM, PROCS, Pins, Ring
from monitor.kernel.sweeping import Sweeper
from monitor.lab.bench import STATISTICS, Row, bench, number, state_dir, summary
from monitor.lab.child import Child
from monitor.lab.node import MIB, LabNode, LabPod

NODE_BYTES = 256 * MIB
#: Not reached by the loop, as on a node that is armed but not under pressure: nothing crosses, everything is compared.
THRESHOLD_BYTES = 100 * MIB
LOOP_MIB = 8
ROUND_NS = 50_000_000


def watch(pins: Pins, node: LabNode, pod: LabPod) -> DomainTable:
    """Configure the domains as the daemon does: a ceiling on the node, steps of 1 MiB on the pod, a plain container."""
    table = DomainTable(pins)
    table.reset()
    at = table.add(cgroupfs.cgroup_id(node.cgroup))
    ceiling = ceiling_pages(node.memory_bytes, THRESHOLD_BYTES)
    table.set_ceilings(at, [ceiling], pull_above=ceiling)
    table.add(cgroupfs.cgroup_id(pod.cgroup), flags=POD, step=MIB)
    for directory in pod.containers.values():
        table.add(cgroupfs.cgroup_id(directory))
    return table


def ratios(measure: Callable[[], int], pins: Pins, drain: Callable[[], object], triples: int) -> dict[str, list[float]]:
    """CPU time per round in each state, divided by the mean of the rounds before and after with nothing attached."""
    states = {"armed": (*pins.pressure, *OOM, *PROCS), "disarmed": (*OOM, *PROCS)}
    found: dict[str, list[float]] = {name: [] for name in states}
    before = measure()
    for _ in range(triples):
        for state, programs in states.items():
            with ExitStack() as links:
                for name in programs:
                    links.callback(os.close, pins.attach(name))
                during = measure()
            drain()
            after = measure()
            found[state].append(2 * during / (before + after))
            before = after
    return found


def _took(child: Child, passes: int) -> int:
    child.send(str(passes))
    return int(child.expect("took"))


@bench(STATISTICS)
@number("--triples", 100, "Rounds in each state.", 3)
def overhead(triples: int) -> list[Row]:
    """Measure what page faults cost with the programs attached.

    Ratios of CPU time per 4K page fault: 1.08 is 8 % more than with nothing attached. "armed" is the cost near a
    threshold; "disarmed" is the cost everywhere else.
    """
    with LabNode("bench-overhead", NODE_BYTES) as node, state_dir(node) as state:
        directory = loader.ensure_loaded(state)[0]
        pins = Pins(directory)
        for name in OOM:
            # Pinned links would keep these attached in the rounds that are to have nothing attached.
            (directory / f"link_{name}").unlink()
        pod = node.add_pod("faulting", "Burstable", request=64 * MIB)
        table = watch(pins, node, pod)
        Sweeper(pins, table).run()
        rings = [Ring(pins, name, lambda record: None) for name in ("events", "steps")]
        child = node.start(pod, "monitor.lab.workers:faults", mib=LOOP_MIB, cpu=max(os.sched_getaffinity(0)))
        try:
            passes = max(1, ROUND_NS // _took(child, 1))
            found = ratios(lambda: _took(child, passes), pins, lambda: sum(ring.consume() for ring in rings), triples)
            return [summary(state, values, "ratio") for state, values in found.items()]
        finally:
            for ring in rings:
                ring.close()
            table.close()
