"""The capacity is what it is now: limits and the machine's memory change under a daemon that runs for months."""

import errno
import os
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.kernel import cgroupfs, meminfo
from monitor.kernel.procfs import readable
from monitor.lab.node import LabNode
from monitor.policy.signals import ALLOCATABLE_MEMORY, MEMORY
from monitor.policy.thresholds import parse_thresholds
from monitor.settings.config import RunConfig
from monitor.sources import gauge as gauge_module
from monitor.sources.watch import make_watches
from tests import live
from tests.daemon import stand_ins
from tests.daemon.harness import STATE
from tests.daemon.hot_node import hard, hot_node
from tests.side.parts import Parts

MIB, GIB = live.MIB, 1 << 30
CHANGED = "the capacity has changed; thresholds follow it"
BLOCKS = Path("/sys/devices/system/memory")


def test_memory_of_the_machine_by_the_call_and_by_a_file_that_is_another_machines(tmp_path: Path) -> None:
    """As in a container with lxcfs; and the file changes."""
    memory = meminfo.MemTotal()
    assert memory._by_call
    assert memory.now() == meminfo.mem_total()
    (tmp_path / "meminfo").write_text("MemTotal: 1024 kB\n")
    memory = meminfo.MemTotal(tmp_path / "meminfo")
    assert memory.now() == MIB
    (tmp_path / "meminfo").write_text("MemTotal: 4096 kB\n")
    assert memory.now() == 4 * MIB


@pytest.mark.kernel
def test_every_line_follows_the_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the machine: these tests do not plug memory; those in guests do (below)."""
    thresholds = parse_thresholds({MEMORY: "25%", ALLOCATABLE_MEMORY: "50%"}, {}, {}, {}, ("pods",))
    sent: list[Any] = []
    with live.cgroup("kubepods") as kubepods, live.Watching(attach=False) as watch:
        memory = [8 * GIB]
        monkeypatch.setattr(meminfo, "MemTotal", lambda: SimpleNamespace(now=lambda: memory[0]))
        gauge = stand_ins.gauge(thresholds, send=sent.append, config={"reserved": 1 * GIB}, table=watch.table)
        version = cgroupfs.detect().version
        (node,) = gauge.watches
        pods = make_watches(watch.table, "kubepods", kubepods, 7 * GIB, thresholds, version)[0]
        gauge.watches.append(pods)
        gauge.take_capacities()
        assert (gauge.recapped, sent) == (False, [])
        for now in (16 * GIB, 4 * GIB):
            memory[0] = now
            gauge.take_capacities()
            assert (node.capacity, node.lines) == (now, (now // 4,))
            assert pods.capacity == now - GIB, "without a limit of its own"
            assert pods.lines[0] == (now - GIB) // 2
            assert gauge.recapped
            gauge.arm_thresholds()
            assert not gauge.recapped
            assert -MIB < watch.table.room(node.index) - (now - now // 4 - watch.table.working_set(node.index)) < MIB
            assert [record.fields["now"] for record in sent] == [now, now - GIB]
            gauge.take_capacities()
            assert len(sent) == 2, "logged once"
            sent.clear()
        cgroupfs.set_limit(kubepods, 2 * GIB)
        gauge.take_capacities()
        assert (node.capacity, pods.capacity) == (4 * GIB, 2 * GIB)
        pods.close()


@pytest.mark.parametrize(("apart", "huge"), [(True, 2 * GIB), (False, 0)])
def test_the_machines_capacity_is_without_huge_pages(monkeypatch: pytest.MonkeyPatch, apart: bool, huge: int) -> None:
    """Since 1.37; what kubepods gets is of the whole memory. The file is read once a second, and if a line is met."""
    pages, reads = [huge], []
    memory = SimpleNamespace(now=lambda: 16 * GIB, huge_pages=lambda: reads.append(1) or pages[0])
    monkeypatch.setattr(meminfo, "MemTotal", lambda: memory)
    thresholds = parse_thresholds({MEMORY: "25%"})
    gauge = stand_ins.gauge(thresholds, config={"reserved": GIB, "huge_pages_apart": apart})
    now = gauge.table.reading.return_value = SimpleNamespace(used=0)  # a stand-in
    (node,) = gauge.watches
    pods: Any = SimpleNamespace(
        name="kubepods", machine=False, capacity=15 * GIB, limit_now=lambda: None, is_there=lambda: True
    )
    gauge.watches.append(pods)
    assert (node.capacity, node.lines) == (16 * GIB - huge, ((16 * GIB - huge) // 4,))
    assert not gauge.limits_changed()
    assert len(reads) == 2 * apart
    pages[0] = 3 * GIB
    gauge.take_capacities()
    assert node.capacity == 16 * GIB - huge
    assert gauge.limits_changed() is apart
    assert (node.capacity, pods.capacity) == (13 * GIB if apart else 16 * GIB, 15 * GIB)
    # Pages that were freed, and memory that was used since: no pod dies for a capacity of a second ago.
    pages[0], now.used, reads[:] = 0, 10 * GIB, []
    gauge.take_capacities()
    assert (node.capacity, len(reads)) == (16 * GIB, apart)


def test_what_the_kernel_takes_after_the_start_is_less_for_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default threshold of a VM is above what it kept then (`monitor.settings.read.over_the_kernels_share`)."""
    share, at = [90 * MIB], [0]
    monkeypatch.setattr(meminfo, "MemTotal", lambda: SimpleNamespace(now=lambda: 4 * GIB, huge_pages=lambda: 0))
    monkeypatch.setattr(meminfo, "kernels_share", lambda **_: share[0])
    monkeypatch.setattr(gauge_module.time, "monotonic_ns", lambda: at[0])
    gauge = stand_ins.gauge(parse_thresholds({MEMORY: "190Mi"}), config={"kernels_share": 90 * MIB})
    gauge.table.reading.return_value = SimpleNamespace(used=0)
    (node,) = gauge.watches

    def seen(mib: int) -> int:
        share[0], at[0] = mib * MIB, at[0] + gauge_module.FOLLOW_NS
        gauge.limits_changed()
        return (4 * GIB - node.capacity) // MIB

    assert [seen(mib) for mib in (90, 220, 90, 220, 230, 0, 230, 60, 60)] == [0, 0, 0, 0, 130, 130, 130, 0, 0]


