"""How a bench is declared: its options, what it needs, the rows that it returns, and how they are printed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import click

from monitor.cli.output import F, Finite, emit, format_bytes, output_option, table
from monitor.errors import EXIT_OK, MonitorError
from monitor.lab.node import require_root
from monitor.policy.errors import PolicyError
from monitor.policy.quantity import Quantity
from monitor.settings.config import ENFORCE, HOLD

Row = dict[str, Any]
#: Columns of a bench whose rows are all made by `summary`.
STATISTICS = "name unit n p50 p99 max"
_AMOUNTS = frozenset(("p50", "p99", "mean", "max", "target"))


@dataclass
class Found:
    """What a bench found, where that is more than rows: ``more`` for the JSON, the exit code, other columns."""

    rows: list[Row]
    more: dict[str, Any] = field(default_factory=dict)
    code: int = EXIT_OK
    columns: str = ""


def bench(columns: str = "", root: bool = True) -> Callable[[Callable[..., list[Row] | Found]], click.Command]:
    """Make a command of a function that measures; ``columns`` are the keys of its rows that the table shows."""

    def declare(measure: Callable[..., list[Row] | Found]) -> click.Command:
        name = measure.__name__

        @wraps(measure)
        def run(output: str, **options: Any) -> int:
            if root:
                require_root(f"bench {name}")
            found = measure(**options)
            if not isinstance(found, Found):
                found = Found(found)
            answer = {"bench": name, "results": found.rows, **found.more}
            emit(output, answer, lambda: row_lines(found.columns or columns, found.rows))
            return found.code

        return click.command(name)(output_option(run))

    return declare


class Size(click.ParamType[int]):
    """A Kubernetes quantity as bytes."""

    name = "quantity"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            size = Quantity.parse(str(value)).value
        except PolicyError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        return size if size > 0 else self.fail(f"{value!r} must be more than 0", param, ctx)


class Listed(click.ParamType[tuple[Any, ...]]):
    """Values of a type with commas between, each once."""

    def __init__(self, of: click.ParamType[Any]) -> None:
        self._of, self.name = of, f"{of.name.split()[0]},..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        words = value if isinstance(value, tuple) else str(value).split(",")
        return tuple(dict.fromkeys(self._of.convert(str(word).strip(), param, ctx) for word in words))


def number(flag: str, default: float, text: str, least: float = 1, most: float | None = None) -> Callable[[F], F]:
    """An option that takes a number."""
    kind = Finite(least, most) if isinstance(default, float) else click.IntRange(int(least), most)
    return click.option(flag, default=default, show_default=True, type=kind, help=text)


def choice(flag: str, values: Sequence[str], text: str) -> Callable[[F], F]:
    """An option that takes one of these values; the first is the default."""
    return click.option(flag, default=values[0], show_default=True, type=click.Choice(values), help=text)


trigger_option = choice("--trigger", ("user", "kernel"), "What sends the first signal: user space or the BPF program.")
mode_option = choice("--mode", (ENFORCE, HOLD), "Whether pods are killed or held at the crossing.")


def row_lines(columns: str, rows: Sequence[Row]) -> list[str]:
    heads = {"what" if key == "name" else key.replace("_", " "): key for key in columns.split()}
    return table({head: partial(_cell, key) for head, key in heads.items()}, rows)


def _cell(key: str, row: Row) -> object:
    value = row.get(key)
    if value is not None and (key.endswith("bytes") or (row.get("unit") == "bytes" and key in _AMOUNTS)):
        return format_bytes(round(value))
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    if isinstance(value, list):
        return " ".join(value) or None
    if isinstance(value, dict):
        return ", ".join(f"{name}: {n:g}" for name, n in value.items()) or "nothing"
    return value


def summary(name: str, values: Sequence[float], unit: str = "us") -> Row:
    values = sorted(values)
    if not values:
        raise MonitorError(f"{name}: nothing was measured")
    return {
        "name": name,
        "unit": unit,
        "n": len(values),
        "p50": statistics.median(values),
        "p99": values[math.ceil(0.99 * len(values)) - 1],
        "max": values[-1],
    }


def progress(text: str) -> None:
    click.echo(text, err=True)
