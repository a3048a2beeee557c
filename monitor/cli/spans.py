"""Text for a screen of a given width: lines of styled spans, in which every character takes one column.

Names of pods, services and processes are chosen by others. Here all but printable ASCII becomes an escape: nothing in
a name moves the cursor, turns text around, or takes two columns or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """``style`` is one of `monitor.cli.top_live` (`_COLOURS`, `_PLAIN`), "" for plain text."""

    text: str
    style: str = ""


Line = Sequence[Span]

#: In the place of what was cut out.
CUT = "~"


def plain(text: object) -> str:
    """The text in printable ASCII, all else as escapes: `\\x1b`, `\\u202e`."""
    found = str(text)
    if found.isascii() and found.isprintable():
        return found
    return "".join(c if " " <= c <= "~" else c.encode("unicode_escape", "surrogatepass").decode() for c in found)


def line(*parts: Span | str) -> list[Span]:
    """A line of spans, `plain` all of them."""
    spans = (part if isinstance(part, Span) else Span(part) for part in parts)
    return [Span(plain(span.text), span.style) for span in spans]


def width_of(spans: Line) -> int:
    return sum(len(span.text) for span in spans)


def text_of(spans: Line) -> str:
    return "".join(span.text for span in spans)


def clip(spans: Line, width: int) -> list[Span]:
    """What fits into ``width`` columns; a line that is cut ends in `CUT`."""
    if width_of(spans) <= width:
        return list(spans)
    kept: list[Span] = []
    left = width - len(CUT)
    for span in spans:
        if left <= 0:
            break
        kept.append(Span(span.text[:left], span.style))
        left -= len(kept[-1].text)
    return [*kept, Span(CUT[:width])]


def shorten(text: str, width: int) -> str:
    """The beginning and the end of a name: the end tells apart the pods of a deployment."""
    if len(text) <= width:
        return text
    if width < 2:
        return CUT[:width]
    head = (width - len(CUT)) // 2
    return text[:head] + CUT + text[len(text) - (width - len(CUT) - head) :]
