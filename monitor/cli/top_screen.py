"""The screen of `outrace top` as lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from monitor.cli.output import Line, clip, filled, format_bytes, plain, shorten, table_lines
from monitor.cli.top_frame import FILES, Frame
from monitor.policy.signals import ALLOCATABLE_MEMORY, DOMAIN_OF, MEMORY
from monitor.race.units import span

#: Pods that are shown, however few lines there are: the lines above them go first.
_PODS = 4
#: Of what is held or wrong, as many lines.
_NOTICES = 3
#: Columns beside the name, of which so much is always shown.
_COLUMNS, _NAME = ("", "#", "STALL", "OVER", "USED", "PRIORITY", "GROWTH"), 22
#: The column is there from this share of a second on.
_STALLS = 0.01
#: A pod with its place in the order of eviction, from 1; None: it is never evicted.
Row = tuple[int | None, Frame]


def screen(frame: Frame, width: int, height: int) -> list[Line]:
    """At most ``height`` lines of at most ``width`` columns: the first pods alone, where there is no room for all."""
    above, below = [*_above(frame, width, _NOTICES)], [*_below(frame, width)]
    pods = rows(frame)
    above = above[: max(1, height - min(_PODS, len(pods)) - 1)]
    count = max(_PODS, height - len(above) - len(below) - 1)
    shown = [*above, *table(frame, pods[:count], width), *below]
    return [clip(one, width) for one in shown[:height]]


def once(frame: Frame, width: int) -> Iterator[str]:
    """Everything, for a pipe, a file, and a terminal that places no text. Only bars and pods go by ``width``."""
    for one in (*_above(frame, width), *table(frame, rows(frame), width), *_below(frame, width)):
        yield plain(one.text).rstrip()
    for name, value in frame.items():
        if name.startswith("memory_"):
            # As the scripts of the Kubernetes documentation print them: memory.available_in_kb 123
            yield f"{name.replace('_', '.', 1)} {value}"


def _title(frame: Frame, width: int) -> Line:
    daemon = frame["daemon"]
    if daemon is None:
        source = "no daemon" if frame["source"] == FILES else "no new figures"
    else:
        facts = (daemon["name"], daemon["mode"], daemon["rung"], "armed" if daemon["armed"] else "")
        source = " ".join(str(fact) for fact in facts if fact)
    left, clock = plain(f"outrace top  {source}"), frame["time"][11:]
    return Line(
        left + (clock.rjust(width - len(left)) if len(left) + len(clock) < width else ""), "title" if daemon else "warn"
    )


def _above(frame: Frame, width: int, most: int | None = None) -> Iterator[Line]:
    """Above the pods: the title, what memory is made of, the thresholds, and ``most`` lines of what is held or wrong;
    without ``most`` all of it but for what `outrace top --once` prints to stderr.
    """
    yield _title(frame, width)
    found = marks(frame)
    for name in ("node", "kubepods"):
        if frame[name] is not None:
            yield from map(Line, filter(None, bar_lines(name, frame, found, width)))
    yield legend(frame)
    for mark in found:
        domain = frame[DOMAIN_OF[mark.threshold["signal"]]] or {}
        yield threshold_line(mark, domain.get("growth_bytes_per_s"))
    daemon = frame["daemon"] or {}
    texts = [f"not ready: {daemon['not_ready']}"] if daemon.get("not_ready") else []
    texts += [f"node conditions: {', '.join(daemon['conditions'])}"] if daemon.get("conditions") else []
    texts += [*suspension_lines(frame["braked"]), *held_lines(frame["held"])]
    texts += [] if most is None else frame["problems"]
    texts += [frame["unlisted"]] if frame["unlisted"] else []
    yield from (Line(text, "warn") for text in texts[:most])
    if most is not None and len(texts) > most:
        yield Line(f"and {len(texts) - most} lines more: outrace top --once | cat", "dim")


def _below(frame: Frame, width: int) -> Iterator[Line]:
    if (victim := frame["kernel_victim"]) is not None:
        yield Line(f"the kernel kills next: {_victim(victim, width)}", "bad")
    if (daemon := frame["daemon"]) is not None:
        yield _losses(daemon)


def _victim(victim: Frame, width: int) -> str:
    process = f"{shorten(plain(victim['comm']), 24)} ({victim['pid']})"
    what = f", {format_bytes(victim['rss'])}, adj {victim['oom_score_adj']}"
    pod, room = plain(victim["pod"] or ""), width - 27 - len(process + what)
    return process + (f" of {shorten(pod, max(8, room))}" if pod else ", in no pod") + what


def _losses(daemon: Frame) -> Line:
    """What the daemon has dropped since it started, and what may move before it sees it."""
    lost = ", ".join(f"{where} {count}" for where, count in (daemon["lost"] or {}).items() if count)
    none = "losses unknown" if daemon["lost"] is None else "no record lost"
    bound = daemon["bound_bytes"]
    unseen = f"; {format_bytes(bound)} may move unseen" if bound else ""
    trigger = f"; trigger {daemon['trigger']}" if daemon["trigger"] else ""
    return Line(f"{f'lost records: {lost}' if lost else none}{unseen}{trigger}", "bad" if lost else "")


_SUSPENDED = (
    "evictions for {signal} are suspended for {held_s:.1f} s ({reason}): pods have {pods_bytes:bytes}; outside are "
    "{outside_bytes:bytes}[, changing by {growth_outside:bytes} a second]; the kubelet would evict {name} now"
)
_HELD = (
    "{pod} is held[ {step} the kubelet's line] for {held_s:.1f} s ({reason}, {brake}[, at most {cap:bytes}]); {signal} "
    "was {available:bytes}[, killed below {second_line:bytes}]; its time limit is in {left_s:.0f} s"
)


def suspension_lines(braked: Frame | None) -> Iterator[str]:
    """No line while evictions are not suspended. ``braked``: `NodeState.braked`; docs/operations.md has its reasons."""
    if braked is not None:
        yield filled(_SUSPENDED, braked)
        yield from (f"  {taker}" for taker in braked["takers"])


def held_lines(held: Sequence[Frame]) -> Iterator[str]:
    """One line for each held pod. ``held``: `monitor.side.holds.Holds.shown`."""
    return (filled(_HELD, one) for one in held)


# the pods


def rows(frame: Frame) -> list[Row]:
    """The pods in the policy's order."""
    found, place = [], 0
    for pod in frame["pods"]:
        place += not pod["critical"]
        found.append((None if pod["critical"] else place, pod))
    return found


