"""An incident as text: the verdict, who, when and where, the timeline, what a kubelet would have done, the advice.

Only the layout is made here; summary and advice come with the incident. Names of processes are whatever a process
called itself, so nothing unprintable gets through to the terminal.
"""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from monitor.cli.output import format_bytes, table_lines
from monitor.race.advisor import Advised
from monitor.race.units import quantity
from monitor.side.incidents.file import unix_time

Json = Mapping[str, Any]

#: Steps of one kind in a row beyond which the middle ones become one line, and how many stay at its ends.
_FOLD = 6
_ENDS = 2
#: Victims of the OOM killer that are named.
_NAMED = 3
_REACTIONS = {
    "outrace": "outrace --enforce",
    "kubelet-notified": "kubelet, notified (cgroup v1)",
    "kubelet": "kubelet, every 10 s",
}
#: A pause in the timeline that gets a line of its own, in ms.
_PAUSE_MS = 1000.0
#: Fields of a step that are bytes although their name does not say so.
_SIZES = frozenset({"usage", "working_set", "available", "quantity", "rss", "limit", "freed"})
#: Narrower than this, nothing is wrapped any more.
_MIN_WIDTH = 40
#: Verdicts in which somebody was killed who need not have been, and those in which all went well.
_BAD, _GOOD = "oom_", ("eviction_won", "relieved")


def clean(text: object) -> str:
    """The text with everything unprintable as an escape: `\\x1b` cannot move anybody's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def local_time(value: object, timespec: str = "seconds") -> str:
    """Unix seconds or ISO 8601 as local ISO 8601 with its offset."""
    return datetime.datetime.fromtimestamp(unix_time(value)).astimezone().isoformat(timespec=timespec)


def format_ms(ms: float) -> str:
    """Milliseconds up to ten seconds, with three digits or so; seconds beyond."""
    if abs(ms) >= 10_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.{3 if abs(ms) < 10 else 1 if abs(ms) < 1000 else 0}f} ms"


def format_margin(incident: Json) -> str:
    """By how much: bytes and time; "-" where there was no race or it is not known."""
    size, ms = incident.get("margin_bytes"), incident.get("margin_ms")
    parts = [format_bytes(size)] if size is not None else []
    parts += [format_ms(ms)] if ms is not None else []
    return ", ".join(parts) or "-"


# the list


def list_lines(incidents: Sequence[Json], width: int | None) -> list[str]:
    """A table, one line for each incident, cut to ``width`` columns (None: whole)."""
    rows = [
        (
            local_time(incident["start"]),
            clean(incident["id"]),
            clean(incident["verdict"]) + (" (observed)" if incident.get("observed") else ""),
            _whom(incident),
            format_margin(incident),
            clean(incident.get("summary", "")),
        )
        for incident in incidents
    ]
    lines = table_lines(["time", "id", "verdict", "who", "margin", "summary"], rows)
    return [line if width is None or len(line) <= width else line[: width - 3] + "..." for line in lines]


def _whom(incident: Json) -> str:
    """The evicted pods and the OOM killer's victims, the first of each."""
    evicted = [clean(who["pod"]) for who in incident.get("evicted", ())]
    killed = [clean(who.get("pod") or who.get("comm")) for who in incident.get("oom_victims", ())]
    parts = [f"evicted {_first(evicted)}"] if evicted else []
    parts += [f"OOM {_first(list(dict.fromkeys(killed)))}"] if killed else []
    return "; ".join(parts) or "nobody"


def _first(names: Sequence[str]) -> str:
    return names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "")


# the threshold that would have won


def advice_lines(advised: Sequence[Advised]) -> list[str]:
    """A table, one line for each way of reacting."""
    rows = [
        (
            _REACTIONS[each.reaction],
            f"{each.signal}<{quantity(each.threshold)}" if each.threshold is not None else "none is enough",
            f"{each.present:.0%} by {quantity(each.present_threshold)}"
            if each.present is not None and each.present_threshold is not None
            else "no threshold",
            str(each.episodes),
        )
        for each in advised
    ]
    part = f"wins {advised[0].quantile:.4g} of races"
    return table_lines(["who reacts", part, "now", "races"], rows)


