"""Limits and swap of a memory cgroup: from the files of either version, of real cgroups, and when one goes."""

from pathlib import Path

import pytest

from monitor.kernel import cgroupfs, limits, meminfo
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.limits import EVERYTHING, read
from tests import live
from tests.limited import MIB, UNLIMITED, write
from tests.puppet import cgroup

V1 = {"memory.limit_in_bytes": 64 * MIB, "memory.usage_in_bytes": 10 * MIB}
NAMES = ("min", "low", "high", "max", "swap.max", "swap.current")
MEMSW, USED, SOFT = "memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", "memory.soft_limit_in_bytes"


@pytest.mark.parametrize(
    ("version", "files", "found"),
    [
        (
            2,
            {f"memory.{name}": n for n, name in enumerate(NAMES, 1)},
            dict(zip(("min", "low", "high", "max", "swap_max", "swap"), range(1, 7), strict=True)),
        ),
        (2, {"memory.min": 0, "memory.low": 0, "memory.high": "max", "memory.max": "max"}, {}),
        # A protection of 0 is none. A limit of 0 is one, and the hardest.
        (2, {"memory.high": 0, "memory.max": 0, "memory.swap.max": 0}, {"high": 0, "max": 0, "swap_max": 0}),
        (2, {"memory.min": "max", "memory.low": "max", "memory.max": "max"}, {"min": EVERYTHING, "low": EVERYTHING}),
        (2, {"memory.swap.max": "max", "memory.swap.current": 0}, {"swap": 0}),
        (2, {"memory.high": "", "memory.max": "many"}, {}),
        (1, V1, {"max": 64 * MIB}),  # swapaccount=0
        (
            1,
            {**V1, MEMSW: 80 * MIB, USED: 13 * MIB, SOFT: 32 * MIB},
            {"max": 64 * MIB, "swap_max": 16 * MIB, "soft": 32 * MIB, "swap": 3 * MIB},
        ),
        # What is read first is older: memory may have been charged meanwhile.
        (1, {**V1, USED: 9 * MIB}, {"max": 64 * MIB, "swap": 0}),
        (1, {**V1, MEMSW: UNLIMITED}, {"max": 64 * MIB}),
        (1, {"memory.limit_in_bytes": UNLIMITED, SOFT: UNLIMITED}, {}),
        (1, {**V1, "memory.high": MIB}, {"max": 64 * MIB}),  # a file of the other version means nothing
    ],
)
def test_the_files_of_a_cgroup(
    tmp_path: Path, version: int, files: dict[str, int | str], found: dict[str, int]
) -> None:
    hierarchy, path = Hierarchy(version, tmp_path), write(tmp_path / "pod", files)
    assert read(hierarchy, path) == found
    assert read(hierarchy, path, swap=False) == {name: n for name, n in found.items() if name != "swap"}


@pytest.mark.parametrize("version", [1, 2])
def test_the_root_has_the_machines_swap_and_no_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    write(tmp_path, {**V1, "memory.memsw.usage_in_bytes": 99 * MIB, "memory.soft_limit_in_bytes": MIB})
    values = {"MemTotal": 1, "SwapTotal": 8 * MIB, "SwapFree": 5 * MIB}
    monkeypatch.setattr(meminfo, "read", lambda: values)
    hierarchy = Hierarchy(version, tmp_path)
    assert read(hierarchy, tmp_path) == {"swap": 3 * MIB}
    assert read(hierarchy, tmp_path, swap=False) == {}
    values["SwapTotal"] = 0
    assert read(hierarchy, tmp_path) == {}


def test_a_cgroup_without_any_file_is_not_one_that_is_gone(tmp_path: Path) -> None:
    hierarchy = Hierarchy(2, tmp_path)
    assert read(hierarchy, write(tmp_path / "bare", {})) == {}
    assert read(hierarchy, tmp_path / "gone") is None
    assert read(hierarchy, write(tmp_path / "pod", {}) / "cgroup.procs") is None  # no directory at all


pod = live.fixture(cgroup, "limits")


@pytest.mark.kernel
@pytest.mark.parametrize("before", [0, 1, 2], ids=["first file", "second file", "third file"])
def test_a_real_cgroup_that_is_removed_while_it_is_read(
    pod: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    hierarchy = cgroupfs.detect()
    inner = cgroupfs.make(pod / "inner")
    real, calls = limits.number, 0

    def number(*arguments: object) -> int | None:
        nonlocal calls
        if calls == before:
            inner.rmdir()
        calls += 1
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(limits, "number", number)
    assert read(hierarchy, inner) is None  # whatever was read of it: the rest would look as if it were not set
    assert calls > before
