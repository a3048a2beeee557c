"""How commands print data: `-o table|json`, aligned tables, byte counts as people read them.

Data goes to stdout and nothing else does, so that `outrace ... -o json | jq` always works.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

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


def print_json(data: object) -> None:
    """One JSON document on stdout, one line, keys in the order given."""
    click.echo(json.dumps(data, ensure_ascii=False))


def emit(output: str, data: object, text: Callable[[], Iterable[str]]) -> None:
    """Print ``data`` as JSON or the lines of ``text``, as `-o` has it."""
    if output == "json":
        print_json(data)
    else:
        print_lines(text())


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Aligned columns; one whose cells are all numbers (or byte counts as `format_bytes` writes them) to the right."""
    print_lines(table_lines(headers, rows))


def table_lines(headers: Sequence[str], rows: Sequence[Sequence[object]], prose: bool = False) -> list[str]:
    """The lines of `print_table`, without trailing blanks; ``prose``: headers as they are, every column to the left."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    columns = range(len(headers))
    widths = [max(len(headers[i]), *(len(row[i]) for row in cells)) if cells else len(headers[i]) for i in columns]
    right = [bool(cells) and not prose and all(_numeric(row[i]) for row in cells) for i in columns]
    return [
        "  ".join(row[i].rjust(widths[i]) if right[i] else row[i].ljust(widths[i]) for i in columns).rstrip()
        for row in ([header if prose else header.upper() for header in headers], *cells)
    ]


def _numeric(cell: str) -> bool:
    """Whether it looks like a number, possibly with a unit: `-`, `12`, `-1.5Mi`, `97%`, `1.08x`."""
    return cell == "-" or cell.lstrip("-")[:1].isdigit()


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
