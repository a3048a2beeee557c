"""A hold where there is swap: only in a guest that may be lost, where a file may be made swap (`make test-vm`)."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.hold.pod_brake import LIMIT
from monitor.kernel import cgroupfs
from tests import live
from tests.filesystems import swap
from tests.hold.braked import HIERARCHY, MIB, V2, Stand, stand

pytestmark = [pytest.mark.kernel, pytest.mark.expendable]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Stand]:
    with swap(), stand(tmp_path / "state") as made:
        if V2:
            (made.node / "memory.swap.max").write_text("max")
        else:
            for path in (made.node, made.pod):
                (path / "memory.swappiness").write_text("60")
        yield made


def test_a_held_pod_does_not_grow_in_memory_where_there_is_swap(held: Stand) -> None:
    """On v1 it goes on into swap; frozen by v2 it does not. What it has is right afterwards."""
    with held.puppet() as puppet:
        brake, before = held.brake(), held.files()
        puppet.tell("anon(80)")
        live.until(lambda: (brake.usage() or 0) > 30 * MIB, "the pod to grow")
        braked = brake.apply((brake.usage() or 0) + 4 * MIB)
        assert braked is not None
        for _ in range(20):
            time.sleep(0.1)
            assert cgroupfs.usage(HIERARCHY, held.pod) <= braked.cap
        assert brake.in_force()
        brake.release()
        assert held.files() == before
        assert puppet.answer() == "done"
        puppet.do("assert bytes(kept[0][::4096]) == bytes([1]) * (80 * 256)")
        assert held.oom_kills() == 0
        brake.close()


@pytest.fixture
def zswap() -> Iterator[None]:
    """Pages that go to swap are kept compressed in memory first."""
    enabled = Path("/sys/module/zswap/parameters/enabled")
    if not enabled.exists():
        pytest.skip("this kernel has no zswap")
    before = enabled.read_text()
    enabled.write_text("Y")
    try:
        if enabled.read_text().strip() != "Y":
            pytest.skip("zswap has no compressor here")
        yield
    finally:
        enabled.write_text(before)


@pytest.mark.skipif(not V2, reason="on cgroup v1 no cgroup is charged for zswap's memory")
def test_what_zswap_keeps_of_a_held_pod_is_below_its_cap(zswap: None, held: Stand) -> None:
    """Capped and not frozen it goes on; its own compressed pages count, so the node loses no more than the cap."""
    with held.puppet() as puppet:
        brake = held.brake(LIMIT)
        puppet.do("[anon(1) for _ in range(20)]")
        braked = brake.apply((brake.usage() or 0) + 4 * MIB)
        assert braked is not None
        puppet.do("[anon(1) for _ in range(60)]")
        kept = cgroupfs.memory_stat(held.pod)["zswap"]
        assert kept > 0, "zswap was used"
        assert kept < cgroupfs.usage(HIERARCHY, held.pod) <= braked.cap
        assert held.oom_kills() == 0
        brake.release()
        puppet.do("assert [bytes(one[::4096]) for one in kept] == [bytes([1]) * 256] * 80")
        brake.close()
