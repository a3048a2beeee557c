"""An incident as one HTML page: needs no network, no script and no other file; opens wherever it is sent.

What is in a record was written by processes, so all of it is escaped (`monitor.cli.markup`). Should that ever fail, the
page's Content-Security-Policy forbids every script and every request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from monitor import __version__
from monitor.cli import incident_charts as charts
from monitor.cli.incident_text import facts, kubelet_sentences, timeline_rows, tone
from monitor.cli.markup import Markup, element, joined
from monitor.cli.output import format_bytes
from monitor.race.codec import RecordError
from monitor.race.memory import stored

Json = Mapping[str, Any]

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
td svg { width: 340px }
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
    yield element(
        "table",
        *(element("tr", element("th", name), element("td", sentence)) for name, sentence in facts(incident)),
    )
    yield from _memory(incident, without_curves)
    rows = list(timeline_rows(incident.get("steps") or ()))
    yield from _pods(incident)
    if rows:
        yield element("h2", "Timeline")
        yield _timeline(rows)
    for heading, sentences in (
        ("With a kubelet alone", kubelet_sentences(incident)),
        ("Advice", [incident["advice"]] if incident.get("advice") else []),
    ):
        if sentences:
            yield element("h2", heading)
            yield from (element("p", sentence) for sentence in sentences)
    yield element("footer", f"Incident {incident['id']}, shown by outrace {__version__}.")


def _memory(incident: Json, without_curves: str) -> Iterator[Markup]:
    drawn = charts.domains(incident)
    if not drawn:
        yield element("h2", "Memory")
        yield element("p", without_curves, class_="note")
    for domain in drawn:
        yield element("h2", f"Memory of {domain}")
        yield charts.memory_chart(incident, domain)


def _pods(incident: Json) -> Iterator[Markup]:
    curves = charts.pods(incident)
    if not curves:
        return
    window, most = charts.pods_window(curves)
    yield element("h2", "Growth of pods")
    note = "Before the episode began (dashed line). All curves have one scale"
    yield element(
        "p", f"{note}: {format_bytes(round(most))} and {(window[1] - window[0]) / 1000:.3g} s.", class_="note"
    )
    rows = [
        element(
            "tr",
            element("td", curve["pod"]),
            element("td", charts.pod_chart(curve, window, most)),
            element("td", charts.grown(curve)),
            element("td", format_bytes(max(v for _, v in curve["points"])), class_="n"),
        )
        for curve in curves
    ]
    head = element("tr", *(element("th", name) for name in ("pod", "memory", "grew", "most")))
    yield element("table", head, *rows)


def _timeline(rows: list[Any]) -> Markup:
    head = element("tr", *(element("th", name) for name in ("t", "available", "what happened")))
    made = [
        element(
            "tr",
            element("td", row.clock, class_="n"),
            element("td", row.available, class_="n"),
            element("td", joined(row.text)),
        )
        for row in rows
    ]
    return element("table", head, *made)
