"""The screen of `outrace top` as lines: what is shown, and what is left out first where room is short."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from monitor.cli.output import Line, Span, clip, format_bytes, line, plain, shorten, table_lines, text_of, width_of
from monitor.cli.top_frame import FILES, Frame
from monitor.policy.signals import ALLOCATABLE_MEMORY, DOMAIN_OF, MEMORY
from monitor.policy.suspension import NO_GAIN, NOT_COVERED, OUTGROWN
from monitor.race.units import span

#: Pods that are shown before anything else is left out for them.
_PODS = 4
#: Of what is held or wrong, as many lines.
_NOTICES = 3
#: Key -> lines that the pods are moved by.
_MOVES = {"up": -1, "down": 1, "pgup": -10, "pgdn": 10}
#: Columns beside the name, of which so much is always shown.
_COLUMNS, _NAME = ("", "#", "STALL", "OVER", "USED", "PRIORITY", "ADJ", "GROWTH"), 22
#: The column is there from this share of a second on.
_STALLS = 0.01


@dataclass
class View:
    """``offset``: the first pod in the window."""

    offset: int = 0
    ended: bool = False

    def press(self, key: str) -> None:
        """``key`` as `monitor.cli.top` names it."""
        self.ended = self.ended or key == "q"
        self.offset = max(0, self.offset + _MOVES.get(key, 0))


#: A pod with its place in the order of eviction, from 1; None: it is never evicted.
Row = tuple[int | None, Frame]
#: Lines that are left out together; the largest number first, 0 never.
_Block = tuple[int, Sequence[Line]]


def screen(frame: Frame, view: View, width: int, height: int) -> list[list[Span]]:
    """At most ``height`` lines of at most ``width`` columns."""
    keys = "q quit  up down page up page down"
    above, below = [*_above(frame, width, _NOTICES)], [*_below(frame, width)]
    below.append((0, [line(Span(keys if len(keys) < width else "q quit", "dim"))]))
    found = rows(frame)
    kept = height - 1 - min(len(found) or 1, _PODS)
    for spare in sorted((block for block in (*above, *below) if block[0]), key=lambda block: -block[0]):
        if sum(len(lines) for _, lines in (*above, *below)) > kept:
            (above if spare in above else below).remove(spare)
    used = sum(len(lines) for _, lines in (*above, *below))
    count = max(1, height - used - 1)
    view.offset = max(0, min(view.offset, len(found) - count))
    window = table(frame, found[view.offset : view.offset + count], width)
    window += [line("")] * (height - used - len(window))
    whole = [*_lines(above), *window, *_lines(below)]
    return [clip(one, width) for one in (whole if len(whole) <= height else [*whole[: height - 1], whole[-1]])]


def once(frame: Frame, width: int) -> Iterator[str]:
    """Everything, for a pipe, a file, and a terminal that places no text. Only bars and pods go by ``width``."""
    for spans in (*_lines(_above(frame, width)), *table(frame, rows(frame), width), *_lines(_below(frame, width))):
        yield text_of(spans).rstrip()
    for name, value in frame.items():
        if name.startswith("memory_"):
            # As the scripts of the Kubernetes documentation print them: memory.available_in_kb 123
            yield f"{name.replace('_', '.', 1)} {value}"


def _lines(blocks: Iterable[_Block]) -> list[Line]:
    return [one for _, lines in blocks for one in lines]


def _title(frame: Frame, width: int) -> Line:
    daemon = frame["daemon"]
    if daemon is None:
        source = "no daemon" if frame["source"] == FILES else "the daemon does not answer"
    else:
        facts = (daemon["name"], daemon["mode"], daemon["rung"], "armed" if daemon["armed"] else "")
        source = " ".join(str(fact) for fact in facts if fact)
    left = line(Span("outrace top", "title"), "  ", Span(source, "" if daemon else "warn"))
    clock = frame["time"][11:]
    room = width - width_of(left) - len(clock)
    return [*left, Span(" " * room + clock)] if room > 0 else left


def _above(frame: Frame, width: int, most: int | None = None) -> Iterator[_Block]:
    """Above the pods: the title, what memory is made of, the thresholds, and ``most`` lines of what is held or wrong;
    without ``most`` all of it but for what `outrace top --once` prints to stderr.
    """
    yield 0, [_title(frame, width)]
    found = marks(frame)
    for spare, name in ((0, "node"), (5, "kubepods")):
        if frame[name] is not None:
            yield spare, [one for one in bar_lines(name, frame, found, width) if one]
    yield 6, legend(frame, width)
    # Those that are met, and then the nearest, stay longest.
    near = sorted(found, key=lambda mark: mark.threshold["distance"])
    for mark in found:
        domain = frame[DOMAIN_OF[mark.threshold["signal"]]] or {}
        yield 1 + min(3, near.index(mark)), [threshold_line(mark, domain.get("growth_bytes_per_s"))]
    daemon = frame["daemon"] or {}
    texts = [] if daemon or frame["source"] == FILES else [frame["source"]]
    texts += [f"not ready: {daemon['not_ready']}"] if daemon.get("not_ready") else []
    texts += [f"node conditions: {', '.join(daemon['conditions'])}"] if daemon.get("conditions") else []
    texts += [*suspension_lines(frame["braked"]), *held_lines(frame["held"])]
    texts += [] if most is None else frame["problems"]
    texts += [frame["unlisted"]] if frame["unlisted"] else []
    for text in texts[:most]:
        yield 3, [line(Span(text, "warn"))]
    if most is not None and len(texts) > most:
        yield 7, [line(Span(f"and {len(texts) - most} lines more: outrace top --once | cat", "dim"))]


def _below(frame: Frame, width: int) -> Iterator[_Block]:
    if (victim := frame["kernel_victim"]) is not None:
        yield 2, [line("the kernel kills next: ", Span(_victim(victim, width), "bad"))]
    if (daemon := frame["daemon"]) is not None:
        yield 3, [_losses(daemon)]


def _victim(victim: Frame, width: int) -> str:
    process = f"{shorten(plain(victim['comm']), 24)} ({victim['pid']})"
    what = f", {format_bytes(victim['rss'])}, adj {victim['oom_score_adj']}"
    pod, room = plain(victim["pod"] or ""), width - 27 - len(process + what)
    return process + (f" of {shorten(pod, max(8, room))}" if pod else ", in no pod") + what


def _losses(daemon: Frame) -> Line:
    """What the daemon has dropped since it started, and what may move before it sees it."""
    lost = ", ".join(f"{where} {count}" for where, count in (daemon["lost"] or {}).items() if count)
    none = "losses unknown" if daemon["lost"] is None else "no record lost"
    records = Span(f"lost records: {lost}", "bad") if lost else Span(none)
    bound = daemon["bound_bytes"]
    unseen = f"; {format_bytes(bound)} may move unseen" if bound else ""
    trigger = f"; trigger {daemon['trigger']}" if daemon["trigger"] else ""
    return line(records, unseen, trigger)


def suspension_lines(braked: Frame | None) -> Iterator[str]:
    """No line while evictions are not suspended. ``braked``: `NodeState.braked`."""
    if braked is None:
        return
    pods, outside = format_bytes(braked["pods_bytes"]), format_bytes(braked["outside_bytes"])
    rate = "at an unknown rate"
    if braked["growth_outside"] is not None:
        rate = f"by {format_bytes(max(0, braked['growth_outside']))} a second"
    why = {
        NOT_COVERED: f"all pods that may be evicted have {pods} together, less than what is missing",
        OUTGROWN: f"what is outside of the pods grows {rate} and would use up all they have, {pods}, within a minute",
        NO_GAIN: "the last evictions gained nothing",
    }
    reason = why.get(braked["reason"], braked["reason"])
    yield f"evictions for {braked['signal']} are suspended for {braked['held_s']:.1f} s: {reason}"
    yield f"the kubelet would evict {braked['name']} now; {outside} are in use that no eviction frees"
    for taker in braked["takers"]:
        yield f"  {taker}"


def held_lines(held: Sequence[Frame]) -> Iterator[str]:
    """One line for each held pod. ``held``: `monitor.side.holds.Holds.shown`."""
    for one in held:
        why = "it is the next victim" if one["reason"] == "victim" else "it grows"
        cap = "" if one["cap"] is None else f", at most {format_bytes(one['cap'])}"
        line = "" if one["second_line"] is None else f", killed below {format_bytes(one['second_line'])}"
        step = f" {one['step']} the kubelet's line" if one["step"] else ""
        yield (
            f"{one['pod']} is held{step} for {one['held_s']:.1f} s ({one['brake']}{cap}), because {why}; "
            f"{one['signal']} was {format_bytes(one['available'])}{line}; its time limit is in {one['left_s']:.0f} s"
        )


# the pods


def rows(frame: Frame) -> list[Row]:
    """The pods in the policy's order."""
    found, place = [], 0
    for pod in frame["pods"]:
        place += not pod["critical"]
        found.append((None if pod["critical"] else place, pod))
    return found


