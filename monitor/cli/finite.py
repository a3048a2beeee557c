"""Numbers and durations of options: click takes `nan` for a number of every range, `inf` of those without end."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import click

from monitor.policy.gosyntax import parse_duration

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
