"""Forecasts in words, with the level of their interval: for `outrace top`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monitor.cli.output import format_bytes
from monitor.race.units import rate, span

_OF = {"threshold": "its next threshold", "oom": "its limit"}


def forecast_lines(forecasts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each. ``forecasts``: `Forecaster.report`."""
    for one in forecasts:
        signal = f" of {one['signal']}" if one.get("signal") else ""  # an older daemon does not say
        target = f"{one['domain']} reaches {_OF[one['of']]}{signal} ({format_bytes(one['level_bytes'])} in use)"
        if one["seconds"] is None:
            yield f"no forecast of when {target}: {one['no']}"
        elif one["seconds"] == one["latest_s"] == 0:
            continue  # the table above says that it is met
        else:
            soonest, seconds, latest = (span(one[key] * 1e9) for key in ("soonest_s", "seconds", "latest_s"))
            yield (
                f"{target} in {seconds}, at {rate(one['bytes_per_s'])} "
                f"({one['interval_holds']:.0%} of such crossings come after {soonest} to {latest})"
            )