def table(frame: Frame, shown: Sequence[Row], width: int) -> list[list[Span]]:
    """The header and a line for each of these pods, names shortened to fit. At its beginning stand `P` (the policy
    evicts it next), `K` (the kernel kills it next) and `H` (it is held).
    """
    cells = [_cells(frame, row) for row in shown]
    columns = list(_COLUMNS)
    if all((pod["stall_ratio"] or 0) < _STALLS for pod in frame["pods"]):
        columns.remove("STALL")
    used = len(max(table_lines(columns, [[each[name] for name in columns] for each in cells]), key=len))
    room = max(_NAME, width - used - 2)
    columns.insert(2, "POD")
    head, *lines = table_lines(columns, [[shorten(each[name], room) for name in columns] for each in cells])
    made = [line(Span(head, "dim"))]
    made += [line(Span(text, "bad" if "K" in each[""] else "")) for text, each in zip(lines, cells, strict=True)]
    return made if frame["pods"] else [*made, line("no pods")]


def _cells(frame: Frame, row: Row) -> dict[str, str]:
    (rank, pod), victim = row, frame["kernel_victim"]
    adj, share = pod["oom_score_adj"], pod["stall_ratio"]
    flags = ("P" if rank == 1 else "") + ("K" if victim is not None and victim["uid"] == pod["uid"] else "")
    return {
        "": flags + ("H" if any(one["uid"] == pod["uid"] for one in frame["held"]) else ""),
        "#": "-" if rank is None else str(rank),
        "POD": plain(f"{pod['namespace']}/{pod['name']}".lstrip("/")),
        "STALL": "?" if share is None else f"{share:.0%}",
        "OVER": format_bytes(pod["over_request"]),
        "USED": format_bytes(pod["working_set"]),
        "PRIORITY": "?" if pod["priority"] is None else str(pod["priority"]),
        "ADJ": "?" if adj is None else str(adj["highest"]),
        "GROWTH": growth_text(pod["growth_bytes_per_s"]),
    }


