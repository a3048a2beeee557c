"""The charts of an incident's page: memory against its thresholds, and the growth of one pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

from monitor.cli import svg
from monitor.cli.incident_text import format_ms
from monitor.cli.markup import Markup, joined
from monitor.cli.output import format_bytes

Json = Mapping[str, Any]
#: (ms from the start, bytes)
Points = list[tuple[float, float]]

WIDTH, LEFT, RIGHT = 900.0, 78.0, 14.0
#: The largest threshold stands at a quarter of the height: what lies far above it is not what a race is about.
_ABOVE = 4.0
#: Moments that get a line in the chart of memory, the first of each: kind of step, what it is called, colour.
_MOMENTS = (
    ("crossed", "crossed", svg.AMBER),
    ("pod_held", "held", svg.BLUE),
    ("decided", "decided", svg.BLUE),
    ("oom", "OOM killer", svg.RED),
    ("gone", "evicted pod is gone", svg.GREEN),
)


def domains(incident: Json) -> list[str]:
    """The domains (and the one cgroup at its own limit) whose room can be drawn."""
    found = incident.get("memory") or {"lines": (), "curves": ()}
    return list(dict.fromkeys(c["domain"] for c in found["curves"] if _whole(c, found["lines"]) is not None))


def memory_chart(incident: Json, domain: str) -> Markup:
    """What was left in a domain, over time: the curve of each signal, thresholds, and the moments of the race."""
    found = incident["memory"]
    lines = [one for one in found["lines"] if one["domain"] == domain]
    steps = incident.get("steps") or ()
    curves = [
        (one["measure"], [(t, whole - used) for t, used in one["points"]])
        for one in found["curves"]
        if one["domain"] == domain and (whole := _whole(one, lines)) is not None
    ]
    top, window = _extent([points for _, points in curves], lines, steps)
    height, above, bottom = 286.0, 30.0, 262.0
    x, y = svg.Scale(*window, LEFT, WIDTH - RIGHT), svg.Scale(0, top, bottom, above)
    out = [*_axes(x, y, f"left, by {curves[0][0]}" if len(curves) == 1 and lines else "left")]
    limits = {at["capacity"] - at["limit"] for at in lines if at["limit"] is not None}
    for left in limits or {0}:
        out.append(svg.line(LEFT, y(left), WIDTH - RIGHT, y(left), svg.RED))
    out += [svg.line(LEFT, y(at["quantity"]), WIDTH - RIGHT, y(at["quantity"]), svg.GREY, "5 4") for at in lines]
    coloured = list(zip(curves, cycle((svg.BLUE, svg.GREEN, svg.INK)), strict=False))
    drawn = [svg.curve([(x(t), y(v)) for t, v in points], colour) for (_, points), colour in coloured]
    out.append(svg.clipped(LEFT, above, WIDTH - RIGHT - LEFT, bottom - above + 2, *drawn))
    for at in lines:  # over the curves
        name = f"{at['signal']}<{format_bytes(at['quantity'])}" + ("" if at["hard"] else " (soft)")
        name += " (only a kubelet's)" if at["compared"] else ""
        out.append(svg.text(LEFT + 6, y(at["quantity"]) - 4, name, svg.GREY, 12))
    for row, ((signal, _), colour) in enumerate(coloured if len(curves) > 1 else ()):
        out.append(svg.text(WIDTH - RIGHT - 4, above + 14 + 16 * row, signal, colour, 12, "end"))
    out += _moments(steps, x, above, bottom)
    return svg.picture(WIDTH, height, f"Memory left in {domain}", *out)


def _whole(curve: Json, lines: Sequence[Json]) -> int | None:
    """What a curve of what was used is counted from: the capacity, or the cgroup's own limit. None: neither."""
    own = (at["capacity"] for at in lines if (at["domain"], at["signal"]) == (curve["domain"], curve["measure"]))
    whole: int | None = next(own, curve["limit"])
    return whole


