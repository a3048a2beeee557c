"""An incident as text: verdict, pods and processes, time and place, timeline, what a kubelet would have done, advice.

Only the layout is made here; summary and advice come with the incident. Names of processes are whatever a process
called itself: what shows a text (`_wrap`, `list_lines`, `monitor.cli.svg.element`) lets nothing unprintable through.
"""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import click

from monitor.cli.output import Columns, clean, filled, format_bytes, format_ms, table
from monitor.policy.stall import SWAP
from monitor.race.incident import KUBELET_ONLY
from monitor.side.incidents import unix_time

Json = Mapping[str, Any]


def describe(step: Json) -> str:
    """What happened in a step; a kind that is not known as its name and its fields."""
    if (text := _TEXTS.get(step["what"])) is not None:
        try:
            return filled(text if isinstance(text, str) else text(step), step)
        except KeyError:
            pass  # of another version: by its fields, then
    fields = [f"{key} {value}" for key, value in step.items() if key not in ("t_ms", "what") and value is not None]
    return str(step["what"]).replace("_", " ") + (": " + ", ".join(fields) if fields else "")


def _decided(step: Json) -> str:
    verb = "would evict" if step["observed"] else "decides to evict"
    where = ", in the kernel" if step["trigger"] == "kernel" else ""
    return (
        f"{{by}} {verb} {{pod}} (rank {{rank}}, grace {{grace_s:g}} s[, working set {{pod_working_set:bytes}}]){where}"
    )


def _refused(step: Json) -> str:
    refuses = "a PodDisruptionBudget keeps" if step["budget"] else "the API server does not evict"
    then = "[; {instead} is evicted instead]" if step["instead"] else "; nobody is evicted"
    return f"{refuses} {{pods:names}}: {{problem}}{then}"


def _oom(step: Json) -> str:
    limit = "the machine is out of memory" if step["limit_of"] == "global" else "limit of {limit_of}"
    victim = "{comm} (pid {pid})[ of {pod}], rss {rss:bytes}, oom_score_adj {oom_score_adj}"
    usage = "[ (usage {usage:bytes} of {limit:bytes})]"
    return f"OOM KILLER picks {victim}: {limit}{usage}; called by {{invoker}} (pid {{invoker_pid}})"


def _sigkill(step: Json) -> str:
    sender = "outrace" if step["ours"] else "the kernel" if step["from"] == "kernel" else "{from}"
    return f"SIGKILL to {{comm}} (pid {{pid}})[ of {{pod}}] from {sender}"


#: Of holds that are begun and ended too often (`monitor.side.holds`).
_LEFT_OUT = "[; {left_out} more beginnings, changes and ends of holds of it are left out before this]"
#: One for each kind of step that monitor/race/timeline.py makes; or what makes it of the step.
_TEXTS: dict[str, str | Callable[[Json], str]] = {
    "crossed": (
        "{kind} threshold crossed: {signal} below {quantity:bytes} in {domain} "
        "(usage {usage:bytes}, working set {working_set:bytes})"
    ),
    "seen": "{by} sees it",
    "held": (
        "evictions are suspended: they would not help ({reason}[, pods have {pods:bytes}][, outside {outside:bytes}])"
        "[; a kubelet would evict {kubelet_would_evict}]"
    ),
    "not_held": "evictions are resumed",
    "decided": _decided,
    "refused": _refused,
    "pod_held": (
        "{pod} is held ({reason}, {brake}[, at most {cap:bytes}]): it has {usage:bytes}[, {step} the kubelet's line]"
        "[; killed below {second_line:bytes}]" + _LEFT_OUT
    ),
    "pod_released": (
        "{pod} is not held any more ({why}) after {held_ms:span}; it grew {grew:bytes}"
        "[; the kubelet evicted {instead} instead]" + _LEFT_OUT
    ),
    "stalled": lambda step: (
        "{share:.0%} of swap is in use ({why}[, {cause}])[: {over}]"
        if step["pod"] == SWAP
        else "outrace raises memory.high of {pod} from {high_before:bytes} to {high:bytes}"
        if step.get("high")
        else "{pod} waits for memory, {share:.0%} of the time; it lacks {lacks:bytes} ({why}[, {cause}])[: {over}]"
    ),
    "signalled": "{signal:signal} sent to {pod}",
    "gone": "nobody is left of {pod}[; it gave back {freed:bytes}]",
    "reported_evicted": "the API server reports {pod} as Evicted by the kubelet: {message}",
    "clear": "{kind} threshold clear again ({signal})",
    "reclaim": lambda step: "the kernel begins to reclaim" + ("" if step["memcg"] == "global" else " in {memcg}"),
    "oom": _oom,
    "exiting": "the OOM killer marks {comm} (pid {pid})[ of {pod}], which is dying already",
    "sigkill": _sigkill,
    "exited": "{comm} (pid {pid})[ of {pod}] is dead",
    "checked": lambda step: f"{{source}} {'confirms it' if step['agrees'] else 'DISAGREES'}: {{detail}}",
    "lost": "{count} events of kind {of} were lost",
    "more": "... {count} more: {of}",
    "grew": lambda step: f"{{{'pod' if step.get('pod') else 'domain'}}} had grown by {{bytes:bytes}} in {{in_s:g}} s",
    "cache_activated": (
        "page cache had become active in {domain}: active {active_file:bytes}, inactive {inactive_file:bytes}"
    ),
}
#: Steps of one kind in a row beyond which the middle ones become one line, and how many stay at its ends.
_FOLD = 6
_ENDS = 2
#: Victims of the OOM killer that are named.
_NAMED = 3
#: A pause in the timeline that gets a line of its own, in ms.
_PAUSE_MS = 1000.0
#: Narrower than this, nothing is wrapped any more.
_MIN_WIDTH = 40
#: Verdicts with a kill that was not necessary, and those in which all went well.
_BAD, _GOOD = "oom_", ("eviction_won", "relieved")


