"""What can go wrong around a hold: locks, runtimes, probes, children, the monitor itself. See docs/hold.md."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from monitor.actions.changes import RESTORED
from monitor.hold.pod_brake import FREEZE
from monitor.kernel import cgroupfs
from tests import live
from tests.commands import run
from tests.hold.braked import AUTO, FREEZE_FILE, LIMIT_FILE, MIB, V2, Stand

pytestmark = [pytest.mark.kernel, pytest.mark.oldest]


def freezes(stand: Stand) -> Path:
    """The pod's cgroup where it is frozen."""
    if stand.freezer is None:
        pytest.skip("cgroup v1's freezer is not mounted, and cannot be")
    return stand.freezer


def frozen(cgroup: Path) -> bool:
    """Whether this very cgroup was told to freeze."""
    return (cgroup / ("cgroup.freeze" if V2 else "freezer.self_freezing")).read_text().strip() == "1"


def set_frozen(cgroup: Path, wanted: bool) -> None:
    words = ("0", "1") if V2 else ("THAWED", "FROZEN")
    (cgroup / FREEZE_FILE).write_text(words[wanted])


def test_a_pod_that_somebody_else_froze_stays_frozen(held: Stand) -> None:
    """`docker pause`, a checkpoint, `runc update` on cgroup v1."""
    pod = freezes(held)
    with held.puppet() as puppet:
        set_frozen(pod, True)
        before = held.files()
        for kind in (AUTO, FREEZE):
            brake = held.brake(kind)
            braked = brake.apply(64 * MIB)
            assert braked is not None
            assert brake.in_force()
            brake.close()
            assert frozen(pod)
            assert held.files() == before
        set_frozen(pod, False)
        puppet.do("pass")


def test_a_runtime_that_thaws_a_held_pod_is_noticed_and_it_is_frozen_again(held: Stand) -> None:
    pod = freezes(held)
    with held.puppet() as puppet:
        brake = held.brake(FREEZE)
        assert brake.apply(64 * MIB) is not None
        assert brake.in_force()
        set_frozen(pod, False)
        assert not brake.in_force()
        puppet.do("pass")
        assert brake.apply(64 * MIB) is not None
        assert frozen(pod)
        assert brake.release() == [(FREEZE_FILE, RESTORED)]
        puppet.do("pass")
        brake.close()


def test_a_container_that_is_frozen_during_a_hold_is_left_to_its_runtime(held: Stand) -> None:
    pod = freezes(held)
    with held.puppet("container") as puppet:
        container = pod / "container"
        (held.pod / "container" / LIMIT_FILE).write_text(str(96 * MIB))
        brake = held.brake(FREEZE)
        assert brake.apply(64 * MIB) is not None
        set_frozen(container, True)  # the runtime updates it: freezes, writes, thaws
        (held.pod / "container" / LIMIT_FILE).write_text(str(80 * MIB))
        brake.release()
        assert frozen(container)
        assert (held.pod / "container" / LIMIT_FILE).read_text().strip() == str(80 * MIB)
        set_frozen(container, False)
        puppet.do("pass")
        brake.close()


def test_the_monitors_own_cgroup_is_never_held(held: Stand) -> None:
    """Nor one that something runs in that started it."""
    script = (
        "import os, sys; from pathlib import Path; from monitor.actions.ledger import Ledger\n"
        "from monitor.hold.pod_brake import PodBrake; from monitor.kernel import cgroupfs\n"
        "pod = Path(sys.argv[2]); Path(pod / 'inner/cgroup.procs').write_text('0')\n"
        "brake = PodBrake('uid', pod, cgroupfs.detect(), Ledger(Path(sys.argv[1])))\n"
        "print(brake.problem, brake.kind, brake.apply(1 << 30), brake.is_held, sep='|')"
    )
    cgroupfs.make(held.pod / "inner")
    before = held.files()
    done = run(sys.executable, "-c", script, held.state, held.pod, env=live.environment(), check=True)
    assert done.stdout.strip() == "outrace or what started it runs in it||None|False"
    assert held.files() == before
