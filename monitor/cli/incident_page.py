"""An incident as one HTML page: needs no network, no script and no other file; opens wherever it is sent.

What is in a record was written by processes, so all of it is escaped (`monitor.cli.svg.element`). Should that ever
fail, the page's Content-Security-Policy forbids every script and every request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

from monitor import __version__
from monitor.cli import svg
from monitor.cli.incident_text import Row, facts, sections, timeline_rows, tone
from monitor.cli.output import format_bytes, format_ms
from monitor.cli.svg import Markup, element
from monitor.race.codec import RecordError
from monitor.race.memory import stored

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


def charts(incident: Json) -> dict[str, list[tuple[str, Points]]]:
    """What was left of memory over time, by measure, of each domain and of the one cgroup at its own limit."""
    memory, found = incident.get("memory") or {"lines": (), "curves": ()}, dict[str, list[tuple[str, Points]]]()
    capacity = {(at["domain"], at["signal"]): at["capacity"] for at in memory["lines"]}
    for curve in memory["curves"]:
        domain, measure = curve["domain"], curve["measure"]
        whole = capacity.get((domain, measure), curve["limit"])
        if whole is not None:  # else nothing is known that it could be counted from
            found.setdefault(domain, []).append((measure, [(t, whole - used) for t, used in curve["points"]]))
    return found


def memory_chart(incident: Json, domain: str, curves: Sequence[tuple[str, Points]]) -> Markup:
    """What was left in a domain, over time: the curve of each signal, thresholds, and the moments of the race."""
    lines = [one for one in incident["memory"]["lines"] if one["domain"] == domain]
    steps = incident.get("steps") or ()
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


def _extent(
    curves: Sequence[Points], lines: Sequence[Json], steps: Sequence[Json]
) -> tuple[float, tuple[float, float]]:
    """The largest value shown, and the first and last moment: the samples of 30 s must not hide a race of 1 ms."""
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


_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = Markup("""
body { font: 15px/1.5 sans-serif; color: #1f2328; background: #fff; max-width: 920px; margin: 24px auto;
  overflow-wrap: anywhere }
h1 { font-size: 20px; line-height: 1.35; margin: 0 0 12px; padding-left: 12px; border-left: 6px solid #9a6700 }
h1.bad { border-color: #cf222e }
h1.good { border-color: #1a7f37 }
h2 { font-size: 16px; margin: 28px 0 6px }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: 3px 10px 3px 0; overflow-wrap: anywhere }
th { font-weight: normal; color: #656d76; white-space: nowrap }
tr + tr > * { border-top: 1px solid #eaeef2 }
td.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
p.note, footer { color: #656d76; font-size: 13px; margin: 2px 0 }
svg { width: 100%; height: auto; display: block }
footer { margin-top: 32px }
@media print { h2, tr, svg { break-inside: avoid } }
""")


def page(incident: Json) -> str:
    """The page of an incident as `IncidentReader.get` has it, with its steps."""
    title = f"outrace: {incident['verdict']}, {incident['id']}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", _STYLE),
    )
    problem = "No samples of it are stored with this incident."
    try:
        stored(incident)
    except RecordError:
        problem = "Its samples are damaged, or were stored by another version of outrace: they are not drawn."
        incident = {**incident, "memory": None}
    body = element("body", *_body(incident, problem))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _body(incident: Json, without_curves: str) -> Iterator[Markup]:
    verdict = str(incident["verdict"])
    yield element("h1", incident.get("summary") or verdict.replace("_", " "), class_=tone(incident))
    rows = [element("tr", element("th", name), element("td", sentence)) for name, sentence in facts(incident)]
    yield element("table", *rows)
    drawn = charts(incident)
    for domain, curves in drawn.items():
        yield element("h2", f"Memory of {domain}")
        yield memory_chart(incident, domain, curves)
    if not drawn:
        yield element("h2", "Memory")
        yield element("p", without_curves, class_="note")
    if steps := incident.get("steps"):
        yield element("h2", "Timeline")
        head = element("tr", *(element("th", name) for name in ("t", "available", "what happened")))
        yield element("table", head, *map(_row, timeline_rows(steps)))
    for heading, sentences in sections(incident):
        yield element("h2", heading)
        yield from (element("p", sentence) for sentence in sentences)
    yield element("footer", f"Incident {incident['id']}, shown by outrace {__version__}.")


def _row(row: Row) -> Markup:
    cells = element("td", row.clock, class_="n"), element("td", row.available, class_="n"), element("td", row.text)
    return element("tr", *cells)
