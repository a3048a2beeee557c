"""The screen of `outrace top` as lines: what is shown, and what is left out first where room is short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from monitor.cli.brake_text import brake_lines, held_lines
from monitor.cli.output import format_bytes
from monitor.cli.spans import Line, Span, clip, line, plain, shorten, text_of, width_of
from monitor.cli.top_bars import Json, bar_lines, legend, marks, threshold_line
from monitor.cli.top_sample import Sample
from monitor.policy.signals import DOMAIN_OF

#: Pods that are shown before anything else is left out for them.
_PODS = 4
#: Of what is held or wrong, as many lines.
_NOTICES = 3
_PAGE = 10
#: At least so much of a name is shown before columns are left out.
_NAME = 22
#: Left out in this order where the screen is narrow.
_SPARE = ("REQUEST", "QOS", "USED", "PRIORITY", "ADJ", "GROWTH")
_SHORT_QOS = {"Guaranteed": "Guar", "Burstable": "Burst", "BestEffort": "BestE"}


@dataclass
class View:
    """``offset``: the first pod in the window."""

    offset: int = 0
    ended: bool = False

    def press(self, key: str) -> None:
        """``key`` as `monitor.cli.top_live` names it."""
        if key == "q":
            self.ended = True
        elif key in _MOVES:
            self.offset = max(0, self.offset + _MOVES[key])


_MOVES = {"up": -1, "down": 1, "pgup": -_PAGE, "pgdn": _PAGE}


class Row(NamedTuple):
    """A pod with its place in the order of eviction, from 1; None: it is never evicted."""

    rank: int | None
    pod: Json


class _Block(NamedTuple):
    """Lines that are left out together; the largest ``spare`` first, 0 never."""

    spare: int
    lines: Sequence[Line]


def screen(sample: Sample, view: View, width: int, height: int) -> list[list[Span]]:
    """At most ``height`` lines of at most ``width`` columns."""
    frame = sample.frame
    above = [_Block(0, [_title(sample, width)]), *_memory(frame, width), *_notices(sample)]
    keys = "q quit  up down page up page down"
    below = [*_below(sample, width), _Block(0, [line(Span(keys if len(keys) < width else "q quit", "dim"))])]
    blocks = [*above, *below]
    found = rows(frame)
    wanted = 1 + min(len(found) or 1, _PODS)
    while sum(len(block.lines) for block in blocks) + wanted > height:
        spare = max(blocks, key=lambda block: block.spare)  # the first of those
        if spare.spare == 0:
            break
        blocks.remove(spare)
    used = sum(len(block.lines) for block in blocks)
    count = max(1, height - used - 1)
    view.offset = max(0, min(view.offset, len(found) - count))
    window = table(frame, found[view.offset : view.offset + count], width)
    whole = [
        *(one for block in above if block in blocks for one in block.lines),
        *window,
        *[line("")] * (height - used - len(window)),
        *(one for block in below if block in blocks for one in block.lines),
    ]
    return [clip(one, width) for one in (whole if len(whole) <= height else [*whole[: height - 1], whole[-1]])]


def once(sample: Sample, width: int) -> Iterator[str]:
    """Everything, for a pipe, a file, and a terminal that places no text. Only bars and pods go by ``width``."""
    frame = sample.frame
    blocks = [*_memory(frame, width), *_notices(sample, most=None)]
    above = [_title(sample, width), *(one for block in blocks for one in block.lines)]
    below = [one for block in _below(sample, width) for one in block.lines]
    for spans in (*above, *table(frame, rows(frame), width), *below):
        yield text_of(spans).rstrip()
    for name, value in frame.items():
        if name.startswith("memory_"):
            # As the scripts of the Kubernetes documentation print them: memory.available_in_kb 123
            yield f"{name.replace('_', '.', 1)} {value}"


def problem(text: Any, width: int, height: int) -> list[list[Span]]:
    """Before the first look is over."""
    made = [line(Span("outrace top", "title")), line(plain(text)), line(""), line(Span("q quit", "dim"))]
    return [clip(one, width) for one in made[:height]]


def _title(sample: Sample, width: int) -> Line:
    frame = sample.frame
    daemon = frame.get("daemon")
    if daemon is None:
        who = f"{plain(sample.asked)} does not answer" if sample.asked else "no daemon"
    else:
        facts = (daemon["name"], daemon["mode"], daemon["rung"], "armed" if daemon["armed"] else "")
        who = " ".join(plain(fact) for fact in facts if fact)
    left = line(Span("outrace top", "title"), "  ", Span(who, "" if daemon else "warn"))
    clock = frame["time"][11:]
    room = width - width_of(left) - len(clock)
    return [*left, Span(" " * room + clock)] if room > 0 else left


def _memory(frame: Json, width: int) -> Iterator[_Block]:
    found = marks(frame)
    for spare, name in ((0, "node"), (5, "kubepods")):
        if frame[name] is not None:
            bar, below = bar_lines(name, frame, found, width)
            yield _Block(spare, [bar, below] if below else [bar])
    yield _Block(6, legend(frame, width))
    # Those that are met, and then the nearest, stay longest.
    near = sorted(found, key=lambda mark: mark.threshold["distance"])
    for mark in found:
        yield _Block(1 + min(3, near.index(mark)), [threshold_line(mark, frame["forecasts"])])


def _notices(sample: Sample, most: int | None = _NOTICES) -> Iterator[_Block]:
    """What is held or wrong. Without ``most`` all of it but for what `outrace top --once` prints to stderr."""
    frame = sample.frame
    daemon = frame.get("daemon") or {}
    texts = [] if frame.get("daemon") is not None or not sample.asked else [frame["source"]]
    texts += [f"not ready: {daemon['not_ready']}"] if daemon.get("not_ready") else []
    texts += [f"node conditions: {', '.join(daemon['conditions'])}"] if daemon.get("conditions") else []
    texts += [*brake_lines(frame["braked"]), *held_lines(frame["held"]), *_compared(frame["thresholds"])]
    texts += [] if most is None else frame["problems"]
    texts += [frame["unlisted"]] if frame["unlisted"] else []
    for text in texts[:most]:
        yield _Block(3, [line(Span(plain(text), "warn"))])
    if most is not None and len(texts) > most:
        yield _Block(7, [line(Span(f"and {len(texts) - most} lines more: outrace top --once | cat", "dim"))])


def _compared(thresholds: Sequence[Json]) -> Iterator[str]:
    """Whether a kubelet would evict where the formulas in force see nothing short."""
    for one in (t for t in thresholds if t["compared"] and t["met"]):
        ours = [t for t in thresholds if not t["compared"] and DOMAIN_OF[t["signal"]] == DOMAIN_OF[one["signal"]]]
        if ours and not any(t["met"] for t in ours):
            left = ", ".join(f"{format_bytes(t['available'])} by {t['signal']}" for t in ours)
            yield f"a kubelet would evict now ({one['signal']}); nothing is wrong: available are {left}"


def _below(sample: Sample, width: int) -> Iterator[_Block]:
    frame = sample.frame
    victim = frame.get("kernel_victim")
    if victim is not None:
        yield _Block(2, [line("the kernel kills next: ", Span(_victim(victim, width - 23), "bad"))])
    daemon = frame.get("daemon")
    if daemon is not None:
        yield _Block(3, [_losses(daemon)])


def _victim(victim: Json, room: int) -> str:
    """In ``room`` columns if that is possible: the pod's name is shortened for it."""
    who = f"{shorten(plain(victim['comm']), 24)} ({victim['pid']})"
    what = f", {format_bytes(victim['rss'])}, adj {victim['oom_score_adj']}"
    name = plain(victim["pod"]) if victim["pod"] else ""
    return who + (f" of {shorten(name, max(8, room - len(who) - len(what) - 4))}" if name else ", in no pod") + what


