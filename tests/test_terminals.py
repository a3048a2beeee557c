"""The terminal of the tests: what ncurses sends rarely, when it scrolls several lines at once."""

import pytest

from tests.terminals import Screen


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        (b"\x1b[2S", ["a", "d", "", "", "e"]),
        (b"\x1b[T", ["a", "", "b", "c", "e"]),
        (b"\x1b[9S", ["a", "", "", "", "e"]),
        (b"\x1b[9T", ["a", "", "", "", "e"]),
    ],
)
def test_the_region_scrolls(sequence: bytes, expected: list[str]) -> None:
    screen = Screen(8, 5)
    screen.feed(b"a\r\nb\r\nc\r\nd\r\ne\x1b[2;4r" + sequence)
    assert screen.lines == expected
