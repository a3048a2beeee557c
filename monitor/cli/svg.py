"""HTML and SVG: elements in which every text and every attribute is escaped, and the parts of a chart in one look.

For the page of an incident and for the picture of the README. A process may call itself `<script>`. So text becomes
markup in one place only, `element`, and what is markup already has a type of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from monitor.cli.output import clean

#: Elements that HTML closes by itself.
_VOID = frozenset({"meta"})


class Markup(str):
    """What `element` made, or a constant of this program: never anything from a record."""

    __slots__ = ()


def element(name: str, /, *inside: str | float, **attributes: str | float | None) -> Markup:
    """``<name attributes>inside</name>``: markup as it is, all else escaped.

    ``font_size`` is the attribute font-size, ``class_`` is class; None leaves an attribute out. Coordinates are rounded
    to a tenth of a pixel.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{shown}>")
    content = "".join(part if isinstance(part, Markup) else _text(part) for part in inside)
    return Markup(f"<{name}{shown}>{content}</{name}>")


def _text(value: str | float) -> str:
    if isinstance(value, str):
        return escape(clean(value), quote=True)
    return f"{round(value, 1) + 0.0:.10g}"  # + 0.0: -0.0 is 0


#: Text; axes; a curve; lost or killed; won or evicted; a threshold.
INK, GREY, BLUE, RED, GREEN, AMBER = "#1f2328", "#656d76", "#0969da", "#cf222e", "#1a7f37", "#9a6700"


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from `low` to `high` as pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def picture(width: float, height: float, title: str, *inside: Markup) -> Markup:
    """One SVG with a white ground, which needs no font, style or script from anywhere."""
    return element(
        "svg",
        element("title", title),
        element("rect", width=width, height=height, fill="#ffffff"),
        *inside,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        font_family="sans-serif",
        role="img",
    )


def text(x: float, y: float, words: str, colour: str = INK, size: float = 13, anchor: str = "start") -> Markup:
    """Words with a white edge, which keeps them readable across a line."""
    edge: dict[str, str | float] = {"stroke": "#ffffff", "stroke_width": 3, "paint_order": "stroke"}
    return element("text", words, x=x, y=y, text_anchor=anchor, fill=colour, font_size=size, **edge)


def line(x1: float, y1: float, x2: float, y2: float, colour: str, dash: str | None = None) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, stroke_dasharray=dash)


def curve(points: Iterable[tuple[float, float]], colour: str, width: float = 2) -> Markup:
    shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element("polyline", points=shown, fill="none", stroke=colour, stroke_width=width)


def clipped(x: float, y: float, width: float, height: float, *inside: Markup) -> Markup:
    """A window in which coordinates stay what they are outside, and nothing is drawn beyond its edge."""
    box = f"{x:g} {y:g} {width:g} {height:g}"
    return element("svg", *inside, x=x, y=y, width=width, height=height, viewBox=box)


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most so many round numbers (1, 2 or 5 times a power of ten apart) from ``low`` to ``high``."""
    span = (high - low) or 1.0
    unit = 10.0 ** floor(log10(span / most))
    step = next(unit * factor for factor in (1, 2, 5, 10, 20) if span / (unit * factor) <= most)
    return [round(i * step, 12) for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
