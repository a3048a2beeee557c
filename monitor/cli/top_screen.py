"""The live view of `outrace top` as lines that fit a screen: what is shown, and what goes first where room is short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from monitor.cli.brake_text import brake_lines, held_lines
from monitor.cli.output import format_bytes
from monitor.cli.spans import Line, Span, clip, line, plain, shorten, text_of, width_of
from monitor.cli.top_bars import Json, bar_lines, legend, marks, threshold_line
from monitor.cli.top_keys import HELP, INCIDENTS, POD, PODS, View
from monitor.cli.top_pages import help_page, incident_lines, incident_page, pod_page
from monitor.cli.top_pods import SORTS, Row, rows, table
from monitor.cli.top_sample import Sample

#: Pods that are shown before anything else is left out for them.
_PODS = 4
#: Of what is held or wrong, as many lines.
_NOTICES = 3
_KEYS = {
    PODS: "q quit  space pause  s sort  r reverse  / filter  enter pod  i incidents  h keys",
    POD: "esc back  up down scroll  space pause  q quit",
    INCIDENTS: "esc back  up down scroll  q quit",
    HELP: "esc back  up down scroll  q quit",
}


class _Block(NamedTuple):
    """Lines that are left out together; the largest ``spare`` first, 0 never."""

    spare: int
    lines: Sequence[Line]


def shown_rows(sample: Sample, view: View) -> list[Row]:
    return rows(sample.frame, view.sort, view.backwards, view.filter)


def screen(sample: Sample, view: View, width: int, height: int | None) -> list[list[Span]]:
    """At most ``height`` lines (None: as many as there are) of at most ``width`` columns."""
    found = shown_rows(sample, view)
    if view.page == PODS:
        made = _pods(sample, view, found, width, height)
    else:
        made = _page(sample, view, found, width, height)
    return [clip(one, width) for one in (made if height is None else made[:height])]


def _page(sample: Sample, view: View, found: Sequence[Row], width: int, height: int | None) -> list[Line]:
    """A page that may be longer than the screen: its lines from ``view.offset`` on, which is kept within them."""
    body = list(_body(sample, view, found, width))
    if height is None:
        return body
    room = max(1, height - 2)
    view.offset = min(view.offset, max(0, len(body) - room))
    seen = body[view.offset : view.offset + room]
    return [_title(sample, view, width), *seen, *[line("")] * (room - len(seen)), _keys(view, width)]


def _body(sample: Sample, view: View, found: Sequence[Row], width: int) -> Iterator[Line]:
    if view.page == HELP:
        yield from help_page(width)
    elif view.page == INCIDENTS:
        yield from incident_page(sample.frame, width)
    else:
        # Of all pods: a filter does not hide the one that is looked at.
        row = next((row for row in rows(sample.frame) if row.pod["uid"] == view.selected), None)
        if row is None:
            yield line("this pod is gone")
        else:
            yield from pod_page(sample, row, width)


def _pods(sample: Sample, view: View, found: Sequence[Row], width: int, height: int | None) -> list[Line]:
    frame = sample.frame
    above = [_Block(0, [_title(sample, view, width)]), *_memory(frame, width), *_notices(sample)]
    below = list(_below(sample, width))
    last: list[_Block] = []
    if height is not None:
        last = [_Block(0, [_keys(view, width)])]
    blocks = [*above, *below, *last]
    wanted = 1 + min(len(found) or 1, _PODS)
    while height is not None and sum(len(block.lines) for block in blocks) + wanted > height:
        spare = max(blocks, key=lambda block: block.spare)  # the first of those
        if spare.spare == 0:
            break
        blocks.remove(spare)
    used = sum(len(block.lines) for block in blocks)
    count = len(found) if height is None else max(1, height - used - 1)
    start = _first(found, view.selected, count)
    window = table(frame, found[start : start + count], view.selected, width, sample.history)
    if not found:
        window.append(line("no pods" if not frame["pods"] else f"no pod has '{plain(view.filter)}' in its name"))
    filled = [] if height is None else [line("")] * (height - used - len(window))
    kept = [block for block in above if block in blocks]
    rest = [block for block in (*below, *last) if block in blocks]
    whole = [*_lines(kept), *window, *filled, *_lines(rest)]
    return whole if height is None or len(whole) <= height else [*whole[: height - 1], whole[-1]]


def _lines(blocks: Sequence[_Block]) -> list[Line]:
    return [one for block in blocks for one in block.lines]


def _first(found: Sequence[Row], selected: str | None, count: int) -> int:
    """Of the window: the chosen pod is in it."""
    at = next((i for i, row in enumerate(found) if row.pod["uid"] == selected), 0)
    return max(0, min(at - count // 2, len(found) - count))


def _title(sample: Sample, view: View, width: int) -> Line:
    frame = sample.frame
    daemon = frame.get("daemon")
    if daemon is None:
        who = f"{plain(sample.asked)} does not answer" if sample.asked else "no daemon"
    else:
        facts = (daemon["name"], daemon["mode"], daemon["rung"], "armed" if daemon["armed"] else "")
        who = " ".join(plain(fact) for fact in facts if fact)
    state = [Span("  PAUSED", "warn")] if view.paused else []
    sort = [] if view.sort == 0 and not view.backwards else [f"  by {SORTS[view.sort][0]}"]
    if view.backwards:
        sort.append(" reversed")
    filtered = [f"  /{plain(view.filter)}"] if view.filter or view.editing else []
    left = line(Span("outrace top", "title"), "  ", Span(who, "" if daemon else "warn"), *sort, *filtered, *state)
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


def _notices(sample: Sample) -> Iterator[_Block]:
    frame = sample.frame
    daemon = frame.get("daemon") or {}
    texts = [] if frame.get("daemon") is not None or not sample.asked else [frame["source"]]
    texts += [f"not ready: {daemon['not_ready']}"] if daemon.get("not_ready") else []
    texts += [f"node conditions: {', '.join(daemon['conditions'])}"] if daemon.get("conditions") else []
    texts += [*brake_lines(frame["braked"]), *held_lines(frame["held"]), *frame["problems"]]
    texts += [frame["unlisted"]] if frame["unlisted"] else []
    for text in texts[:_NOTICES]:
        yield _Block(3, [line(Span(plain(text), "warn"))])
    if len(texts) > _NOTICES:
        yield _Block(7, [line(Span(f"and {len(texts) - _NOTICES} lines more: outrace top --once | cat", "dim"))])


def _below(sample: Sample, width: int) -> Iterator[_Block]:
    frame = sample.frame
    victim = frame.get("kernel_victim")
    if victim is not None:
        yield _Block(2, [line("the kernel kills next: ", Span(_victim(victim, width - 23), "bad"))])
    for i, one in enumerate(incident_lines((frame.get("incidents") or ())[:3], width)):
        yield _Block(4 + i, [one])
    daemon = frame.get("daemon")
    if daemon is not None:
        yield _Block(3, [_losses(daemon)])


def _victim(victim: Json, room: int) -> str:
    """In ``room`` columns if that is possible: the pod's name is shortened for it."""
    who = f"{shorten(plain(victim['comm']), 24)} ({victim['pid']})"
    what = f", {format_bytes(victim['rss'])}, adj {victim['oom_score_adj']}" + (", dying" if victim["waits"] else "")
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


def _keys(view: View, width: int) -> Line:
    if view.editing:
        return line(Span(f"filter: {plain(view.filter)}_  enter keeps it, esc takes it away", "good"))
    text = _KEYS[view.page]
    return line(Span(text if len(text) < width else text[: max(0, width - 9)].rsplit("  ", 1)[0] + "  h keys", "dim"))


def once(sample: Sample, width: int) -> list[str]:
    """Everything in one go, for `--once` on a terminal."""
    return [text_of(one).rstrip() for one in screen(sample, View(), width, None)]


def problem(text: Any, width: int, height: int) -> list[list[Span]]:
    """Before the first look is over."""
    made = [line(Span("outrace top", "title")), line(plain(text)), line(""), line(Span("q quit", "dim"))]
    return [clip(one, width) for one in made[:height]]
