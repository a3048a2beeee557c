"""The other pages of the live view of `outrace top`: one pod, the last incidents, the keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monitor.cli.incident_text import format_margin, local_time
from monitor.cli.output import format_bytes, table_lines
from monitor.cli.spans import Span, line, plain, shorten, wrap
from monitor.cli.top_pods import Row, flags, growth_text, levels, name_of
from monitor.cli.top_sample import Sample
from monitor.race.badness import Process

Json = Mapping[str, Any]

_PROCESSES = 10
HELP = (
    ("up down pgup pgdn home end", "choose a pod (also j, k, g, G)"),
    ("enter", "show the chosen pod; again, esc or backspace: back"),
    ("s S", "sort by the next, the previous column"),
    ("r", "reverse the order"),
    ("/", "show the pods whose name contains a text; esc takes it away"),
    ("space", "pause: no more looks until it is pressed again"),
    ("i", "the last incidents"),
    ("h ?", "this page"),
    ("q", "quit (also Ctrl-C)"),
)
_READING = (
    "The bar: # anon, k kernel, o other (shared memory), = active_file, - inactive_file, . free. A letter below it "
    "marks the use at which that threshold is met. What is available by memory.available is all but # k o =; of the "
    "whole machine the kubelet counts no kernel memory as used, and k stands at the right.",
    "41 s (80%: 30 s-62 s): the daemon's forecast, and the interval that 80 % of such crossings fall into.",
    "P: the policy evicts this pod next. K: the kernel's OOM killer would kill in this pod next. H: this pod is held. "
    "#: the place in the order of eviction, - for a pod that is never evicted. OVER: working set less request. ADJ: "
    "the highest oom_score_adj in the pod. GROWTH: over the last 10 s; = is none, ? is not known yet. TREND: the "
    "last 12 looks, from the least (blank) to the most (@).",
)


def pod_page(sample: Sample, row: Row, width: int) -> Iterator[list[Span]]:
    """Everything that is known about one pod."""
    frame, pod = sample.frame, row.pod
    yield line(Span(name_of(pod), "title"))
    yield line(_standing(frame, row))
    yield line(f"uid {plain(pod['uid'])}, cgroup {plain(pod['cgroup'] or 'unknown')}")
    adj = pod.get("oom_score_adj")
    scores = "unknown" if adj is None else str(adj["highest"])
    if adj is not None and adj["lowest"] != adj["highest"]:
        scores = f"{adj['lowest']} to {adj['highest']}"
    yield line(f"{pod['qos'] or 'QoS class unknown'}, priority {_known(pod['priority'])}, oom_score_adj {scores}")
    over = "" if pod["over_request"] is None else f", {format_bytes(pod['over_request'])} over its request"
    request = "of an unknown request" if pod["request"] is None else f"of {format_bytes(pod['request'])} requested"
    yield line(f"working set {format_bytes(pod['working_set'])} {request}{over}")
    yield line(
        f"usage {format_bytes(pod['usage'])}: active_file {format_bytes(pod['active_file'])}, "
        f"inactive_file {format_bytes(pod['inactive_file'])}, swap {format_bytes(pod['swap'])}; "
        f"growth {growth_text(pod.get('growth_bytes_per_s'))}"
    )
    yield from chart(sample.history.get(pod["uid"], ()), width)
    for one in (one for one in frame["held"] if one["uid"] == pod["uid"]):
        text = f"held for {one['held_s']:.1f} s ({plain(one['brake'])}), because {plain(one['reason'])}"
        yield line(Span(f"{text}; its time limit is in {one['left_s']:.0f} s", "warn"))
    yield line("")
    limits = [("pod", pod), *((plain(name), one) for name, one in sorted(pod["containers"].items()))]
    names = ("min", "low", "high", "soft", "max", "swap_max")
    cells = [[shorten(name, 30), *(format_bytes(one["limits"].get(n)) for n in names)] for name, one in limits]
    yield from (line(text) for text in table_lines(["limits of", *names], cells))
    yield line("")
    yield from _processes(sample.processes.get(pod["uid"], ()))
    about = [one for one in frame.get("incidents", ()) if _has_part(one, pod)]
    if about:
        yield line("")
        yield from incident_lines(about, width)


def _standing(frame: Json, row: Row) -> str:
    if row.rank is None:
        return "never evicted"
    marked = {"P": "the policy's next victim", "K": "the kernel's next victim", "H": "held"}
    return ", ".join([f"number {row.rank} of the order", *(marked[flag] for flag in flags(frame, row))])


def _known(value: object) -> str:
    return "unknown" if value is None else str(value)


def chart(history: Sequence[int], width: int) -> Iterator[list[Span]]:
    """The working set over the last looks, between the least and the most of them; nothing of one look alone."""
    if len(history) < 2:
        return
    kept = history[-max(10, width - 30) :]
    chars = levels(kept)
    if chars:
        yield line(f"{format_bytes(min(kept))} ", Span(chars, "anon"), f" {format_bytes(max(kept))}")
    else:
        yield line(f"the working set stood still over the last {len(kept)} looks")


def _processes(found: Sequence[tuple[int | None, Process]]) -> Iterator[list[Span]]:
    if not found:
        yield line("no process of it is known")
        return
    rows = [
        (
            process.pid,
            shorten(plain(process.comm), 20),
            format_bytes(process.rss),
            format_bytes(process.swap),
            process.oom_score_adj,
            "never" if points is None else points,
        )
        for points, process in found[:_PROCESSES]
    ]
    yield from (line(text) for text in table_lines(["pid", "comm", "rss", "swap", "oom_score_adj", "badness"], rows))


def _has_part(incident: Json, pod: Json) -> bool:
    name = f"{pod['namespace']}/{pod['name']}"
    return any(one.get("pod") == name for key in ("evicted", "oom_victims") for one in incident.get(key) or ())


def incident_page(frame: Json, width: int) -> Iterator[list[Span]]:
    yield line(Span("the last incidents", "title"), "  (outrace incidents list, show ID)")
    yield line("")
    found = frame.get("incidents", ())
    if not found:
        yield line("none is stored")
    for one in found:
        yield from incident_lines([one], width)
        for text in wrap(plain(one.get("summary") or ""), width - 4):
            yield line(f"    {text}")


def incident_lines(found: Sequence[Json], width: int) -> Iterator[list[Span]]:
    """A line for each: when, the verdict, whom, by how much."""
    for one in found:
        verdict = plain(one["verdict"])
        style = "bad" if verdict.startswith("oom_") else "good" if verdict in ("eviction_won", "relieved") else "warn"
        whom = [plain(each.get("pod") or each.get("comm") or "?") for each in _victims(one)]
        names = "" if not whom else f" {whom[0]}" + (f" +{len(whom) - 1}" if len(whom) > 1 else "")
        observed = " (observed)" if one.get("observed") else ""
        margin = "" if format_margin(one) == "-" else f", margin {format_margin(one)}"
        clock = local_time(one["start"])[:19].replace("T", " ")
        room = max(8, width - len(clock) - len(verdict) - len(observed) - len(margin) - 2)
        yield line(f"{clock} ", Span(verdict, style), f"{observed}{shorten(names, room)}{margin}")


def _victims(incident: Json) -> list[Json]:
    return [*(incident.get("evicted") or ()), *(incident.get("oom_victims") or ())]


def help_page(width: int) -> Iterator[list[Span]]:
    yield line(Span("keys", "title"))
    for keys, what in HELP:
        yield line(Span(f"  {keys:<28}", "good"), what)
    for paragraph in _READING:
        yield line("")
        yield from (line(text) for text in wrap(paragraph, width, ""))