def growth_text(count: float | None) -> str:
    """Bytes a second: `+1.5Mi/s`; `=` for none worth a digit, `?` while it is not known."""
    if count is None:
        return "?"
    if abs(count) < 1024:
        return "="
    return f"{'+' if count > 0 else ''}{format_bytes(round(count))}/s"


# The bars: what memory is made of, with a mark for every threshold. From the left: what counts as used (anon, kernel,
# other, active_file), then inactive_file, which the kubelet counts as available. A threshold's mark is where use
# reaches it: for `memory.available` when the end of active_file is there, for `memory.reclaimable`, which leaves page
# cache out, when the end of `other` is. Of the whole machine the kubelet counts no kernel memory as used: it stands
# at the right end, where it takes from what looks free.


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
#: A threshold that is further away than this, in seconds, says nothing about when it is met.
_SOON_S = 3600


class Mark(NamedTuple):
    """A threshold with the letter of its mark, and the use in bytes at which it is met."""

    letter: str
    threshold: Frame
    at: int


def marks(frame: Frame) -> list[Mark]:
    signals = frame["signals"]
    return [
        Mark(_LETTERS[i % len(_LETTERS)], one, signals[one["signal"]]["capacity"] - one["quantity"])
        for i, one in enumerate(frame["thresholds"])
    ]