def _extent(
    curves: Sequence[Points], lines: Sequence[Json], steps: Sequence[Json]
) -> tuple[float, tuple[float, float]]:
    """The largest value shown, and the first and last moment: from where the curve comes into view, with what
    followed, so that a race of milliseconds is not lost in the 30 s that are recorded before it.
    """
    top = 1.08 * max((v for points in curves for _, v in points), default=1)
    highest = max((one["quantity"] for one in lines), default=0)
    top = max(1.0, min(top, _ABOVE * highest) if highest else top)
    first, last = min(p[0][0] for p in curves), max(p[-1][0] for p in curves)
    above = [t for points in curves for t, v in points if t <= 0 and v > top]
    first = min(0.0, max(above, default=first))
    ends = max((s["t_ms"] for s in steps), default=0.0)
    last = min(last, max(ends, 0.0) + 0.3 * (max(ends, 0.0) - first))
    # A kill is often the very end of a curve, which is rounded: its line must not fall off the edge.
    named = {what for what, _, _ in _MOMENTS}
    moment = max((s["t_ms"] for s in steps if s["what"] in named), default=0.0)
    return top, (first, max(first + 1, last, moment + 0.03 * (moment - first)))


def _axes(x: svg.Scale, y: svg.Scale, what: str) -> Iterator[Markup]:
    unit, name = next((u, n) for u, n in ((2**30, "GiB"), (2**20, "MiB"), (1, "bytes")) if y.high >= 2 * u or u == 1)
    yield svg.text(8, 18, f"{name} {what}", svg.GREY, 12)
    yield svg.line(x.start, y.start, x.end, y.start, svg.GREY)
    for value in svg.ticks(0, y.high / unit, 7):
        yield svg.text(x.start - 8, y(value * unit) + 4, f"{value:g}", svg.GREY, 12, "end")
        yield svg.line(x.start, y(value * unit), x.start - 4, y(value * unit), svg.GREY)
    per, name = (1000, "s") if x.high - x.low >= 2000 else (1, "ms")
    for value in svg.ticks(x.low / per, x.high / per, 9):
        yield svg.line(x(value * per), y.start, x(value * per), y.start + 4, svg.GREY)
        yield svg.text(x(value * per), y.start + 18, f"{value:g} {name}", svg.GREY, 12, "middle")


def _moments(steps: Sequence[Json], x: svg.Scale, above: float, bottom: float) -> Iterator[Markup]:
    """A line and a name for the first step of each kind that is in view, each name in a row of its own."""
    shown = 0
    for what, name, colour in _MOMENTS:
        at = next((s["t_ms"] for s in steps if s["what"] == what and x.low <= s["t_ms"] <= x.high), None)
        if at is None:
            continue
        yield svg.line(x(at), above + 8, x(at), bottom, colour, "2 3")
        left = x(at) > WIDTH / 2
        words = f"{name}, {format_ms(at)}" if at else name
        row = above + 18 + 17 * shown
        yield svg.text(x(at) - 5 if left else x(at) + 5, row, words, colour, 12, "end" if left else "start")
        shown += 1


# pods


def pods(incident: Json) -> list[Json]:
    """The curves of pods, the one that grew most first."""
    curves = [c for c in (incident.get("memory") or {}).get("curves", ()) if c["pod"] is not None]
    return sorted(curves, key=lambda c: -c["grew"])


def pod_chart(curve: Json, window: tuple[float, float], most: float) -> Markup:
    """One pod's memory as a small curve. ``window`` in ms and ``most`` in bytes: the same for all, to be compared."""
    width, height = 340.0, 44.0
    x, y = svg.Scale(*window, 2, width - 2), svg.Scale(0, max(most, 1), height - 4, 4)
    points = [(x(t), y(v)) for t, v in curve["points"]]
    out = [svg.line(2, height - 4, width - 2, height - 4, svg.PALE)]
    if window[0] <= 0 <= window[1]:
        out.append(svg.line(x(0), 0, x(0), height, svg.AMBER, "2 3"))
    return svg.picture(width, height, f"Memory of {curve['pod']}", *out, svg.curve(points, svg.BLUE, 1.5))


def pods_window(curves: Sequence[Json]) -> tuple[tuple[float, float], float]:
    """First and last moment (ms), and most bytes, of all these curves."""
    points = [point for one in curves for point in one["points"]]
    first, last = min(t for t, _ in points), max(t for t, _ in points)
    return (first, max(last, first + 1)), max(v for _, v in points)


def grown(curve: Json) -> Markup:
    """What a pod grew by before the start, and how fast."""
    if curve["in_s"] <= 0:
        return joined("-")
    rate = curve["grew"] / curve["in_s"]
    return joined(f"{format_bytes(curve['grew'])} in {curve['in_s']:g} s ({format_bytes(round(rate))}/s)")
