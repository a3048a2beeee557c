"""A hold where there is swap: only in a guest that may be lost, where a file may be made swap (`make test-vm`)."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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