# one incident


def show_lines(incident: Json, width: int) -> Iterator[str]:
    """The whole incident, wrapped to ``width`` columns, with colours (which `click.echo` takes off in a pipe)."""
    verdict = clean(incident["verdict"])
    colour = "red" if verdict.startswith(_BAD) else "green" if verdict in _GOOD else "yellow"
    for line in _wrap(clean(incident.get("summary") or verdict.replace("_", " ")), width, ""):
        yield click.style(line, fg=colour, bold=True)
    yield ""
    yield from _wrap(_who(incident), width, "       ", "who    ")
    yield from _wrap(_when(incident), width, "       ", "when   ")
    yield from _wrap(_verdict(incident), width, "       ", "what   ")
    if incident.get("missing"):
        yield from _wrap(clean(", ".join(incident["missing"])), width, "        ", "missing ")
    if incident.get("steps"):
        yield ""
        yield click.style("timeline", bold=True)
        yield from timeline(incident["steps"], width)
    told = [sentence for each in _each(incident.get("counterfactual")) if (sentence := _counterfactual(each))]
    if told:
        yield ""
        yield click.style("with a kubelet alone", bold=True)
        for sentence in told:
            yield from _wrap(sentence, width, "  ", "  ")
    if incident.get("advice"):
        yield ""
        yield click.style("advice", bold=True)
        yield from _wrap(clean(incident["advice"]), width, "  ", "  ")


def _who(incident: Json) -> str:
    would = "would be evicted" if incident.get("observed") else "evicted"
    by = f" by the {clean(incident['by'])}" if incident.get("by") == "kubelet" else ""
    parts = [
        f"{clean(who['pod'])} {would}{by} (rank {who['rank']}, grace {who['grace_s']:g} s)"
        for who in incident.get("evicted", ())
    ]
    victims = incident.get("oom_victims", ())
    for victim in victims[:_NAMED]:
        rank = "" if victim.get("policy_rank") is None else f", rank {victim['policy_rank']} of the policy"
        of = f" of {clean(victim['pod'])}" if victim.get("pod") else " outside every pod"
        size = format_bytes(victim["rss_bytes"])
        parts.append(f"{_process(victim)}{of} killed by the OOM killer ({size}{rank})")
    if len(victims) > _NAMED:
        parts.append(f"{len(victims) - _NAMED} more processes killed with it")
    invoker = incident.get("invoker")
    if invoker:
        of = f" of {clean(invoker['pod'])}" if invoker.get("pod") else ""
        parts.append(f"{_process(invoker)}{of} asked for the memory")
    return "; ".join(parts) or "nobody was evicted or killed"


def _when(incident: Json) -> str:
    lasted = (unix_time(incident["end"]) - unix_time(incident["start"])) * 1000
    return f"{local_time(incident['start'], 'milliseconds')}, for {format_ms(lasted)}, in {clean(incident['domain'])}"


def _verdict(incident: Json) -> str:
    flags = f" ({', '.join(clean(flag) for flag in incident['flags'])})" if incident.get("flags") else ""
    margin = "" if format_margin(incident) == "-" else f", margin {format_margin(incident)}"
    observed = "; only observed: nobody was touched" if incident.get("observed") else ""
    return f"{clean(incident['verdict'])}{flags}{margin}{observed}; incident {clean(incident['id'])}"


def timeline(steps: Sequence[Json], width: int) -> Iterator[str]:
    """One line for each step: its time, what was available then, what happened. Long rows of the same are folded."""
    rows: list[tuple[str, str, str]] = []
    before: float | None = None
    for step, folded in _fold(steps):
        t_ms = step["t_ms"]
        if before is not None and t_ms - before >= _PAUSE_MS:
            rows.append(("", "", f"... {format_ms(t_ms - before)} later"))
        before = t_ms
        if folded:
            rows.append((_clock(t_ms), "", f"... {folded} more: {clean(step['what'])}"))
        else:
            rows.append((_clock(t_ms), _available(step), describe(step)))
    times = max(len(row[0]) for row in rows)
    sizes = max(len("available"), *(len(row[1]) for row in rows))
    yield f"  {'t':>{times}}  {'available':>{sizes}}"
    for t, size, words in rows:
        margin = " " * (times + sizes + 6)
        yield from _wrap(words, width, margin + "  ", f"  {t:>{times}}  {size:>{sizes}}  ")


