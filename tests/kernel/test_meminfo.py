"""What the kernel says of its memory, beside the counters."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import CannotError
from monitor.kernel import meminfo
from monitor.kernel.meminfo import multi_gen_lru


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