def parts(domain: Frame, is_machine: bool) -> dict[str, int]:
    """Bytes by part. `other` is what is charged and in none of the rest: shared memory, for the most part."""
    found = {name: domain[name] or 0 for name in ("anon", "kernel", "active_file", "inactive_file")}
    counted = sum(count for name, count in found.items() if name != "kernel" or not is_machine)
    return {**found, "other": max(0, domain["usage"] - counted)}


def bar_lines(name: str, frame: Frame, found: Sequence[Mark], width: int) -> tuple[list[Span], list[Span]]:
    """The bar of ``node`` or ``kubepods``, and the line with its marks."""
    domain = frame[name]
    capacity = domain["capacity"]
    grows = domain["growth_bytes_per_s"]
    figures = f" {format_bytes(domain['working_set'])} of {format_bytes(capacity)}"
    figures += "" if grows is None else f" {grows / 2**20:+.1f} MiB/s"
    room = width - _LABEL - 2 - len(figures)
    label = f"{name:<{_LABEL}}"
    if not capacity or room < _NARROW:
        return line(Span(label, "title"), figures.strip()), []
    cells = _bar_cells(parts(domain, _is_machine(name, frame)), capacity, room, _is_machine(name, frame))
    own = [mark for mark in found if DOMAIN_OF[mark.threshold["signal"]] == name]
    row: list[Mark | None] = [None] * room
    for mark in sorted(own, key=lambda one: one.at):
        column = min(room - 1, max(0, mark.at * room // capacity))
        free = [i for i in range(room) if row[i] is None]
        if free:  # beside another one where two are at the same place
            row[min(free, key=lambda i: (abs(i - column), i))] = mark
    below = [Span(" " if mark is None else mark.letter, "" if mark is None else _style(mark)) for mark in row]
    return line(Span(label, "title"), "[", *cells, "]", figures), line(" " * (_LABEL + 1), *below)


def _is_machine(name: str, frame: Frame) -> bool:
    return name == "node" and bool(frame["node"]["cgroup"] == frame["hierarchy"]["root"])


def _bar_cells(sizes: Mapping[str, int], capacity: int, room: int, kernel_apart: bool) -> list[Span]:
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


def legend(frame: Frame, width: int) -> list[list[Span]]:
    """What the characters of the node's bar are, with their amounts: one line, two where it is narrow."""
    domain = frame["node"]
    sizes = parts(domain, _is_machine("node", frame))
    entries = list[Span]()
    for name, char, style in PARTS:
        known = name == "other" or domain[name] is not None
        text = f" {name} {format_bytes(sizes[name]) if known else 'unknown'}  "
        entries += [Span(char, style), Span(text)]
    return [entries] if width_of(entries) - 2 <= width else [entries[:6], entries[6:]]


def threshold_line(mark: Mark, growth: float | None) -> list[Span]:
    """A threshold: its mark, what is left, and when it is reached at this ``growth`` (bytes/s of the working set)."""
    one = mark.threshold
    what = f"{one['signal']}<{one['value']} {one['kind']}" + (" (a kubelet's)" if one["compared"] else "")
    left = f"met, {format_bytes(-one['distance'])} short" if one["met"] else f"{format_bytes(one['distance'])} left"
    when = ""
    if growth and 0 <= one["distance"] < growth * _SOON_S and one["signal"] in (MEMORY, ALLOCATABLE_MEMORY):
        when = f", {span(one['distance'] / growth * 1e9)} at this growth"
    style = "bad" if one["met"] and not one["compared"] else ""
    return line(Span(f"{mark.letter} ", _style(mark)), f"{what}: ", Span(left, style), when)


def _style(mark: Mark) -> str:
    """A kubelet's own threshold is no alarm where the formulas in force see nothing short."""
    return "dim" if mark.threshold["compared"] else "bad" if mark.threshold["met"] else "warn"
