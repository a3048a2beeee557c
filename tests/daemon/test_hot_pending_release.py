"""After a victim's last process is gone its memory may be a pending release: no other pod is evicted for it."""

import os
import re
import signal

import pytest

from monitor.lab.node import MIB, LabNode
from tests import live
from tests.daemon.hot_node import decided, evicted, hard, hot_node, passes, up_to

pytestmark = pytest.mark.kernel

#: What fills page tables alone: a page of each 2 MiB of addresses is read, which maps the zero page.
TABLES = """
import mmap
addresses = mmap.mmap(-1, {mib} << 29, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ)
addresses.madvise(mmap.MADV_NOHUGEPAGE)
memoryview(addresses)[:: 2 << 20].tobytes()
"""
#: Names of 240 bytes that do not exist: the kernel keeps each in 192 bytes and 256.
DENTRIES = """
for number in range({mib} * 2340):
    os.path.exists(f"/var/tmp/{{os.getpid():0120}}{{number:0120}}")
"""

node = live.fixture(hot_node, 256)


@pytest.mark.parametrize("hooks", ["auto", pytest.param("poll", marks=pytest.mark.once)])
def test_page_tables_of_the_dead_are_waited_for(node: LabNode, hooks: str) -> None:
    """They are freed after a grace period of RCU: the last process was gone 24 ms after its SIGKILL and had given back
    nothing, and the next pod was evicted 0.5 ms later, for memory that was all back 50 ms after that."""
    tables, innocent = node.add_pod("tables"), node.add_pod("innocent")
    hooked, hog = live.daemon(node, "--enforce", "--hooks", hooks, *hard(64)), live.Puppet(tables.containers["c0"])
    with hooked as daemon, hog:
        calm = node.fill(innocent, 40)
        hog.tell(f"exec({TABLES.format(mib=200)!r})")
        _, end = evicted(daemon, tables)
        assert hog.wait() < 0
        live.ended(daemon)
        assert decided(daemon) == ["tables"]
        assert calm.process.poll() is None
        assert end["freed"] > 100 * MIB, "what came back in the end"


@pytest.mark.parametrize("trigger", ["user", pytest.param("kernel", marks=pytest.mark.once)])
@pytest.mark.parametrize("end", [pytest.param(end, marks=pytest.mark.once) for end in ("killed", "left")])
def test_page_tables_of_who_was_killed_by_others_or_left_are_waited_for(node: LabNode, end: str, trigger: str) -> None:
    if end == "left" and tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 17):
        pytest.skip("before Linux 6.17 the end of a process is traced when its memory was freed already")
    tables, innocent, late = node.add_pod("tables", "Guaranteed", request=200 * MIB), node.add_pod("innocent"), None
    with (
        live.daemon(node, "--enforce", "--trigger", trigger, *hard(50)) as daemon,
        live.Puppet(tables.containers["c0"]) as hog,
    ):
        calm = node.fill(innocent, 24)
        hog.do(f"exec({TABLES.format(mib=120)!r})")
        late = node.start_hog(innocent, mib=6, rate=200)
        filler = node.add_pod("filler", "Guaranteed", request=128 * MIB)
        node.fill(filler, up_to(node, 256 - 50 - 3))  # so much is left above the line
        hog.process.send_signal(signal.SIGKILL if end == "killed" else signal.SIGTERM)
        hog.wait()
        late.go()
        late.expect("grown")
        passes(daemon, 3)
        live.until(lambda: node.usage() < 150 * MIB, "the page tables to be back")
        live.ended(daemon)
        assert decided(daemon) == []
        assert calm.process.poll() is None


@pytest.mark.once
def test_one_that_kills_its_own_children_does_not_hold_up_its_eviction(node: LabNode) -> None:
    pod = node.add_pod("murderer")
    with live.daemon(node, "--enforce", *hard(64)) as daemon:
        node.fill(pod, 100)
        node.start(pod, "tests.daemon.blinder:blinder", kind="children")
        node.fill(node.add_pod("filler", "Guaranteed", request=128 * MIB), 96)
        evicted(daemon, pod)
        assert decided(daemon) == ["murderer"]


@pytest.mark.newest
def test_what_stays_is_asked_for_before_the_next_pod_goes(node: LabNode) -> None:
    """Dentries of names that do not exist outlive the process that looked for them, until another needs memory."""
    slab, innocent = node.add_pod("slab"), node.add_pod("innocent")
    with live.daemon(node, "--enforce", *hard(64)) as daemon, live.Puppet(slab.containers["c0"]) as hog:
        calm = node.fill(innocent, 40)
        hog.tell(f"exec({DENTRIES.format(mib=300)!r})")
        assert hog.wait() == -signal.SIGKILL
        _, end = evicted(daemon, slab)
        logged = live.message(daemon, "the kernel took back what an evicted pod left", pod="lab/slab")
        live.ended(daemon)
        assert decided(daemon) == ["slab"]
        assert calm.process.poll() is None
        assert logged["bytes"] > 60 * MIB
        assert end["freed"] > 32 * MIB  # where a CPU is slow, reported before all of it is taken back (49 MB once)