def table(frame: Frame, shown: Sequence[Row], width: int) -> list[Line]:
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
    made = [Line(text, "bad" if "K" in each[""] else "") for text, each in zip(lines, cells, strict=True)]
    return [Line(head, "dim"), *(made if frame["pods"] else [Line("no pods")])]


def _cells(frame: Frame, row: Row) -> dict[str, str]:
    (rank, pod), victim = row, frame["kernel_victim"]
    share = pod["stall_ratio"]
    flags = ("P" if rank == 1 else "") + ("K" if victim is not None and victim["uid"] == pod["uid"] else "")
    return {
        "": flags + ("H" if any(one["uid"] == pod["uid"] for one in frame["held"]) else ""),
        "#": "-" if rank is None else str(rank),
        "POD": plain(f"{pod['namespace']}/{pod['name']}".lstrip("/")),
        "STALL": "?" if share is None else f"{share:.0%}",
        "OVER": format_bytes(pod["over_request"]),
        "USED": format_bytes(pod["working_set"]),
        "PRIORITY": "?" if pod["priority"] is None else str(pod["priority"]),
        "GROWTH": growth_text(pod["growth_bytes_per_s"]),
    }


def growth_text(count: float | None) -> str:
    """Bytes a second: `+1.5Mi/s`; `=` for none worth a digit, `?` while it is not known."""
    if count is None:
        return "?"
    if abs(count) < 1024:
        return "="
    return f"{'+' if count > 0 else ''}{format_bytes(round(count))}/s"


# The bars: used memory with a mark for every threshold. From the left: what is no page cache, active_file, and
# inactive_file, which the kubelet counts as available. A threshold's mark is where use reaches it: for
# `memory.available` when the end of active_file is there, for `memory.reclaimable`, which leaves page cache out, when
# the end of `used` is.


#: Part -> its character.
PARTS = {"used": "#", "active_file": "=", "inactive_file": "-"}
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


def parts(domain: Frame) -> dict[str, int]:
    """Bytes by part. On the machine no kernel memory is in them: the kubelet counts none as used."""
    used = domain["working_set"] - domain["active_file"]
    return {"used": used, **{name: domain[name] for name in ("active_file", "inactive_file")}}


def bar_lines(name: str, frame: Frame, found: Sequence[Mark], width: int) -> tuple[str, str]:
    """The bar of ``node`` or ``kubepods``, and the line with its marks."""
    domain = frame[name]
    capacity = domain["capacity"]
    grows = domain["growth_bytes_per_s"]
    figures = f" {format_bytes(domain['working_set'])} of {format_bytes(capacity)}"
    figures += "" if grows is None else f" {grows / 2**20:+.1f} MiB/s"
    room = width - _LABEL - 2 - len(figures)
    label = f"{name:<{_LABEL}}"
    if not capacity or room < _NARROW:
        return label + figures.strip(), ""
    own = [mark for mark in found if DOMAIN_OF[mark.threshold["signal"]] == name]
    row = [" "] * room
    for mark in sorted(own, key=lambda one: one.at):
        column = min(room - 1, max(0, mark.at * room // capacity))
        free = [i for i in range(room) if row[i] == " "]
        if free:  # beside another one where two are at the same place
            row[min(free, key=lambda i: (abs(i - column), i))] = mark.letter
    return f"{label}[{_bar(parts(domain), capacity, room)}]{figures}", " " * (_LABEL + 1) + "".join(row)


def _bar(sizes: Mapping[str, int], capacity: int, room: int) -> str:
    """The inside of a bar, ``room`` characters."""
    made, seen = "", 0
    for name, char in PARTS.items():
        seen += sizes[name]
        made = made.ljust(min(room, round(seen * room / capacity)), char)
    return made.ljust(room, _FREE)


def legend(frame: Frame) -> Line:
    """What the characters of the node's bar are, with their amounts."""
    sizes = parts(frame["node"])
    return Line("".join(f"{char} {name} {format_bytes(sizes[name])}  " for name, char in PARTS.items()))


def threshold_line(mark: Mark, growth: float | None) -> Line:
    """A threshold: its mark, what is left, and when it is reached at this ``growth`` (bytes/s of the working set)."""
    one = mark.threshold
    what = f"{one['signal']}<{one['value']} {one['kind']}" + (" (a kubelet's)" if one["compared"] else "")
    left = f"met, {format_bytes(-one['distance'])} short" if one["met"] else f"{format_bytes(one['distance'])} left"
    when = ""
    if growth and 0 <= one["distance"] < growth * _SOON_S and one["signal"] in (MEMORY, ALLOCATABLE_MEMORY):
        when = f", {span(one['distance'] / growth * 1e9)} at this growth"
    # A kubelet's own threshold is no alarm where the formulas in force see nothing short.
    return Line(f"{mark.letter} {what}: {left}{when}", "dim" if one["compared"] else "bad" if one["met"] else "")
