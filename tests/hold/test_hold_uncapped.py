"""A pod of cgroup v2 that is held where the kernel would panic at its cap (vm.panic_on_oom=2), of plain files."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.cli import doctor
from monitor.hold.pod_brake import ROOM, Braked, panics_at_cap
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from tests.hold.plain import MIB, PlainPod, panic_on_oom
from tests.hold.plain import pod as pod

CAP = 96 * MIB
#: Of a pod that is held: memory.max, memory.oom.group, memory.high, cgroup.freeze.
FREE = ("max", "0", "max", "0")
CAPPED = (str(CAP), "1", str(64 * MIB + ROOM), "1")
UNCAPPED = ("max", "0", str(64 * MIB + ROOM), "1")


@pytest.fixture
def sysctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return panic_on_oom(tmp_path, monkeypatch, "2")


def values(pod: PlainPod) -> tuple[str, ...]:
    names = ("memory.max", "memory.oom.group", "memory.high", "cgroup.freeze")
    return tuple((pod.path / name).read_text().strip() for name in names)


@pytest.mark.parametrize(("value", "panics"), [("0", False), ("1", False), ("2", True), ("", True), ("x", True)])
def test_where_the_kernel_panics_at_a_cap(sysctl: Path, value: str, panics: bool) -> None:
    """With 1 only where the machine runs out of memory. What cannot be read may be 2."""
    sysctl.write_text(value)
    assert (panics_at_cap(1), panics_at_cap(2)) == (False, panics)
    sysctl.unlink()
    assert panics_at_cap(2)


def test_a_pod_is_frozen_without_a_cap(sysctl: Path, pod: PlainPod) -> None:
    brake = pod.brake()
    assert brake.apply(CAP) == Braked("high+freeze", 0)
    assert values(pod) == UNCAPPED
    assert (brake.is_held, brake.is_capped, brake.in_force()) == (True, False, True)
    brake.release()
    assert (values(pod), pod.is_noted) == (FREE, False)


def test_one_that_has_a_cap_loses_it_when_it_is_set(sysctl: Path, pod: PlainPod) -> None:
    sysctl.write_text("0\n")
    brake = pod.brake()
    assert brake.apply(CAP) == Braked("limit+high+freeze", CAP)
    assert values(pod) == CAPPED
    sysctl.write_text("2\n")
    assert brake.apply(CAP) == Braked("high+freeze", 0)
    assert values(pod) == UNCAPPED
    sysctl.write_text("0\n")
    assert brake.apply(CAP) == Braked("limit+high+freeze", CAP)
    brake.release()
    assert (values(pod), pod.is_noted) == (FREE, False)


def test_the_next_hot_process_removes_the_cap(sysctl: Path, pod: PlainPod) -> None:
    sysctl.write_text("0\n")
    first = pod.brake()
    assert first.apply(CAP) is not None
    sysctl.write_text("2\n")
    brake = pod.brake_of_the_next()
    assert brake.apply(CAP) == Braked("high+freeze", 0)
    assert values(pod) == UNCAPPED
    pod.undo()
    assert (values(pod), pod.is_noted) == (FREE, False)


def test_one_that_nothing_bounds_is_not_held(sysctl: Path, pod: PlainPod) -> None:
    brake = pod.brake()
    assert brake.apply(CAP) is not None
    assert brake.loosen(CAP) is None
    assert (values(pod), pod.is_noted, brake.is_held) == (FREE, False, False)


def test_one_that_the_helper_slows_runs_on_through_its_grace(sysctl: Path, pod: PlainPod) -> None:
    sysctl.write_text("0\n")
    brake = pod.brake()
    assert brake.apply(CAP) is not None
    brake.high_is_left, pod.high = True, str(40 * MIB)
    brake.thaw()
    sysctl.write_text("2\n")
    assert brake.loosen(CAP) == Braked("high", 0)
    assert values(pod) == ("max", "0", str(40 * MIB), "0")
    assert (brake.is_held, brake.is_capped, brake.in_force()) == (True, False, True)


@pytest.mark.parametrize(("version", "value", "ok"), [(2, "2", False), (2, "0", True), (1, "2", True)])
def test_the_doctor_has_it(sysctl: Path, monkeypatch: pytest.MonkeyPatch, version: int, value: str, ok: bool) -> None:
    sysctl.write_text(value)
    monkeypatch.setattr(cgroupfs, "detect", lambda: Hierarchy(version, Path("/x")))
    (check,) = doctor._panic_on_oom()
    assert (check.name, check.ok, check.required, check.bpf) == ("panic-on-oom", ok, False, False)
    assert check.detail.startswith(f"vm.panic_on_oom is {value}")
    assert check.remedy == ("" if ok else "sysctl vm.panic_on_oom=0")
    sysctl.unlink()
    (check,) = doctor._panic_on_oom()
    assert (check.detail.startswith("vm.panic_on_oom cannot be read"), check.ok) == (True, version == 1)
