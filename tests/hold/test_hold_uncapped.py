"""vm.panic_on_oom=2: on cgroup v2 the kernel would panic at the cap of a held pod, so none is held. On plain files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.cli import doctor
from monitor.cli.run import _announce
from monitor.hold.brakes import ENDED, Hold, HoldBrakes
from monitor.hold.pod_brake import PANICS, panics_at_cap
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.spec import Choice
from monitor.policy.hold import Pod
from monitor.settings.config import RunConfig
from tests.hold.plain import MIB, PlainPod, panic_on_oom
from tests.hold.plain import pod as pod


@pytest.fixture
def sysctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return panic_on_oom(tmp_path, monkeypatch, "2")


def values(pod: PlainPod) -> tuple[str, ...]:
    names = ("memory.max", "memory.oom.group", "memory.high", "cgroup.freeze")
    return tuple((pod.path / name).read_text().strip() for name in names)


@pytest.mark.parametrize(
    ("version", "value", "panics"),
    [
        *((2, value, panics) for value, panics in (("0", False), ("1", False), ("2", True), ("", True), ("x", True))),
        *((1, value, False) for value in ("2", "")),
    ],
)
def test_where_the_kernel_panics_at_a_cap_the_doctor_has_it(
    sysctl: Path, monkeypatch: pytest.MonkeyPatch, version: int, value: str, panics: bool
) -> None:
    """With 1 only where the machine runs out of memory. What cannot be read may be 2."""
    sysctl.write_text(value)
    monkeypatch.setattr(cgroupfs, "detect", lambda: Hierarchy(version, Path("/x")))
    assert panics_at_cap(version) is panics
    (check,) = doctor._panic_on_oom()
    assert (check.name, check.ok, check.required, check.bpf) == ("panic-on-oom", not panics, False, False)
    assert check.detail.startswith(f"vm.panic_on_oom {f'is {value}' if value.isdigit() else 'cannot be read'}")
    assert check.remedy == ("sysctl vm.panic_on_oom=0" if panics else "")
    sysctl.unlink()
    assert panics_at_cap(version) is (version == 2)


def test_no_pod_is_held_where_it_is_set_and_a_held_one_is_released(sysctl: Path, pod: PlainPod) -> None:
    free = values(pod)
    (pod.path / "cgroup.procs").write_text("1\n")
    brakes = HoldBrakes(pod.hierarchy, pod.journal)
    entry: Any = SimpleNamespace(uid="uid", cgroup=pod.path)
    held = Hold(1, entry, Pod("uid", "", 0, 0, 96 * MIB), 0, entry)
    assert brakes.of(entry).problem == PANICS
    assert not brakes.apply(held, held.pod, runs=False)
    sysctl.write_text("0\n")
    brakes.of(entry).refresh()
    assert brakes.apply(held, held.pod, runs=False)
    assert values(pod) != free
    sysctl.write_text("2\n")
    assert brakes.look_after(entry) == ENDED
    assert not brakes.apply(held, held.pod, runs=False)
    assert (values(pod), pod.is_noted) == (free, False)
    brakes.drop("uid")


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"enforce": True, "hold": True}, 1),
        ({"enforce": True, "hard_grace_ns": 1}, 1),
        ({"enforce": True}, 0),
    ],
)
def test_a_start_that_would_hold_warns_of_it(
    sysctl: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    options: dict[str, Any],
    warned: int,
) -> None:
    for version, value, lines in ((2, "2", warned), (2, "1", 0), (1, "2", 0)):
        monkeypatch.setattr(cgroupfs, "detect", lambda v=version: Hierarchy(v, Path("/x")))
        sysctl.write_text(value)
        _announce(RunConfig(**options), Choice("cgroups", "as given"), False)
        assert "".join(capfd.readouterr()).count("vm.panic_on_oom=2") == lines
