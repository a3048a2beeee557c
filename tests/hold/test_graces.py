"""cgroup v2: a pod that runs under memory.high answers SIGTERM and hardly grows, and what it had comes back exactly."""

from __future__ import annotations

import signal
import time

import pytest

from monitor.hold.brake_ledger import _linux
from monitor.hold.pod_brake import LIMIT
from monitor.kernel import cgroupfs
from tests import live
from tests.hold.braked import AUTO, COMPANION, LIMIT_FILE, MIB, V2, Stand

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not V2, reason="cgroup v1 has no memory.high: the guests of make test-vm have v2"),
]

#: Takes memory until it gets SIGTERM, which it answers.
_ANSWERS = """
stop = False
def asked(*_):
    global stop
    stop = True
signal.signal(signal.SIGTERM, asked)
def grow():
    block = mmap.mmap(-1, 400 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    block.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, 400 * MIB, 4096):
        at % 65536 or time.sleep(0.001)  # 64 MiB a second: else the node is full before the test has a CPU
        block[at] = 1
        if stop:
            print("answered", flush=True)
            return
"""


@pytest.mark.skipif(_linux() < (6, 16), reason="before Linux 6.16 a memory.high below the usage reclaims in the writer")
def test_a_held_pod_answers_sigterm_and_hardly_grows(held: Stand) -> None:
    """As --hard-grace has it: cap and freeze, SIGTERM, thaw below memory.high."""
    with held.puppet() as puppet:
        puppet.do(f"exec({_ANSWERS!r})")
        brake, before = held.brake(), held.files()
        puppet.tell("grow()")
        live.until(lambda: (brake.usage() or 0) > 48 * MIB, "the pod to grow")
        braked = brake.apply((brake.usage() or 0) + 24 * MIB)
        assert braked is not None
        assert brake.loosen(braked.cap, slowed=True) == ("limit+high", braked.cap)
        grows_from = brake.usage() or 0
        time.sleep(2)
        assert held.oom_kills() == 0
        assert (brake.usage() or 0) < grows_from + 6 * MIB
        puppet.process.send_signal(signal.SIGTERM)
        assert puppet.answer() == "answered"
        assert puppet.answer() == "done"
        brake.close()
        assert held.files() == before


def test_the_cap_of_v2_alone_kills_in_the_pod(held: Stand) -> None:
    """All of it at once (memory.oom.group), and no other pod."""
    innocent = cgroupfs.make(held.node / "innocent")
    with held.puppet("c1") as first, held.puppet("c2") as second, live.Puppet(innocent) as other:
        brake = held.brake(LIMIT)
        braked = brake.apply(40 * MIB)
        assert braked is not None
        assert braked.brake == LIMIT
        assert (held.pod / COMPANION).read_text().strip() == "1"
        first.tell("anon(100)")
        assert (first.wait(), second.wait()) == (-signal.SIGKILL, -signal.SIGKILL)
        assert live.alive(other.pid)
        brake.close()


def test_memory_oom_group_that_was_set_before_stays(held: Stand) -> None:
    (held.pod / COMPANION).write_text("1")
    before, brake = held.files(), held.brake(AUTO)
    assert brake.apply(64 * MIB) is not None
    assert COMPANION not in dict(brake.release())
    assert held.files() == before
    assert (held.pod / LIMIT_FILE).read_text().strip() == "max"
    brake.close()
