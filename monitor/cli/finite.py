"""Numbers of options that are numbers: click takes `nan` for one of every range, `inf` of those without end."""

from __future__ import annotations

from math import isfinite
from typing import Any

import click


class Finite(click.FloatRange):
    """A number within a range, neither `nan` nor infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if not isfinite(found):
            self.fail(f"{value!r} is not a valid float.", param, ctx)
        return found
