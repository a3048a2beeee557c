"""What the kernel says of its memory, beside the counters."""

from __future__ import annotations

from pathlib import Path

import pytest

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