def _losses(daemon: Json) -> Line:
    """What the daemon has dropped since it started, and what may move before it sees it."""
    lost = {where: count for where, count in (daemon["lost"] or {}).items() if count}
    if daemon["lost"] is None:
        records = Span("losses unknown")
    elif lost:
        records = Span("lost records: " + ", ".join(f"{plain(where)} {count}" for where, count in lost.items()), "bad")
    else:
        records = Span("no record lost")
    bound = daemon["bound_bytes"]
    unseen = f"; {format_bytes(bound)} may move unseen" if bound else ""
    trigger = f"; trigger {plain(daemon['trigger'])}" if daemon["trigger"] else ""
    return line(records, unseen, trigger)


# the pods


def rows(frame: Json) -> list[Row]:
    """The pods in the policy's order."""
    found, place = [], 0
    for pod in frame["pods"]:
        place += not pod["critical"]
        found.append(Row(None if pod["critical"] else place, pod))
    return found


def table(frame: Json, shown: Sequence[Row], width: int) -> list[list[Span]]:
    """The header and a line for each of these pods. Before the name stand `P` (the policy evicts it next), `K` (the
    kernel kills it next) and `H` (it is held).
    """
    header = ("", "#", "POD", "OVER", "USED", "REQUEST", "PRIORITY", "QOS", "ADJ", "GROWTH")
    cells = [_cells(frame, row) for row in shown]
    widths = [max(len(header[i]), *(len(each[i]) for each in cells), 0) for i in range(len(header))]
    widths[0] = 3
    name = header.index("POD")
    kept = list(range(len(header)))

    def room() -> int:
        return width - sum(widths[i] for i in kept if i != name) - (len(kept) - 1)

    for spare in _SPARE:
        if room() >= min(widths[name], _NAME):
            break
        kept.remove(header.index(spare))
    widths[name] = max(1, min(widths[name], room()))

    def laid(each: Sequence[str]) -> str:
        texts = [shorten(each[i], widths[i]) for i in kept]
        left = {0, name, header.index("QOS")}
        padded = (t.ljust(widths[i]) if i in left else t.rjust(widths[i]) for i, t in zip(kept, texts, strict=True))
        return " ".join(padded).rstrip()

    lines = [line(Span(laid(header), "dim"))]
    lines += [line(Span(laid(each), "bad" if "K" in each[0] else "")) for each in cells]
    return lines if frame["pods"] else [*lines, line("no pods")]


def _cells(frame: Json, row: Row) -> tuple[str, ...]:
    pod, adj, victim = row.pod, row.pod.get("oom_score_adj"), frame.get("kernel_victim")
    flags = ("P" if row.rank == 1 else "") + ("K" if victim is not None and victim["uid"] == pod["uid"] else "")
    return (
        flags + ("H" if any(one["uid"] == pod["uid"] for one in frame["held"]) else ""),
        "-" if row.rank is None else str(row.rank),
        plain(f"{pod['namespace']}/{pod['name']}".lstrip("/")),
        format_bytes(pod["over_request"]),
        format_bytes(pod["working_set"]),
        format_bytes(pod["request"]),
        "?" if pod["priority"] is None else str(pod["priority"]),
        _SHORT_QOS.get(pod["qos"], "?"),
        "?" if adj is None else str(adj["highest"]),
        growth_text(pod.get("growth_bytes_per_s")),
    )


def growth_text(count: float | None) -> str:
    """Bytes a second: `+1.5Mi/s`; `=` for none worth a digit, `?` while it is not known."""
    if count is None:
        return "?"
    if abs(count) < 1024:
        return "="
    return f"{'+' if count > 0 else ''}{format_bytes(round(count))}/s"
