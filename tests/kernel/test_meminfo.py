"""What the kernel reports of its memory, beside the counters."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import CannotError
from monitor.kernel import meminfo
from monitor.kernel.meminfo import multi_gen_lru
from tests import live
from tests.commands import run


@pytest.mark.parametrize(
    ("text", "on"), [("0x0007\n", True), ("0x0001\n", True), ("0x0006\n", False), ("?", False), (None, False)]
)
def test_generations_are_on_by_the_lowest_bit(tmp_path: Path, text: str | None, on: bool) -> None:
    if text is not None:
        (tmp_path / "enabled").write_text(text)
    assert multi_gen_lru(tmp_path / "enabled") is on


#: A VM of 1 GiB with Linux 6.12 after its start; the OOM killer came there with 103 MiB "available".
VM = (
    "MemTotal: 989872 kB\nMemFree: 860804 kB\nActive: 75444 kB\nInactive: 8888 kB\nUnevictable: 0 kB\n"
    "SReclaimable: 7344 kB\nSUnreclaim: 18036 kB\n"
)
VM_KEEPS = 989872 - 860804 - 75444 - 8888 - 7344
#: Free pages on the lists of CPUs are free.
ZONES = (
    "Node 0, zone    DMA32\n  pages free     2000\n    cpu: 0\n              count: 100\n              high:  7\n"
    "    cpu: 1\n              count: 50\n              count:\n"
)
HELD = "MemTotal: 8388608 kB\nMemFree: 2097152 kB\nActive: 2097152 kB\n"


@pytest.mark.parametrize(
    ("text", "more", "kib"),
    [
        (VM, {"min_free_kbytes": "45056\n"}, VM_KEEPS + 45056),
        (VM, {}, VM_KEEPS),
        ("MemTotal: 9000 kB\nMemFree: 8000 kB\n", {"zoneinfo": ZONES}, 1000 - 150 * os.sysconf("SC_PAGE_SIZE") // 1024),
        # The lines of the file are not of one moment.
        ("MemTotal: 1000 kB\nMemFree: 900 kB\nActive: 200 kB\nInactive: 0 kB\n", {}, 0),
        # 4 GiB in the ARC of ZFS are no reason to evict at 4 GiB available; 2 GiB set aside as huge pages are gone.
        (HELD, {}, (512 + 64) << 10),
        (f"{HELD}Hugetlb: 2097152 kB\n", {}, (2048 + 512 + 64) << 10),
    ],
    ids=["least free", "without", "lists of CPUs", "never negative", "much", "huge pages"],
)
def test_what_the_kernel_keeps_no_process_can_get(tmp_path: Path, text: str, more: dict[str, str], kib: int) -> None:
    for name, content in {"meminfo": text, **more}.items():
        (tmp_path / name).write_text(content)
    paths = [tmp_path / name for name in ("meminfo", "min_free_kbytes", "zoneinfo")]
    assert meminfo.kernels_share(*paths) == kib << 10
    apart = 2048 << 10 if "Hugetlb" in text else 0  # where the capacity is without them, the kernel's share is too
    assert meminfo.kernels_share(*paths, huge_pages_apart=True) == kib - apart << 10


def test_huge_pages_of_another_machine_are_none_of_this_one(tmp_path: Path) -> None:
    """As in a container with lxcfs."""
    total = meminfo.mem_total()
    for size, huge in ((total, 2 << 20), (total // 2, 0)):
        (tmp_path / "meminfo").write_text(f"MemTotal: {size >> 10} kB\nHugetlb: 2048 kB\n")
        assert meminfo.MemTotal(tmp_path / "meminfo").huge_pages() == huge


def test_meminfo_is_bytes_and_skips_what_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\n")
    with pytest.raises(CannotError, match="meminfo has no MemTotal"):
        meminfo.mem_total(tmp_path / "meminfo")
    text = "MemTotal:       24083008 kB\nHugePages_Total:       3\nOdd line\nNew: many kB\nPages: 5 furlongs\nEmpty:\n"
    assert meminfo.parse(text) == {"MemTotal": 24083008 * 1024, "HugePages_Total": 3}


@given(st.text())
def test_meminfo_parses_anything(text: str) -> None:
    assert all(isinstance(v, int) and v >= 0 for v in meminfo.parse(text).values())


def test_in_a_container_with_a_meminfo_of_its_own_the_kernel_keeps_nothing(tmp_path: Path) -> None:
    """lxcfs (src/proc_fuse.c) has the container's MemTotal and lists beside the machine's huge pages: all of its pods
    would be below a threshold of 64 GiB.
    """
    (tmp_path / "meminfo").write_text("MemTotal: 524288 kB\nMemFree: 500000 kB\nHugetlb: 67108864 kB\n")
    code = "from monitor.kernel import meminfo; print(meminfo.mem_total(), meminfo.kernels_share())"
    script = 'mount --bind "$1" /proc/meminfo && exec "$2" -c "$3"'
    command = ("unshare", "--mount", "sh", "-c", script, "sh", tmp_path / "meminfo", sys.executable, code)
    done = run(*command, env={**os.environ, **live.PYTHONPATH})
    if done.returncode and not done.stdout:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.stdout == f"{512 << 20} 0\n", done.stderr


def test_this_kernel_keeps_something_and_not_most() -> None:
    assert 0 < meminfo.kernels_share() < meminfo.mem_total() / 2


@pytest.mark.parametrize(
    ("swap", "free", "available", "expected"),
    [
        (100, 10, 50, (0.9, 102400)),
        (100, 10, 400, (0.6, 102400)),  # memory is free
        (0, 0, 50, None),
        (100, None, 50, None),
        (100, 10, None, None),
    ],
)
def test_swap_in_use_is_no_more_than_memory_in_use_and_not_known_without_swap(
    tmp_path: Path, swap: int, free: int | None, available: int | None, expected: tuple[float, int] | None
) -> None:
    text = f"MemTotal: 1000 kB\nSwapTotal: {swap} kB\n"
    text += "" if free is None else f"SwapFree: {free} kB\n"
    text += "" if available is None else f"MemAvailable: {available} kB\n"
    (tmp_path / "meminfo").write_text(text)
    assert meminfo.swap_in_use(tmp_path / "meminfo") == expected
    assert meminfo.swap_in_use(tmp_path / "none") is None
