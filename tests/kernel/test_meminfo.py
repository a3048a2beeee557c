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
    ("text", "on"),
    [("0x0007\n", True), ("0x0001\n", True), ("0x0000\n", False), ("0x0006\n", False), ("", False), ("?", False)],
)
def test_generations_are_on_by_the_lowest_bit(tmp_path: Path, text: str, on: bool) -> None:
    (tmp_path / "enabled").write_text(text)
    assert multi_gen_lru(tmp_path / "enabled") is on


def test_a_kernel_without_them_has_lists(tmp_path: Path) -> None:
    assert not multi_gen_lru(tmp_path / "missing")


def test_meminfo_is_bytes_and_skips_what_it_does_not_know() -> None:
    text = "MemTotal:       24083008 kB\nHugePages_Total:       3\nOdd line\nNew: many kB\nPages: 5 furlongs\nEmpty:\n"
    assert meminfo.parse(text) == {"MemTotal": 24083008 * 1024, "HugePages_Total": 3}


@given(st.text())
def test_meminfo_parses_anything(text: str) -> None:
    assert all(isinstance(v, int) and v >= 0 for v in meminfo.parse(text).values())


def test_meminfo_without_memtotal_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\n")
    with pytest.raises(CannotError, match="meminfo has no MemTotal"):
        meminfo.mem_total(tmp_path / "meminfo")


@pytest.mark.parametrize(("line", "huge"), [("Hugetlb:  4194304 kB\n", 4 << 30), ("", 0)])  # none is built in
def test_memory_in_huge_pages(tmp_path: Path, line: str, huge: int) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 8388608 kB\nHugePages_Total: 2048\n{line}")
    assert meminfo.huge_pages(tmp_path / "meminfo") == huge


def test_what_the_kernel_keeps_is_what_no_process_can_get(tmp_path: Path) -> None:
    """A VM of 1 GiB with Linux 6.12 after its start; the OOM killer came there with 103 MiB "available"."""
    (tmp_path / "meminfo").write_text(
        "MemTotal: 989872 kB\nMemFree: 860804 kB\nActive: 75444 kB\nInactive: 8888 kB\nUnevictable: 0 kB\n"
        "SReclaimable: 7344 kB\nSUnreclaim: 18036 kB\n"
    )
    (tmp_path / "min_free_kbytes").write_text("45056\n")
    found = meminfo.kernels_share(tmp_path / "meminfo", tmp_path / "min_free_kbytes", tmp_path / "none")
    assert found == (989872 - 860804 - 75444 - 8888 - 7344 + 45056) << 10
    assert meminfo.kernels_share(tmp_path / "meminfo", tmp_path / "none", tmp_path / "none") == found - (45056 << 10)


def test_free_pages_on_the_lists_of_cpus_are_free(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemFree: 8000 kB\n")
    (tmp_path / "zoneinfo").write_text(
        "Node 0, zone    DMA32\n  pages free     2000\n    cpu: 0\n              count: 100\n              high:  7\n"
        "    cpu: 1\n              count: 50\n              count:\n"
    )
    share = meminfo.kernels_share(tmp_path / "meminfo", tmp_path / "none", tmp_path / "zoneinfo")
    assert share == (1000 << 10) - 150 * os.sysconf("SC_PAGE_SIZE")


def test_what_the_kernel_keeps_is_never_less_than_nothing(tmp_path: Path) -> None:
    """The lines of the file are not of one moment."""
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 900 kB\nActive: 200 kB\nInactive: 0 kB\n")
    assert meminfo.kernels_share(tmp_path / "meminfo", tmp_path / "none", tmp_path / "none") == 0


def test_a_kernel_that_holds_much_may_give_it_back_but_huge_pages_it_does_not(tmp_path: Path) -> None:
    """4 GiB in the ARC of ZFS are no reason to evict at 4 GiB available; 2 GiB set aside as huge pages are gone."""
    meminfo_file = tmp_path / "meminfo"
    meminfo_file.write_text("MemTotal: 8388608 kB\nMemFree: 2097152 kB\nActive: 2097152 kB\n")
    assert meminfo.kernels_share(meminfo_file, tmp_path / "none", tmp_path / "none") == (512 + 64) << 20
    meminfo_file.write_text(meminfo_file.read_text() + "Hugetlb: 2097152 kB\n")
    assert meminfo.kernels_share(meminfo_file, tmp_path / "none", tmp_path / "none") == (2048 + 512 + 64) << 20


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