def local_time(text: str, timespec: str = "seconds") -> str:
    """A time as local ISO 8601 with its offset."""
    return datetime.datetime.fromisoformat(text).astimezone().isoformat(timespec=timespec)


def format_margin(incident: Json) -> str:
    """By how much: bytes and time; "-" where there was no race or it is not known."""
    size, ms = incident.get("margin_bytes"), incident.get("margin_ms")
    parts = [format_bytes(size)] if size is not None else []
    parts += [format_ms(ms)] if ms is not None else []
    return ", ".join(parts) or "-"


# the list


def list_lines(incidents: Sequence[Json], width: int | None) -> list[str]:
    """A table, one line for each incident, cut to ``width`` columns (None: whole)."""
    columns: Columns = {
        "time": lambda one: local_time(one["start"]),
        "id": lambda one: clean(one["id"]),
        "verdict": lambda one: clean(one["verdict"]) + (" (observed)" if one.get("observed") else ""),
        "margin": format_margin,
        "summary": lambda one: clean(one.get("summary", "")),
    }
    lines = table(columns, incidents)
    return [line if width is None or len(line) <= width else line[: width - 3] + "..." for line in lines]


# one incident


def show_lines(incident: Json, width: int) -> Iterator[str]:
    """The whole incident, wrapped to ``width`` columns, with colours (which `click.echo` takes off in a pipe)."""
    colour = {"bad": "red", "good": "green"}.get(tone(incident), "yellow")
    for line in _wrap(incident.get("summary") or incident["verdict"].replace("_", " "), width, ""):
        yield click.style(line, fg=colour, bold=True)
    yield ""
    for name, sentence in facts(incident):
        yield from _wrap(sentence, width, "       ", f"{name:<6} ")
    if incident.get("steps"):
        yield ""
        yield click.style("timeline", bold=True)
        yield from timeline(incident["steps"], width)
    for heading, sentences in sections(incident):
        yield ""
        yield click.style(heading.lower(), bold=True)
        for sentence in sentences:
            yield from _wrap(sentence, width, "  ", "  ")


def tone(incident: Json) -> str:
    """How it ended, which is how it is coloured: "bad", "good" or "neither". A race that outrace would have won is lost
    where outrace only observed and the OOM killer killed.
    """
    verdict, killed = str(incident["verdict"]), incident.get("observed") and incident.get("oom_victims")
    if verdict.startswith(_BAD) or (killed and verdict in _GOOD):
        return "bad"
    return "good" if verdict in _GOOD else "neither"


def facts(incident: Json) -> list[tuple[str, str]]:
    """Pods and processes, time, verdict, and what is not known: each a name and a sentence."""
    found = [("who", _who(incident)), ("when", _when(incident)), ("what", _verdict(incident))]
    if incident.get("missing"):
        found.append(("missing", ", ".join(incident["missing"])))
    return found


def sections(incident: Json) -> Iterator[tuple[str, list[str]]]:
    """What follows the timeline: headings and their sentences."""
    if alone := incident.get("counterfactual"):
        needless = KUBELET_ONLY in incident.get("flags", ())
        yield "With a kubelet alone", [_counterfactual(each, needless) for each in alone]
    if incident.get("advice"):
        yield "Advice", [incident["advice"]]


