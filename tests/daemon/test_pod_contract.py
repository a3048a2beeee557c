"""A pod that takes memory, is capped, frozen, let go and killed: the simulated one answers as the kernel's cgroup does.

What tests on the simulated node say of limits and of frozen pods is as true as this.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from monitor.hold.pod_brake import ROOM
from monitor.kernel import cgroupfs
from monitor.kernel.wire import PAGE
from tests import live
from tests.daemon.limited_brake import LimitedBrake, ledger
from tests.hold.braked import COMPANION, LIMIT_FILE, V2, stand
from tests.replay.stand_ins import Table
from tests.replay.world import MIB


class Simulated:
    """Takes what it wants as far as its limit lets it, while it runs."""

    def __init__(self, directory: Path, version: int) -> None:
        self.version, self._table, self._at = version, Table(), directory.stat().st_ino
        self._table.sets[self._at] = self._wanted = 4 * MIB
        self.brake: Any = LimitedBrake(self._table, "uid", directory)
        self.brake.ledger, self.brake.runs = ledger(version=version), True

    def set_limit(self, own: int) -> None:
        self.brake.ledger = ledger(own, self.version)

    def files(self) -> list[str]:
        return [file.read() for file in self.brake.ledger.files.values()]

    def take(self, mib: int) -> None:
        self._wanted += mib * MIB

    def comes_to(self, size: int) -> None:
        self._run()
        assert self.brake.usage() >= size - MIB // 2

    def has_all(self) -> bool:
        self._run()
        return bool(self.brake.usage() == self._wanted)

    def kill(self) -> None:
        self._wanted = 0

    def is_gone(self) -> bool:
        self._run()
        return bool(self.brake.usage() == 0)

    def _run(self) -> None:
        if self.brake.runs:
            self._table.sets[self._at] = min(self._wanted, self.brake.limit)


class Real:
    """A puppet in a cgroup."""

    def __init__(self, stack: ExitStack, state: Path) -> None:
        self._stand = stack.enter_context(stand(state))
        if not V2 and self._stand.freezer is None:
            pytest.skip("cgroup v1's freezer is not mounted, and cannot be")
        self._puppet = stack.enter_context(self._stand.puppet())
        self.version, self.brake = 2 if V2 else 1, self._stand.brake()
        stack.callback(self.brake.close)  # frozen the puppet does not end

    def set_limit(self, own: int) -> None:
        cgroupfs.set_limit(self._stand.pod, own)

    def files(self) -> list[str]:
        found = self._stand.files()
        return [found[LIMIT_FILE].strip(), found[COMPANION].split()[-1]]

    def take(self, mib: int) -> None:
        self._puppet.tell(f"anon({mib})")

    def comes_to(self, size: int) -> None:
        live.until(lambda: (self.brake.usage() or 0) >= size - MIB // 2, "the pod to take memory")

    def has_all(self) -> bool:
        return self._puppet.answer() == "done"

    def kill(self) -> None:
        self._puppet.process.kill()

    def is_gone(self) -> bool:
        live.until(lambda: not live.alive(self._puppet.pid), "it to end")
        return True


KERNEL = pytest.mark.kernel
AT_CAP = pytest.mark.skipif(V2, reason="cgroup v2 kills at the cap")
#: Of a pod that waits where it comes to its cap.
of_v1 = pytest.mark.parametrize("pod", ["simulated, v1", pytest.param("kernel", marks=[KERNEL, AT_CAP])], indirect=True)


@pytest.fixture(params=["simulated, v1", "simulated, v2", pytest.param("kernel", marks=KERNEL)])
def pod(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Simulated | Real]:
    with ExitStack() as stack:
        yield Real(stack, tmp_path) if request.param == "kernel" else Simulated(tmp_path, int(request.param[-1]))


def test_a_frozen_pod_takes_nothing_and_all_when_it_is_released(pod: Simulated | Real) -> None:
    before, usage = pod.files(), pod.brake.usage()
    braked = pod.brake.apply(usage + 8 * MIB)
    assert (pod.brake.is_held, pod.brake.is_capped, pod.brake.in_force()) == (True, True, True)
    assert pod.files() == [str(braked.cap), "1"]
    assert pod.brake.usage() + ROOM - PAGE <= braked.cap <= usage + 8 * MIB
    pod.take(20)
    assert pod.brake.usage() <= braked.cap
    pod.brake.release()
    assert pod.has_all()
    assert (pod.brake.is_held, pod.files()) == (False, before)


def test_a_cap_is_at_least_a_little_above_its_usage(pod: Simulated | Real) -> None:
    before, braked = pod.brake.usage(), pod.brake.apply(0)
    # Others that are charged on its CPU take what that has in stock for the pod.
    assert pod.brake.usage() + ROOM - PAGE <= braked.cap <= max(before, pod.brake.usage()) + ROOM


def test_a_pod_that_is_killed_while_it_is_frozen_gives_back_when_it_is_let_run(pod: Simulated | Real) -> None:
    pod.take(8)
    assert pod.has_all()
    pod.brake.apply(0)
    pod.kill()
    pod.brake.thaw()
    assert pod.is_gone()


@of_v1
def test_a_pod_at_its_cap_gets_no_more_when_it_is_stopped_again(pod: Simulated | Real) -> None:
    """Thawed for a SIGKILL of its own again and again it had 1 MiB more each time."""
    before, first = pod.files(), pod.brake.apply(0)
    pod.brake.thaw()
    pod.take(20)
    pod.comes_to(first.cap)
    for cap in (0, first.cap, first.cap + 2048):  # a policy's cap is no whole page
        assert pod.brake.apply(cap).cap == first.cap
    has = pod.brake.usage()
    assert pod.brake.loosen(first.cap).cap > has + MIB // 2, "what has to run needs some, and takes it at once"
    pod.brake.release()
    assert pod.has_all()
    assert pod.files() == before


@of_v1
def test_a_limit_of_its_own_that_is_lower_than_the_cap_is_one(pod: Simulated | Real) -> None:
    own = (pod.brake.usage() + 16 * MIB) // PAGE * PAGE
    pod.set_limit(own)
    before = pod.files()
    assert (pod.brake.apply(own + 16 * MIB).cap, pod.brake.is_capped) == (own, True)
    pod.brake.thaw()
    pod.take(8)
    assert pod.has_all()
    pod.brake.release()
    assert pod.files() == before