def _clock(t_ms: float) -> str:
    """As `format_ms`, but steps within a millisecond stay apart after a long time too."""
    return f"{t_ms / 1000:.3f} s" if abs(t_ms) >= 10_000 else format_ms(t_ms)


def _available(step: Json) -> str:
    size = step.get("available")
    return format_bytes(size) if isinstance(size, int) else ""


def _fold(steps: Sequence[Json]) -> Iterator[tuple[Json, int]]:
    """Each step with 0; of a long row of one kind the ends, and between them one step and how many it stands for."""
    start = 0
    for i in range(1, len(steps) + 1):
        if i < len(steps) and steps[i]["what"] == steps[start]["what"]:
            continue
        row = steps[start:i]
        hidden = row[_ENDS:-_ENDS] if len(row) > _FOLD else []
        shown = row if not hidden else row[:_ENDS]
        yield from ((step, 0) for step in shown)
        if hidden:
            yield hidden[0], len(hidden)
            yield from ((step, 0) for step in row[-_ENDS:])
        start = i


# words


def describe(step: Json) -> str:
    """What happened in a step, in plain words; a kind that is not known as its name and its fields."""
    words = _WORDS.get(step["what"])
    if words is not None:
        try:
            return words(step)
        except KeyError:
            pass  # of another version: its fields say what there is to say
    fields = [key for key, value in step.items() if key not in ("t_ms", "what") and value is not None]
    rest = [f"{clean(key)} {_value(key, step[key])}" for key in fields]
    return clean(step["what"]).replace("_", " ") + (": " + ", ".join(rest) if rest else "")


def _value(key: str, value: object) -> str:
    is_size = key.endswith("bytes") or key in _SIZES
    return format_bytes(value) if is_size and type(value) is int else clean(value)


def _process(who: Json) -> str:
    return f"{clean(who['comm'])} (pid {who['pid']})"


def _in(memcg: str) -> str:
    return "" if memcg == "global" else f" in {clean(memcg)}"


def _of(step: Json) -> str:
    return f" of {clean(step['pod'])}" if step.get("pod") else ""


def _crossed(step: Json) -> str:
    held = f"usage {format_bytes(step['usage'])}, working set {format_bytes(step['working_set'])}"
    threshold = f"{clean(step['signal'])} below {format_bytes(step['quantity'])} in {clean(step['domain'])}"
    return f"{clean(step['kind'])} threshold crossed: {threshold} ({held})"


def _held(step: Json) -> str:
    have = "" if step.get("pods") is None else f", pods have {format_bytes(step['pods'])}"
    outside = "" if step.get("outside") is None else f", outside {format_bytes(step['outside'])}"
    kubelet = step.get("kubelet_would_evict")
    instead = f"; a kubelet would evict {clean(kubelet)}" if kubelet else ""
    return f"evictions are held: they would not help ({clean(step['reason'])}{have}{outside}){instead}"


def _decided(step: Json) -> str:
    verb = "would evict" if step["observed"] else "decides to evict"
    where = ", in the kernel" if step["trigger"] == "kernel" else ""
    held = "" if step.get("pod_working_set") is None else f", working set {format_bytes(step['pod_working_set'])}"
    why = f"(rank {step['rank']}, grace {step['grace_s']:g} s{held})"
    return f"{clean(step['by'])} {verb} {clean(step['pod'])} {why}{where}"


def _signalled(step: Json) -> str:
    name = {9: "SIGKILL", 15: "SIGTERM"}.get(step["signal"], f"signal {step['signal']}")
    return f"{name} sent to {clean(step['pod'])}"


def _gone(step: Json) -> str:
    freed = "" if step.get("freed") is None else f"; it gave back {format_bytes(step['freed'])}"
    return f"nobody is left of {clean(step['pod'])}{freed}"