def _who(incident: Json) -> str:
    would = "would be evicted" if incident.get("observed") else "evicted"
    by = f" by the {incident['by']}" if incident.get("by") == "kubelet" else ""
    evicted, victims = incident.get("evicted", ()), incident.get("oom_victims", ())
    texts = [filled(f"{{pod}} {would}{by} (rank {{rank}}, grace {{grace_s:g}} s)", one) for one in evicted]
    for one in victims[:_NAMED]:
        pod = "[ of {pod}]" if one.get("pod") else " outside every pod"
        size = "({rss_bytes:bytes}[, rank {policy_rank} of the policy])"
        texts.append(filled(f"{{comm}} (pid {{pid}}){pod} killed by the OOM killer {size}", one))
    killed = {one.get("pod") for one in victims}
    twice = (name for name in incident.get("reported_evicted", ()) if name in killed)
    texts += [f"{name} is Evicted by the kubelet as the API has it, and was OOM-killed" for name in twice]
    if len(victims) > _NAMED:
        texts.append(f"{len(victims) - _NAMED} more processes killed with it")
    return "; ".join(texts) or "nobody was evicted or killed"


def _when(incident: Json) -> str:
    lasted = (unix_time(incident["end"]) - unix_time(incident["start"])) * 1000
    return f"{local_time(incident['start'], 'milliseconds')}, for {format_ms(lasted)}, in {incident['domain']}"


def _verdict(incident: Json) -> str:
    flags = f" ({', '.join(incident['flags'])})" if incident.get("flags") else ""
    margin = "" if format_margin(incident) == "-" else f", margin {format_margin(incident)}"
    observed = "; only observed: nobody was touched" if incident.get("observed") else ""
    return f"{incident['verdict']}{flags}{margin}{observed}; incident {incident['id']}"


def timeline(steps: Sequence[Json], width: int) -> Iterator[str]:
    """One line for each step: its time, what was available then, what happened. Long rows of the same are folded."""
    rows = list(timeline_rows(steps))
    times = max(len(row.clock) for row in rows)
    sizes = max(len("available"), *(len(row.available) for row in rows))
    yield f"  {'t':>{times}}  {'available':>{sizes}}"
    for row in rows:
        margin = " " * (times + sizes + 6)
        yield from _wrap(row.text, width, margin + "  ", f"  {row.clock:>{times}}  {row.available:>{sizes}}  ")


class Row(NamedTuple):
    clock: str
    available: str
    text: str


def timeline_rows(steps: Sequence[Json]) -> Iterator[Row]:
    """The lines of a timeline: steps, pauses of a second and more, and what long rows of the same stand for."""
    before: float | None = None
    for step, folded in _fold(steps):
        t_ms = step["t_ms"]
        if before is not None and t_ms - before >= _PAUSE_MS:
            yield Row("", "", f"... {format_ms(t_ms - before)} later")
        before = t_ms
        if folded:
            yield Row(_clock(t_ms), "", f"... {folded} more: {step['what']}")
        else:
            yield Row(_clock(t_ms), _available(step), describe(step))


def _clock(t_ms: float) -> str:
    """As `format_ms`, but steps within a millisecond stay apart after a long time too."""
    return f"{t_ms / 1000:.3f} s" if abs(t_ms) >= 10_000 else format_ms(t_ms)


def _available(step: Json) -> str:
    size = step.get("available")
    return format_bytes(size) if isinstance(size, int) else ""


def _fold(steps: Sequence[Json]) -> Iterator[tuple[Json, int]]:
    """Each step with 0; of a long row of one kind the ends, and between them one step and how many it stands for."""
    for row in (list(alike) for _, alike in groupby(steps, lambda step: step["what"])):
        hidden = row[_ENDS:-_ENDS] if len(row) > _FOLD else []
        yield from ((step, 0) for step in (row[:_ENDS] if hidden else row))
        if hidden:
            yield hidden[0], len(hidden)
            yield from ((step, 0) for step in row[-_ENDS:])


def _counterfactual(what_if: Json, needless: bool) -> str:
    """One sentence: would a kubelet have decided in time? ``needless``: only its own formula was crossed."""
    if needless:
        share = f"{what_if['detected']:.0%} of cases"
        text = f"A kubelet polling every 10 s would have evicted here in {share}; nothing was wrong"
    elif what_if["oom_ms"] is None:
        text = "A kubelet polling every 10 s: no OOM kill was coming"
    else:
        text = f"A kubelet polling every 10 s would have decided in time in {what_if['detected']:.0%} of cases"
    if what_if["oom_ms"] is not None:
        text += f"; the pod would have been dead in time in {what_if['in_time']:.0%}"
        if what_if["in_time_if_obeying"] != what_if["in_time"]:
            text += f" ({what_if['in_time_if_obeying']:.0%} if it obeys SIGTERM)"
    return f"{text}."


def _wrap(text: str, width: int, indent: str, first: str | None = None) -> list[str]:
    """The text in lines of ``width`` columns at most, harmless for a terminal; names are never broken."""
    return textwrap.wrap(
        clean(text),
        max(width, _MIN_WIDTH, len(indent) + 20),
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
