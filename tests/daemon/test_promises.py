"""What `outrace doctor` shows and what `outrace run` does on the same state dir: the rung taken, and its bound."""

import json
import os
from pathlib import Path

import pytest

from monitor.kernel import bounds, meminfo
from monitor.kernel.cgroupfs import detect
from monitor.kernel.charging import BPF_RUNGS, POLL
from monitor.kernel.pins import TRACEPOINT
from monitor.kernel.wire import PAGE
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from monitor.settings.config import fastest_fill
from tests import live

pytestmark = pytest.mark.kernel

node = live.fixture(LabNode, "test-promises", 64 * MIB)


def promise(name: str, rate: int, cpus: int, huge_page: int, machine: bool = True) -> bounds.Bound:
    """By docs/hooks.md, near a threshold."""
    if name == POLL:
        return bounds.looked(rate, cpus, bounds.floor_ns(bounds.TURN_NS), machine=machine)
    return bounds.compared(rate, cpus, huge_page, machine=machine, charges_only=name != TRACEPOINT)


def available_now() -> int:
    """Bytes of the whole machine, as the policy counts them."""
    pages = live.vmstat()
    used = pages["nr_anon_pages"] + pages["nr_file_pages"] - pages["nr_inactive_file"]
    return meminfo.mem_total() - used * PAGE


def near() -> str:
    """A threshold of the whole machine that is near: close enough to be armed, and not met by what others do."""
    available = available_now()
    left = fastest_fill() * 6 // 100  # armed below 12 % of what can be taken in a second
    return f"memory.available<{max(available - left, available // 4)}"


@pytest.mark.parametrize("rung", ["auto", pytest.param(POLL, marks=pytest.mark.once)])
def test_the_metrics_export_what_each_hook_promises(node: LabNode, tmp_path: Path, rung: str) -> None:
    """With the machine as the node, which is the default, and a threshold that is near."""
    if rung == "auto":
        live.lend_pins(tmp_path)
    # Before: on an emulated CPU the daemon, near its threshold, leaves it little.
    found = json.loads(live.outrace("doctor", "-o", "json", "--state-dir", str(tmp_path)).stdout)["hook_plan"]
    options = ("--hooks", rung, "--eviction-hard", near())  # as late as can be: others on the machine take and give
    with LabDaemon(node, *options, state_dir=tmp_path, machine=True) as daemon:
        name = live.rung(daemon)
        assert name == (found["rung"] if rung == "auto" else rung)
        promised = promise(name, fastest_fill(), os.cpu_count() or 1, meminfo.huge_page())
        rate, slack = fastest_fill(), 1 + fastest_fill() / 1e9  # a byte for rounding, and a nanosecond

        def alike() -> bool:
            metrics = daemon.metrics()
            unseen = metrics["outrace_unseen_bytes_bound"]
            later_s = metrics["outrace_unseen_seconds_bound"] - promised.unseen_ns / 1e9
            if name != POLL:
                # What hooks on charges do not see is read again as often as the CPU allows, and every 20 ms at least.
                most = rate * bounds.REREAD_NS // 10**9 if name in BPF_RUNGS[1:] else 0
                return -slack <= unseen - promised.unseen_bytes <= most + slack and abs(later_s) < 1e-9
            # The next look is as near as the threshold, and as what a look costs, allow.
            allowed = promised.unseen_bytes + rate * later_s
            return abs(unseen - allowed) <= slack

        live.until(alike, f"the metrics of {name} to be {promised}")


def test_what_the_root_cgroup_takes_is_seen_too(node: LabNode, tmp_path: Path) -> None:
    """It is charged to no cgroup; hooks on charges look at it, many times between two sweeps (one a second)."""
    node.fill(node.add_pod("small"), 8)
    live.lend_pins(tmp_path)
    threshold = available_now() - 192 * MIB  # a daemon takes 60
    options = ("--eviction-hard", f"memory.available<{threshold}")
    with LabDaemon(node, *options, state_dir=tmp_path, machine=True) as daemon:
        name = live.rung(daemon)
        if name in BPF_RUNGS[1:]:
            live.until(lambda: daemon.metrics()["outrace_armed"] == 1, "the hooks to be attached")
            began = daemon.metrics()
            live.until(lambda: daemon.metrics()["outrace_sweeps_total"] >= began["outrace_sweeps_total"] + 2, "sweeps")
            ended = daemon.metrics()
            looks, sweeps = (ended[f"outrace_{n}_total"] - began[f"outrace_{n}_total"] for n in ("looks", "sweeps"))
            assert looks > 10 * sweeps, "50 a second, far from it"
        with live.Puppet(detect().root) as nobodys:
            while available_now() > threshold:
                nobodys.do("anon(16)")
            # To evict a pod of 8 MiB would not help.
            row = live.message(daemon, "evictions are suspended: they would not help", kubelet_would_evict="lab/small")
        assert (row["signal"], row["domain"]) == ("memory.available", "node")
        assert row["available"] < threshold
