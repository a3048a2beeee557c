"""The pods in the live view of `outrace top`: sorted, filtered, a window of them as table rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from monitor.cli.output import format_bytes
from monitor.cli.spans import Span, line, plain, shorten

Json = Mapping[str, Any]

#: At least so much of a name is shown before columns are left out.
_NAME = 22
#: Left out in this order where the screen is narrow.
_SPARE = ("TREND", "REQUEST", "QOS", "USED", "PRIORITY", "ADJ", "GROWTH")
#: Looks in the column TREND, and what draws them: from the least to the most.
_TREND = 12
_LEVELS = " .:-=+*#%@"
#: A pod that moved by less stood still: memory is charged in batches of 64 pages on each CPU.
STILL = 1 << 20
_SHORT_QOS = {"Guaranteed": "Guar", "Burstable": "Burst", "BestEffort": "BestE"}


class Row(NamedTuple):
    """A pod with its place in the order of eviction, from 1; None: it is never evicted."""

    rank: int | None
    pod: Json


def _or_least(value: float | None) -> float:
    """Unknown comes last where the largest is first."""
    return float("-inf") if value is None else value


def _adj(pod: Json) -> int | None:
    found = pod.get("oom_score_adj")
    return None if found is None else int(found["highest"])


#: What pods are sorted by: name, key, whether the largest is first. The first one is the policy's order.
SORTS: tuple[tuple[str, Callable[[Row], Any] | None, bool], ...] = (
    ("eviction order", None, False),
    ("over request", lambda row: _or_least(row.pod["over_request"]), True),
    ("used", lambda row: row.pod["working_set"], True),
    ("growth", lambda row: _or_least(row.pod.get("growth_bytes_per_s")), True),
    ("priority", lambda row: _or_least(row.pod["priority"]), False),
    ("oom_score_adj", lambda row: _or_least(_adj(row.pod)), True),
    ("name", lambda row: name_of(row.pod), False),
)


def name_of(pod: Json) -> str:
    return plain(f"{pod['namespace']}/{pod['name']}".lstrip("/"))


def rows(frame: Json, sort: int = 0, backwards: bool = False, wanted: str = "") -> list[Row]:
    """The pods whose name contains ``wanted`` in any case, sorted by one of `SORTS`."""
    ranked, place = [], 0
    for pod in frame["pods"]:
        place += not pod["critical"]
        ranked.append(Row(None if pod["critical"] else place, pod))
    found = [row for row in ranked if wanted.lower() in name_of(row.pod).lower()]
    _, key, largest = SORTS[sort]
    if key is not None:
        found.sort(key=key, reverse=largest)
    return found[::-1] if backwards else found


def levels(history: Sequence[int]) -> str:
    """A character for each look, between the least and the most of them; blank for a pod that stood still."""
    least, most = min(history, default=0), max(history, default=0)
    if most - least < STILL:
        return ""
    return "".join(_LEVELS[(size - least) * (len(_LEVELS) - 1) // (most - least)] for size in history)


def table(
    frame: Json, shown: Sequence[Row], selected: str | None, width: int, histories: Mapping[str, Sequence[int]]
) -> list[list[Span]]:
    """The header and a line for each of these pods. Before the name stand `P` (the policy evicts it next), `K` (the
    kernel kills it next) and `H` (it is held).
    """
    header = ("", "#", "POD", "OVER", "USED", "REQUEST", "PRIORITY", "QOS", "ADJ", "GROWTH", "TREND")
    trends = [levels(histories.get(row.pod["uid"], ())[-_TREND:]) for row in shown]
    cells = [(*_cells(frame, row), trend) for row, trend in zip(shown, trends, strict=True)]
    widths = [max(len(header[i]), *(len(each[i]) for each in cells), 0) for i in range(len(header))]
    widths[0], widths[-1] = 3, _TREND
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
        left = {0, name, header.index("QOS"), len(header) - 1}
        padded = (t.ljust(widths[i]) if i in left else t.rjust(widths[i]) for i, t in zip(kept, texts, strict=True))
        return " ".join(padded).rstrip()

    lines = [line(Span(laid(header), "dim"))]
    for row, each in zip(shown, cells, strict=True):
        style = "selected" if row.pod["uid"] == selected else "bad" if "K" in each[0] else ""
        lines.append(line(Span(laid(each).ljust(width) if style == "selected" else laid(each), style)))
    return lines


def _cells(frame: Json, row: Row) -> tuple[str, ...]:
    pod, adj = row.pod, _adj(row.pod)
    return (
        flags(frame, row),
        "-" if row.rank is None else str(row.rank),
        name_of(pod),
        format_bytes(pod["over_request"]),
        format_bytes(pod["working_set"]),
        format_bytes(pod["request"]),
        "?" if pod["priority"] is None else str(pod["priority"]),
        _SHORT_QOS.get(pod["qos"], "?"),
        "?" if adj is None else str(adj),
        growth_text(pod.get("growth_bytes_per_s")),
    )


def flags(frame: Json, row: Row) -> str:
    """`P`, `K` and `H` as far as they are true of a pod."""
    uid = row.pod["uid"]
    victim = frame.get("kernel_victim")
    return (
        ("P" if row.rank == 1 else "")
        + ("K" if victim is not None and victim["uid"] == uid else "")
        + ("H" if any(one["uid"] == uid for one in frame["held"]) else "")
    )


def growth_text(count: float | None) -> str:
    """Bytes a second: `+1.5Mi/s`; `=` for none worth a digit, `?` while it is not known."""
    if count is None:
        return "?"
    if abs(count) < 1024:
        return "="
    return f"{'+' if count > 0 else ''}{format_bytes(round(count))}/s"
