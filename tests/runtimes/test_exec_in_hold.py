"""A container that is held while execs start in it can be killed, by containerd and runc of the distribution."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.actions.ledger import Ledger
from monitor.hold import brakes as hold_brakes
from monitor.hold.brakes import HoldBrakes
from monitor.hold.pod_brake import PodBrake
from monitor.hold.thaw_reasons import KILL, START
from monitor.kernel import cgroupfs
from tests import live
from tests.runtimes import containerd, images
from tests.runtimes.containerd import Containerd, Pod

MIB = 1 << 20
#: Where a pod is not thawed for a process that starts in it 2 of 10 cannot be killed. (Of the others the exec reaches
#: its time limit, and is killed.)
ROUNDS = 8
NAME = "localhost/holder:1"


def probe(runtime: Containerd, ident: str, stop: threading.Event) -> None:
    """One exec after the other, as probes do."""
    import grpc

    request = runtime.api.ExecSyncRequest(container_id=ident, cmd=["/pause", "0", "0"], timeout=1)
    while not stop.is_set():
        with suppress(grpc.RpcError):  # runc begins none in a frozen container
            runtime.runtime.ExecSync(request, timeout=live.TIMEOUT_S)
        stop.wait(0.05)


def frozen_in_an_exec(brakes: HoldBrakes, entry: Any, brake: PodBrake) -> None:
    """Hold it while runc starts a process in it: where the freeze comes at another moment, again."""
    deadline = time.monotonic() + live.TIMEOUT_S
    while time.monotonic() < deadline:
        assert brake.apply((brake.usage() or 0) + 8 * MIB) is not None
        time.sleep(0.1)
        if brakes.look_after(entry) == START:
            return
        brakes.release("a")
        time.sleep(0.03)
    pytest.fail("no exec was frozen as it began")


def kill_in_hold(runtime: Containerd, pod: Pod, cgroup: Path, state: Path) -> int:
    """StopContainer without a grace, as a kubelet does that evicts. Raises where it does not come to its end. How often
    the container ran meanwhile so that an exec starts.
    """
    ident = pod.run("c", NAME)
    entry: Any = SimpleNamespace(uid="a", cgroup=cgroup)
    brakes = HoldBrakes(cgroupfs.detect(), Ledger(state), lambda _: True)
    stop, started = threading.Event(), 0
    with ThreadPoolExecutor(4) as pool:
        try:
            for _ in range(3):
                pool.submit(probe, runtime, ident, stop)
            time.sleep(1.0)
            brake = brakes.of(entry)
            frozen_in_an_exec(brakes, entry, brake)
            request = runtime.api.StopContainerRequest(container_id=ident, timeout=0)
            killed = pool.submit(runtime.runtime.StopContainer, request, timeout=live.TIMEOUT_S)
            while not killed.done():
                found = brakes.look_after(entry)
                if found == hold_brakes.ENDED:
                    brake.apply((brake.usage() or 0) + 8 * MIB)
                elif found in (KILL, START):
                    brakes.let_run("a")
                    started += found == START
                time.sleep(0.005 if brakes.running else 0.1)
            killed.result()
            return started
        finally:
            stop.set()
            brakes.drop("a")


@pytest.mark.kernel
@pytest.mark.once
def test_a_held_container_in_which_execs_start_can_be_killed(
    pause: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    containerd.check()
    hierarchy = cgroupfs.detect()
    if hierarchy.version == 2 or cgroupfs.freezer() is None:
        pytest.skip(
            "cgroup v2 lets SIGKILL through" if hierarchy.version == 2 else "cgroup v1's freezer is not mounted"
        )
    base = tmp_path_factory.mktemp("containerd")
    with containerd.parent_cgroup() as parent, Containerd(base, tmp_path / "r", parent) as runtime:
        runtime.load(images.archive(base / "holder.tar", NAME, pause))
        started = 0
        for number in range(ROUNDS):
            pod = Pod(runtime, f"pod{number}")
            started += kill_in_hold(runtime, pod, hierarchy.root / parent[1:], tmp_path)
            pod.stop()
        assert started, "no exec was frozen as it began"
