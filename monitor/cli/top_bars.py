"""The bars of `outrace top`: what memory is made of, with a mark for every threshold.

From the left: what counts as used (anon, kernel, other, active_file), then inactive_file, which the kubelet counts as
available. A threshold's mark is where use reaches it: for `memory.available` when the end of active_file is there, for
`memory.reclaimable`, which leaves page cache out, when the end of `other` is.
Of the whole machine the kubelet counts no kernel memory as used: it stands at the right end, where it takes from what
looks free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from monitor.cli.output import format_bytes
from monitor.cli.spans import Span, line, plain, width_of
from monitor.policy.signals import DOMAIN_OF
from monitor.race.units import span

Json = Mapping[str, Any]

#: Part, its character (a bar must be readable without colours), its style.
PARTS = (
    ("anon", "#", "anon"),
    ("kernel", "k", "kernel"),
    ("other", "o", "other"),
    ("active_file", "=", "active"),
    ("inactive_file", "-", "inactive"),
)
_FREE = "."
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LABEL = 9
#: Narrower, a bar shows nothing.
_NARROW = 10
#: A percentage of a capacity that has just changed is a little off.
_SAME = 1 << 20


class Mark(NamedTuple):
    """A threshold with the letter of its mark, and the use in bytes at which it is met."""

    letter: str
    threshold: Json
    at: int


def marks(frame: Json) -> list[Mark]:
    """One for each threshold of the frame."""
    signals = frame["signals"]
    return [
        Mark(_LETTERS[i % len(_LETTERS)], one, signals[one["signal"]]["capacity"] - one["quantity"])
        for i, one in enumerate(frame["thresholds"])
    ]


def parts(domain: Json, is_machine: bool) -> dict[str, int]:
    """Bytes by part. `other` is what is charged and in none of the rest: shared memory, for the most part."""
    found = {name: domain.get(name) or 0 for name in ("anon", "kernel", "active_file", "inactive_file")}
    counted = sum(count for name, count in found.items() if name != "kernel" or not is_machine)
    return {**found, "other": max(0, domain["usage"] - counted)}


def bar_lines(name: str, frame: Json, found: Sequence[Mark], width: int) -> tuple[list[Span], list[Span]]:
    """The bar of ``node`` or ``kubepods``, and the line with its marks."""
    domain = frame[name]
    capacity = domain["capacity"]
    grows = _growth(name, frame)
    figures = f" {format_bytes(domain['working_set'])} of {format_bytes(capacity)}"
    figures += "" if grows is None else f" {grows / 2**20:+.1f} MiB/s"
    room = width - _LABEL - 2 - len(figures)
    label = f"{name:<{_LABEL}}"
    if not capacity or room < _NARROW:
        return line(Span(label, "title"), figures.strip()), []
    cells = _cells(parts(domain, _is_machine(name, frame)), capacity, room, _is_machine(name, frame))
    own = [mark for mark in found if DOMAIN_OF[mark.threshold["signal"]] == name]
    row: list[Mark | None] = [None] * room
    for mark in sorted(own, key=lambda one: one.at):
        column = min(room - 1, max(0, mark.at * room // capacity))
        free = [i for i in range(room) if row[i] is None]
        if free:  # beside another one where two are at the same place
            row[min(free, key=lambda i: (abs(i - column), i))] = mark
    below = [Span(" " if mark is None else mark.letter, "" if mark is None else _style(mark)) for mark in row]
    return line(Span(label, "title"), "[", *cells, "]", figures), line(" " * (_LABEL + 1), *below)


def _growth(name: str, frame: Json) -> float | None:
    """Bytes a second: what the daemon's forecast goes by, else over the last frames."""
    for one in frame["forecasts"]:
        if (one["domain"], one["of"]) == (name, "threshold") and one["seconds"]:
            return float(one["bytes_per_s"])
    found: int | None = frame[name].get("growth_bytes_per_s")
    return found


def _is_machine(name: str, frame: Json) -> bool:
    return name == "node" and bool(frame["node"]["cgroup"] == frame["hierarchy"]["root"])


def _cells(sizes: Mapping[str, int], capacity: int, room: int, kernel_apart: bool) -> list[Span]:
    """The spans of a bar, ``room`` characters in all."""
    spans, seen, column = [], 0, 0
    for name, char, style in PARTS:
        if name == "kernel" and kernel_apart:
            continue
        seen += sizes[name]
        end = min(room, round(seen * room / capacity))
        spans.append(Span(char * max(0, end - column), style))
        column = max(column, end)
    last = min(room - column, round(sizes["kernel"] * room / capacity)) if kernel_apart else 0
    return [*spans, Span(_FREE * (room - column - last), "dim"), Span("k" * last, "kernel")]


def legend(frame: Json, width: int) -> list[list[Span]]:
    """What the characters of the node's bar are, with their amounts: one line, two where it is narrow."""
    domain = frame["node"]
    sizes = parts(domain, _is_machine("node", frame))
    entries = []
    for name, char, style in PARTS:
        known = name == "other" or domain.get(name) is not None
        entries.append([Span(char, style), Span(f" {name} {format_bytes(sizes[name]) if known else 'unknown'}")])
    whole = _spaced(entries)
    return [whole] if width_of(whole) <= width else [_spaced(entries[:3]), _spaced(entries[3:])]


def _spaced(entries: Sequence[list[Span]]) -> list[Span]:
    return [one for i, entry in enumerate(entries) for one in ([Span("  ")] if i else []) + entry]


def threshold_line(mark: Mark, forecasts: Sequence[Json]) -> list[Span]:
    """A threshold: its mark, what is left, and when it is reached, with the interval of the forecast."""
    one = mark.threshold
    what = f"{one['signal']}<{one['value']} {one['kind']}" + (" (a kubelet's)" if one["compared"] else "")
    left = f"met, {format_bytes(-one['distance'])} short" if one["met"] else f"{format_bytes(one['distance'])} left"
    when = "" if one["met"] else _when(mark, forecasts)
    return line(Span(f"{mark.letter} ", _style(mark)), f"{what}: ", Span(left, "bad" if one["met"] else ""), when)


def _when(mark: Mark, forecasts: Sequence[Json]) -> str:
    """The daemon's forecast of this threshold; "" where it made none: it makes one of the nearest of a domain."""
    signal = mark.threshold["signal"]
    for one in forecasts:
        if one["of"] != "threshold" or one["domain"] != DOMAIN_OF[signal] or one.get("signal") not in (None, signal):
            continue
        if abs(one["level_bytes"] - mark.at) > _SAME:
            continue
        if one["seconds"] is None:
            return f", no forecast: {plain(one['no'])}"
        soonest, seconds, latest = (span(one[key] * 1e9) for key in ("soonest_s", "seconds", "latest_s"))
        return f", {seconds} ({one['interval_holds']:.0%}: {soonest}-{latest})"
    return ""


def _style(mark: Mark) -> str:
    if mark.threshold["met"]:
        return "bad"
    return "dim" if mark.threshold["compared"] else "warn"
