"""How far a pod grows that is braked while it takes memory at full speed, by every way that a process can take it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monitor.hold.pod_brake import PodBrake
from monitor.kernel import cgroupfs
from monitor.kernel.cgroup_procs import pids_below
from monitor.lab.hog import CHECKED
from tests import live
from tests.hold.braked import AUTO, HIERARCHY, MIB, Stand, settled, stand

pytestmark = pytest.mark.kernel

NODE, LEFT = 256, 48  # MiB: of the node, and how much of it is left when the pod is braked


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Stand]:
    with stand(tmp_path / "state", NODE) as found:
        yield found


@contextmanager
def realtime() -> Iterator[None]:
    """As the hot process is: 48 MiB are taken in 20 ms, and others have the CPU for longer than that."""
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def braked_at_the_line(held: Stand, brake: PodBrake) -> int:
    """Brake when so much of the node is left; the cap, 0 for none."""
    line, deadline = (NODE - LEFT) * MIB, time.monotonic() + live.TIMEOUT_S
    with realtime():
        while cgroupfs.usage(HIERARCHY, held.node) < line and time.monotonic() < deadline:
            time.sleep(0.0002)
        left = NODE * MIB - cgroupfs.usage(HIERARCHY, held.node)
        braked = brake.apply((brake.usage() or 0) + left // 2)
    assert braked is not None
    return braked.cap


@pytest.mark.parametrize("kind", CHECKED)
def test_the_growth_ends_at_the_cap_and_no_other_pod_pays(held: Stand, kind: str) -> None:
    """What a page fault cannot have now it waits for; a system call returns without."""
    innocent = cgroupfs.make(held.node / "innocent")
    with live.Puppet(innocent) as other, held.hog(kind=kind, mib=400) as hog:
        other.do("anon(24)")
        brake = held.brake(AUTO)
        hog.go()
        cap = braked_at_the_line(held, brake)
        assert settled(lambda: cgroupfs.usage(HIERARCHY, held.node)) < NODE * MIB
        assert (brake.usage() or 0) <= cap
        assert live.alive(other.pid)
        assert cgroupfs.oom_kills(HIERARCHY, innocent) == 0
        assert held.oom_kills() == 0
        assert live.alive(hog.pid)
        everybody = pids_below(held.pod)  # children that were forked would go on taking memory
        for pid in everybody:
            os.kill(pid, signal.SIGKILL)
        brake.thaw()
        for pid in everybody:
            live.ends(pid)
        brake.close()
        other.do("anon(1)")