@pytest.mark.parametrize("node", [None, "/sys/fs/cgroup/none"])
def test_scores_are_of_the_whole_memory(node: str | None, tmp_path: Path) -> None:
    """As a kubelet's oom_score_adj, huge pages or not; of a node that is a cgroup they are of its limit."""
    total = meminfo.mem_total()
    parts = Parts(RunConfig(state_dir=str(tmp_path), node_cgroup=node), cgroupfs.Hierarchy(2, tmp_path), total)
    handler, processes = parts.handler(), parts.processes()
    for capacity, wakes in ((total - GIB, True), (total - GIB, False), (total - 2 * GIB, True)):
        state = STATE._replace(observation={"node": {"capacity": capacity}})
        assert handler.handle(state)
        processes.handle(state)
        assert readable(processes._wake_fd, 0) is wakes
        processes.rest(0.0, 0.0)
        processes.turn()
        assert parts.node.capacity == capacity
        assert processes.scores.capacity == (total if node is None else capacity)


@pytest.mark.kernel
@pytest.mark.once
def test_nobody_dies_for_a_crossing_of_a_line_that_is_not_there_any_more() -> None:
    """Memory was added between the crossing and the look at its record."""
    with hot_node() as node:
        pod = node.add_pod("pod")
        with live.daemon(node, *hard(40), "--enforce") as daemon:
            hog = node.fill(pod, 70)
            live.until(lambda: live.metric(daemon, "armed") == 1, "it to watch closely")
            os.kill(daemon.pid, signal.SIGSTOP)  # the hot process sees nothing meanwhile
            more = node.fill(pod, 30)
            cgroupfs.set_limit(node.cgroup, 256 * MIB)
            os.kill(daemon.pid, signal.SIGCONT)
            record = live.message(daemon, CHANGED)
            assert (record["before"], record["now"]) == (128 * MIB, 256 * MIB)
            live.until(lambda: live.metric(daemon, 'memory_capacity_bytes{domain="node"}') == 256 * MIB, "the metric")
            live.ended(daemon)
            assert live.messages(daemon, "evicting") == []
            assert len(live.messages(daemon, CHANGED)) == 1
            assert hog.process.poll() is None
            assert more.process.poll() is None


