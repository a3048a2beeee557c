"""Holds on cgroup v2 where the kernel would panic at a cap (vm.panic_on_oom=2): the hot process without a kernel.

The brake is a stand-in here; the files of a real one are in tests/hold/test_hold_uncapped.py.
"""

from pathlib import Path
from typing import Any

import pytest

from monitor.cli.run import _announce
from monitor.hold.pod_brake import Braked, panics_at_cap
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.link.messages import KubeletEviction, PodHeld, PodReleased, Soften, Softened
from monitor.pods.spec import Choice
from monitor.policy.hold import FIGURES_NS
from monitor.settings.config import RunConfig
from tests.daemon.hold_world import ABOVE, HOG, grown, look_later, reported
from tests.daemon.hold_world import world as world
from tests.hold.plain import panic_on_oom
from tests.replay.stand_ins import StandInBrake
from tests.replay.world import MIB, SECOND, World


@pytest.fixture(autouse=True)
def sysctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with_cap = StandInBrake._brake

    def brake(self: StandInBrake, how: str, cap: int) -> Braked:
        made = with_cap(self, how, cap)
        self.is_capped = not panics_at_cap(2)
        return made if self.is_capped else Braked("high+freeze" if how == "apply" else "high", 0)

    monkeypatch.setattr(StandInBrake, "_brake", brake)
    return panic_on_oom(tmp_path, monkeypatch, "2")


def done(world: World) -> list[str]:
    """What was done to the hog's brake."""
    return [how for how, _ in world.brakes[HOG].log]


def test_a_cap_is_removed_at_the_next_check(world: World, sysctl: Path) -> None:
    sysctl.write_text("0")
    grown(world, 301, 99)
    assert [(one.brake, one.cap > 0) for one in reported(world, PodHeld)] == [("limit+freeze", True)]
    sysctl.write_text("2")
    look_later(world, SECOND // 10)
    assert [(one.brake, one.cap) for one in reported(world, PodHeld)[1:]] == [("high+freeze", 0)]
    look_later(world, SECOND // 10)
    assert (done(world), world.sent) == (["apply", "apply"], [])


def test_no_pod_crosses_the_kubelets_line(world: World) -> None:
    """Running, nothing would bound it. It stays frozen above the line, until the time limit."""
    grown(world, 286, ABOVE)
    look_later(world, FIGURES_NS)
    assert reported(world, PodHeld)[-1].step == "across"
    assert done(world) == ["apply", "apply"]
    look_later(world, world.holds.rules.limit_ns)
    assert [(one.pod, one.why) for one in reported(world, PodReleased)] == [(HOG, "time_limit")]
    assert world.sent == []


def test_a_pod_runs_through_its_grace_only_while_the_helper_slows_it(world: World) -> None:
    grown(world, 301, 99)
    world.tell(KubeletEviction(HOG, for_memory=True))
    [soften] = reported(world, Soften)
    assert soften.cap > 301 * MIB, "0 would be a share without end"
    world.tell(Softened(1, HOG, 200 * MIB))
    assert (done(world)[-1], reported(world, PodHeld)[-1].brake) == ("thaw", "high")
    held = world.holds._holds[HOG]
    world.holds._put_in_force(held, held.pod)
    assert done(world)[-1] == "loosen"
    world.decider.helper_lost()  # the next one undoes what this one set, before it reports
    assert done(world)[-1] == "apply"
    world.holds.report_all()
    assert done(world)[-1] == "apply"
    world.tell(Softened(1, HOG, 200 * MIB))
    assert done(world)[-1] == "thaw"


def test_one_that_the_helper_has_not_slowed_yet_does_not_run(world: World) -> None:
    grown(world, 286, ABOVE)
    world.tell(KubeletEviction(HOG, for_memory=False))
    look_later(world, FIGURES_NS)
    assert world.brakes[HOG].high_is_left
    assert set(done(world)) == {"apply"}


@pytest.mark.parametrize(
    ("options", "version", "value", "warned"),
    [
        ({"enforce": True, "hold": True}, 2, "2", 1),
        ({"enforce": True, "hard_grace_ns": SECOND}, 2, "2", 1),
        ({"enforce": True}, 2, "2", 0),
        ({"enforce": True, "hold": True}, 2, "1", 0),
        ({"enforce": True, "hold": True}, 1, "2", 0),
    ],
)
def test_a_start_warns_of_it(
    sysctl: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    options: dict[str, Any],
    version: int,
    value: str,
    warned: int,
) -> None:
    sysctl.write_text(value)
    monkeypatch.setattr(cgroupfs, "detect", lambda: Hierarchy(version, Path("/x")))
    _announce(RunConfig(**options), Choice("cgroups", "as given"), False)
    assert "".join(capfd.readouterr()).count("vm.panic_on_oom=2") == warned
