"""cgroup v2: a pod that runs under memory.high answers SIGTERM and hardly grows, and what it had comes back exactly."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from monitor.actions.changes import RESTORED
from monitor.actions.ledger import SIDE, Ledger, noted_at
from monitor.errors import MonitorError
from monitor.hold.pod_brake import LIMIT
from monitor.hold.soft_brake import HIGH, TASKS, SoftBrake
from monitor.kernel import cgroupfs
from tests import live
from tests.hold.braked import AUTO, COMPANION, HIERARCHY, LIMIT_FILE, MIB, V2, Stand, undo_on

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not V2, reason="cgroup v1 has no memory.high: the guests of make test-vm have v2"),
]

#: Takes memory until it gets SIGTERM, which it answers: 64 MiB a second, and from 48 MiB on 1 MiB a second while the
#: file is there; else the node is full before the test has a CPU.
_ANSWERS = """
stop = False
def asked(*_):
    global stop
    stop = True
signal.signal(signal.SIGTERM, asked)
def grow(slowly):
    block = mmap.mmap(-1, 400 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    block.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, 400 * MIB, 4096):
        at % 65536 or time.sleep(0.06 if at >= 48 * MIB and os.path.exists(slowly) else 0.001)
        block[at] = 1
        if stop:
            print("answered", flush=True)
            return
"""


@pytest.fixture
def soft(held: Stand) -> SoftBrake:
    return SoftBrake("uid", held.pod, Ledger(held.state, SIDE))


def softened(held: Stand) -> list[str]:
    """The files that a soft brake has changed."""
    return [change.file for one in noted_at(held.pod, pytest.fail) if one.role == SIDE for change in one.changes()]


def number(path: Path) -> int:
    return int(path.read_text())


def test_a_held_pod_answers_sigterm_and_hardly_grows(held: Stand, soft: SoftBrake, tmp_path: Path) -> None:
    """As --hard-grace has it: cap and freeze, SIGTERM, the soft brake, thaw."""
    with held.puppet() as puppet:
        puppet.do(f"exec({_ANSWERS!r})")
        brake, before = held.brake(), held.files()
        (slowly := tmp_path / "slowly").touch()
        puppet.tell(f"grow({str(slowly)!r})")
        live.until(lambda: (brake.usage() or 0) > 48 * MIB, "the pod to grow")
        braked = brake.apply((brake.usage() or 0) + 24 * MIB)
        assert braked is not None
        soft.soften(braked.cap, 5.0)
        assert number(held.pod / HIGH) == soft.high
        assert number(held.pod / TASKS) == 1
        slowly.unlink()
        brake.thaw()
        grows_from = brake.usage() or 0
        time.sleep(2)
        assert held.oom_kills() == 0
        assert (brake.usage() or 0) < grows_from + 6 * MIB
        puppet.process.send_signal(signal.SIGTERM)
        assert puppet.answer() == "answered"
        assert puppet.answer() == "done"
        assert {fate for _, fate in soft.harden()} == {RESTORED}
        brake.close()
        assert held.files() == before
        assert softened(held) == []


def test_a_memory_high_that_was_set_before_comes_back_exactly(held: Stand, soft: SoftBrake) -> None:
    """By MemoryQoS or systemd: of the pod, where the brake writes one of its own, and of its containers."""
    with held.puppet("container") as puppet:
        puppet.do("anon(32)")
        (held.pod / HIGH).write_text(str(112 * MIB))
        (held.pod / TASKS).write_text("77")
        (held.pod / "container" / HIGH).write_text(str(100 * MIB))
        before, brake = held.files(), held.brake()
        assert brake.apply(64 * MIB) is not None
        assert number(held.pod / HIGH) < 64 * MIB
        brake.high_is_left = True
        soft.soften(0, 5.0)
        assert number(held.pod / HIGH) == soft.high < 32 * MIB
        assert brake.in_force(), "memory.high is the side's"
        assert brake.loosen(72 * MIB) is not None
        assert number(held.pod / HIGH) == soft.high
        brake.release()
        undo_on(held.state)  # as the start after a SIGKILL does
        assert held.files() == before
        assert number(held.pod / "container" / HIGH) == 100 * MIB
        puppet.do("anon(1)")
        brake.close()


def test_a_lower_memory_high_of_its_own_stays(held: Stand, soft: SoftBrake) -> None:
    with held.puppet() as puppet:
        puppet.do("anon(24)")
        (held.pod / HIGH).write_text(str(MIB))
        before, brake = held.files(), held.brake()
        braked = brake.apply(64 * MIB)
        assert braked is not None
        assert braked.brake == "limit+high+freeze"
        assert number(held.pod / HIGH) == MIB
        brake.close()
        assert held.files() == before
        soft.soften(0, 5.0)
        assert soft.high == MIB == number(held.pod / HIGH)
        assert softened(held) == [TASKS]
        soft.harden()
        assert held.files() == before


@pytest.mark.parametrize("own", ["1", "5", "max"])
def test_pids_max_is_never_above_what_it_was(held: Stand, soft: SoftBrake, own: str) -> None:
    """Also where a pod that runs 3 processes may have 1: it was lowered meanwhile."""
    with held.puppet() as puppet:
        children = 2 if own == "1" else 0
        puppet.do(f"children = [os.fork() or time.sleep(1000) for _ in range({children})]")
        (held.pod / TASKS).write_text(own)
        soft.soften(0, 5.0)
        assert (held.pod / TASKS).read_text().strip() == "1"
        soft.harden()
        assert (held.pod / TASKS).read_text().strip() == own


def test_where_what_is_left_does_not_last_there_is_no_soft_brake(held: Stand, soft: SoftBrake) -> None:
    with held.puppet() as puppet:
        puppet.do("[threading.Thread(target=time.sleep, args=(1000,), daemon=True).start() for _ in range(20)]")
        before, usage = held.files(), cgroupfs.usage(HIERARCHY, held.pod)
        with pytest.raises(MonitorError, match="21 threads would take"):
            soft.soften(usage + 16 * MIB, 30.0)
        assert held.files() == before
        assert softened(held) == []
        soft.soften(usage + 1024 * MIB, 30.0)
        soft.harden()


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