def online_blocks() -> set[Path]:
    return {block for block in BLOCKS.glob("memory[0-9]*") if (block / "state").read_text().strip() == "online"}


def taken_offline(block: Path) -> bool:
    """False while the kernel cannot have its pages: compaction may have isolated some (EBUSY)."""
    try:
        (block / "state").write_text("offline")
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EAGAIN):
            raise
        return False
    return True


@pytest.mark.kernel
@pytest.mark.expendable
def test_memory_that_is_plugged_into_the_machine_and_taken_away_again() -> None:
    """The host plugs a module when it reads the line on the console (scripts/vm/guest.py); a block is taken offline."""
    (BLOCKS / "auto_online_blocks").write_text("online_movable")  # what the kernel keeps nothing in can be taken away
    before, blocks = meminfo.mem_total(), online_blocks()
    with LabNode("test-plug", 1 << 40) as node:
        pod = node.add_pod("pod", "Burstable", request=64 * MIB)
        node.fill(pod, 8)
        with live.daemon(node, "--eviction-hard", "memory.available<10%", machine=True) as daemon:

            def shown() -> float:
                return live.metric(daemon, 'memory_capacity_bytes{domain="node"}')

            assert shown() == before
            Path("/dev/console").write_text("\nguest: plug 256\n")
            # Its blocks of 128 MiB come one by one.
            live.until(lambda: meminfo.mem_total() >= before + 200 * MIB, "the memory to be there")
            live.until(lambda: shown() == meminfo.mem_total(), "the metric to follow")
            plugged = meminfo.mem_total()
            line = live.metric(daemon, 'threshold_bytes{kind="hard",signal="memory.available"}')
            assert line == pytest.approx(plugged / 10, rel=1e-6)
            live.message(daemon, CHANGED, domain="node", before=before)

            for block in sorted(online_blocks() - blocks):
                live.until(partial(taken_offline, block), f"{block.name} to go offline")
            live.until(lambda: shown() == meminfo.mem_total(), "the metric to follow again")
            assert meminfo.mem_total() <= plugged - 200 * MIB
            live.message(daemon, CHANGED, domain="node", now=meminfo.mem_total())
            live.ended(daemon)
            assert live.messages(daemon, "evicting") == []
            assert len(live.messages(daemon, CHANGED)) <= 4, "two blocks come and two go, each is logged once"


@pytest.mark.kernel
@pytest.mark.once
def test_a_node_that_was_removed_and_made_again_is_another_one() -> None:
    """Its old descriptors report nothing any more; by its name alone it would seem to be there."""
    with LabNode("test-again", 64 * MIB) as node:
        inner = cgroupfs.make(node.cgroup / "inner")
        cgroupfs.set_limit(inner, 32 * MIB)
        relative = str(inner.relative_to(node.hierarchy.root))
        with live.daemon(node, *hard(8), "--node-cgroup", relative) as daemon:
            os.kill(daemon.pid, signal.SIGSTOP)
            inner.rmdir()
            cgroupfs.make(inner)
            os.kill(daemon.pid, signal.SIGCONT)
            assert daemon.process.wait(live.TIMEOUT_S) == 1
            assert f"the node's cgroup {inner} was removed" in daemon.complaint()
