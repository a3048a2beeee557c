"""HTML and SVG: elements in which every text and every attribute is escaped.

A process may call itself `<script>`. So text becomes markup in one place only, `element`, and what is markup already
has a type of its own.
"""

from __future__ import annotations

from html import escape

from monitor.cli.incident_steps import clean

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
    return Markup(f"<{name}{shown}>{joined(*inside)}</{name}>")


def joined(*parts: str | float) -> Markup:
    """Elements and texts one after the other."""
    return Markup("".join(part if isinstance(part, Markup) else _text(part) for part in parts))


def _text(value: str | float) -> str:
    if isinstance(value, str):
        return escape(clean(value), quote=True)
    return f"{round(value, 1) + 0.0:.10g}"  # + 0.0: -0.0 is 0