def _oom(step: Json) -> str:
    limit = "the machine is out of memory" if step["limit_of"] == "global" else f"limit of {clean(step['limit_of'])}"
    if step.get("usage") is not None:
        limit += f" (usage {format_bytes(step['usage'])} of {format_bytes(step['limit'])})"
    return (
        f"OOM KILLER picks {_process(step)}{_of(step)}, rss {format_bytes(step['rss'])}, oom_score_adj "
        f"{step['oom_score_adj']}: {limit}; called by {clean(step['invoker'])} (pid {step['invoker_pid']})"
    )


def _sigkill(step: Json) -> str:
    sender = "the kernel" if step["from"] == "kernel" else clean(step["from"])
    return f"SIGKILL to {_process(step)}{_of(step)} from {'outrace' if step['ours'] else sender}"


def _grew(step: Json) -> str:
    grower = clean(step.get("pod") or step["domain"])
    return f"{grower} had grown by {format_bytes(step['bytes'])} in {step['in_s']:g} s"


def _activated(step: Json) -> str:
    shift = f"active {format_bytes(step['active_file'])}, inactive {format_bytes(step['inactive_file'])}"
    return f"page cache had become active in {clean(step['domain'])}: {shift}"


#: One for each kind of step that monitor/race/timeline.py makes.
_WORDS: dict[str, Callable[[Json], str]] = {
    "crossed": _crossed,
    "seen": lambda step: f"{clean(step['by'])} sees it",
    "held": _held,
    "not_held": lambda _: "evictions are not held any more",
    "decided": _decided,
    "signalled": _signalled,
    "gone": _gone,
    "clear": lambda step: f"{clean(step['kind'])} threshold clear again ({clean(step['signal'])})",
    "reclaim": lambda step: f"the kernel begins to reclaim{_in(step['memcg'])}",
    "oom": _oom,
    "exiting": lambda step: f"the OOM killer marks {_process(step)}{_of(step)}, which is dying already",
    "sigkill": _sigkill,
    "exited": lambda step: f"{_process(step)}{_of(step)} is dead",
    "checked": lambda step: (
        f"{clean(step['source'])} {'confirms it' if step['agrees'] else 'DISAGREES'}: {clean(step['detail'])}"
    ),
    "lost": lambda step: f"{step['count']} events of kind {clean(step['of'])} were lost",
    "more": lambda step: f"... {step['count']} more: {clean(step['of'])}",
    "grew": _grew,
    "cache_activated": _activated,
}


def _counterfactual(what_if: Json) -> str:
    """One sentence: would a kubelet have decided in time, when, and on whom."""
    how = {"poll": "polling every 10 s", "memcg": "with memcg notification"}.get(
        what_if["mode"], clean(what_if["mode"])
    )
    if what_if["oom_ms"] is None:
        text = f"A kubelet {how}: no OOM kill was coming"
    else:
        text = f"A kubelet {how} would have decided in time in {_percent(what_if['detected'])} of cases"
    if what_if["p50_ms"] is not None:
        text += f", half of them within {format_ms(what_if['p50_ms'])}"
    if what_if["oom_ms"] is not None:
        text += f"; the pod would have been dead in time in {_percent(what_if['in_time'])}"
        if what_if["in_time_if_obeying"] != what_if["in_time"]:
            text += f" ({_percent(what_if['in_time_if_obeying'])} if it obeys SIGTERM)"
    victims = [f"{clean(who['pod'])} {_percent(who['probability'])}" for who in what_if["victims"][:3]]
    return text + (f". It would have taken {', '.join(victims)}." if victims else ".")


def _percent(share: float) -> str:
    return f"{share * 100:.0f}%"


def _each(value: Any) -> Sequence[Json]:
    return [value] if isinstance(value, Mapping) else value or []


def _wrap(text: str, width: int, indent: str, first: str | None = None) -> list[str]:
    """The text in lines of at most ``width`` columns; names are never broken."""
    return textwrap.wrap(
        text,
        max(width, _MIN_WIDTH, len(indent) + 20),
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
