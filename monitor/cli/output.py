"""How commands print data (`-o table|json`; nothing else goes to stdout), and read durations."""

from __future__ import annotations

import json
import os
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple, TypeVar

import click

from monitor.policy.gosyntax import parse_duration
from monitor.policy.signals import IN_BYTES, RESOURCE
from monitor.race.units import span

F = TypeVar("F", bound=Callable[..., Any])


def output_option(command: F) -> F:
    """Give a click command `-o/--output table|json`; it arrives as the argument ``output``."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Format of the data on stdout.",
    )(command)


def emit(output: str, data: object, text: Callable[[], Iterable[str]]) -> None:
    """Print ``data`` as one line of JSON, keys in the order given, or the lines of ``text``, as `-o` has it."""
    # Without colours where the user wants none (https://no-color.org); click takes them off itself in a pipe.
    colour = False if os.environ.get("NO_COLOR") else None
    for line in [json.dumps(data, ensure_ascii=False)] if output == "json" else text():
        click.echo(line, color=colour)


def yaml_lines(data: object, inline: bool = False) -> list[str]:
    """``inline``: what has only values in it stands on one line."""
    import yaml

    flow = None if inline else False
    made = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=160, default_flow_style=flow)
    return str(made).rstrip("\n").split("\n")


def table_lines(headers: Sequence[str], rows: Sequence[Sequence[object]], prose: bool = False) -> list[str]:
    """Aligned columns, numbers to the right. ``prose``: headers as they are, every column to the left."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    columns = range(len(headers))
    widths = [max(len(headers[i]), *(len(row[i]) for row in cells)) if cells else len(headers[i]) for i in columns]
    right = [bool(cells) and not prose and all(_numeric(row[i]) for row in cells) for i in columns]
    return [
        "  ".join(row[i].rjust(widths[i]) if right[i] else row[i].ljust(widths[i]) for i in columns).rstrip()
        for row in ([header if prose else header.upper() for header in headers], *cells)
    ]


#: Head of a column -> the key of a row, or what makes its cell of the row.
Columns = Mapping[str, str | Callable[[Any], object]]


def table(columns: Columns, rows: Iterable[Mapping[str, Any]], prose: bool = False) -> list[str]:
    """`table_lines` of what `-o json` prints as a list of objects."""
    cells = [[row[made] if isinstance(made, str) else made(row) for made in columns.values()] for row in rows]
    return table_lines(list(columns), cells, prose)


def amount_of(key: str) -> Callable[[Mapping[str, Any]], str]:
    """A cell: the amount at ``key`` of a row, in the unit of the row's signal."""
    return lambda row: format_amount(row.get(key), row["signal"])


def _numeric(cell: str) -> bool:
    """Whether it looks like a number, possibly with a unit, or like none: `12`, `-1.5Mi`, `97%`, `1.08x`, `-`, `?`."""
    return cell in ("-", "?", "=") or cell.lstrip("+-")[:1].isdigit()


def clean(text: object) -> str:
    """The text with everything unprintable as an escape: `\\x1b` cannot move anybody's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def format_bytes(count: int | None) -> str:
    """Bytes with one digit after the point and Kubernetes's binary unit: `12.3Mi`; exact below 1Ki; None is `-`."""
    if count is None:
        return "-"
    sign, size = ("-", -count) if count < 0 else ("", count)
    if size < 1024:
        return f"{sign}{size}"
    value = float(size)
    for unit in ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"):
        value /= 1024
        if round(value, 1) < 1024 or unit == "Ei":
            break
    return f"{sign}{value:.1f}{unit}"


def format_amount(count: int | None, signal: str | None) -> str:
    """What a signal (none: a limit) reads: bytes as `format_bytes` has them, or how many inodes or processes."""
    in_bytes = bool(signal and RESOURCE[signal] in IN_BYTES)
    return format_bytes(count) if in_bytes or count is None else str(count)


def format_ms(ms: float) -> str:
    """Milliseconds up to ten seconds, with three digits or so; seconds beyond."""
    if abs(ms) >= 10_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.{3 if abs(ms) < 10 else 1 if abs(ms) < 1000 else 0}f} ms"


#: How a field of a text is shown, by what follows its name and a colon.
_KINDS: dict[str, Callable[[Any], str]] = {
    "bytes": format_bytes,
    "time": format_ms,
    "span": lambda ms: span(ms * 1e6),
    "signal": lambda number: {9: "SIGKILL", 15: "SIGTERM"}.get(number, f"signal {number}"),
    "names": ", ".join,
}
#: A part of a text in brackets is left out where its first field is null or empty.
_OPTIONAL = re.compile(r"\[([^\]{]*\{(\w+)[^\]]*)\]")


class _Formatter(string.Formatter):
    def format_field(self, value: Any, spec: str) -> str:
        made = _KINDS.get(spec)
        return str(format(value, spec)) if made is None else made(value)


def filled(text: str, fields: Mapping[str, Any]) -> str:
    """The text with these fields, as `_KINDS` shows them. KeyError for a field that is not there."""
    text = _OPTIONAL.sub(lambda part: part[1] if fields.get(part[2]) not in (None, "") else "", text)
    return _Formatter().vformat(text, (), fields)


_DAYS = re.compile(r"([0-9]{1,5})d(.*)")


def seconds_of(text: str) -> float:
    """A Go duration, which may begin with days (`7d`, `1d12h`), in seconds. Raises PolicyError."""
    days, rest = (int(found[1]), found[2]) if (found := _DAYS.fullmatch(text)) else (0, text)
    return days * 86400 + (parse_duration(rest) / 1e9 if rest or not found else 0)


class Finite(click.FloatRange):
    """A number within a range, neither `nan` nor infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if not isfinite(found):
            self.fail(f"{value!r} is not a valid float.", param, ctx)
        return found


class Line(NamedTuple):
    """``style`` is one of `monitor.cli.top`, "" for plain text."""

    text: str
    style: str = ""


#: In the place of what was cut out.
CUT = "~"


def plain(text: object) -> str:
    """The text in printable ASCII, all else as escapes (`\\x1b`): no name that others chose acts on a terminal."""
    found = str(text)
    if found.isascii() and found.isprintable():
        return found
    return "".join(c if " " <= c <= "~" else c.encode("unicode_escape", "surrogatepass").decode() for c in found)


def clip(line: Line, width: int) -> Line:
    """What fits into ``width`` columns, `plain`; a line that is cut ends in `CUT`."""
    text = plain(line.text)
    return Line(text if len(text) <= width else (text[: width - len(CUT)] + CUT)[:width], line.style)


def shorten(text: str, width: int) -> str:
    """The beginning and the end of a name: the end tells apart the pods of a deployment."""
    if len(text) <= width:
        return text
    if width < 2:
        return CUT[:width]
    head = (width - len(CUT)) // 2
    return text[:head] + CUT + text[len(text) - (width - len(CUT) - head) :]
