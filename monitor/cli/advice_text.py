"""Advice about thresholds and reservations as text, each figure with its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from monitor.cli.output import clean, format_bytes, table_lines
from monitor.race.reaction import Survives
from monitor.race.threshold_advice import Advised, Arithmetic, Reservation
from monitor.race.units import quantity, rate, span

#: How each way of reacting is called.
REACTIONS = {
    "kubelet": "kubelet, every 10 s",
    "kubelet-notified": "kubelet, notified (cgroup v1)",
    "observe": "outrace --mode observe",
    "hold": "outrace --mode hold",
    "enforce": "outrace --mode enforce",
}
#: Incidents that are named.
_NAMED = 5


def advice_lines(advised: Sequence[Advised], reserved: Reservation | None) -> Iterator[str]:
    """A table, one line for each way of reacting; what it rests on; what should be reserved."""
    rows = [
        (
            REACTIONS[each.reaction],
            f"{each.signal}<{quantity(each.threshold)}" if each.threshold is not None else "none is enough",
            f"{each.present:.0%} by {quantity(each.present_threshold)}"
            if each.present is not None and each.present_threshold is not None
            else "no threshold",
            _up_to(each.survives),
            _because(each.arithmetic),
        )
        for each in advised
    ]
    part = f"wins {advised[0].quantile:.4g} of races"
    yield from table_lines(["reaction", part, "now", "now survives growth up to", "because"], rows, prose=True)
    for signal in dict.fromkeys(each.signal for each in advised):
        mine = next(each for each in advised if each.signal == signal)
        yield f"{signal}: {_from(mine.evidence)}"
    if reserved is not None:
        used = f"{format_bytes(reserved.outside)} in use outside the pods at most (incident {clean(reserved.incident)})"
        had = f"systemReserved and kubeReserved keep {format_bytes(reserved.reserved)}"
        what = f"reserve {quantity(reserved.short)} more" if reserved.short else "enough"
        yield f"reservation: {used}, {had}: {what}"


def _up_to(found: Survives | None) -> str:
    if found is None:
        return "-"
    at_best = "" if found.always == found.at_best else f" ({speed(found.at_best)} at best)"
    return speed(found.always) + at_best


def speed(bytes_per_s: int | None) -> str:
    return "nothing" if bytes_per_s is None else rate(bytes_per_s)


def _because(found: Arithmetic) -> str:
    """The sum that the threshold has to be larger than."""
    parts = [f"{format_bytes(found.taken)} taken in {span(found.ms * 1e6)}"]
    if found.through or found.second_line:
        parts += [f"{format_bytes(found.through)} through the brake", f"{format_bytes(found.second_line)} second line"]
    if found.beyond:
        parts.append(f"{format_bytes(found.beyond)} above the limit")
    total = f" = {format_bytes(found.need)}" if len(parts) > 1 else ""
    return f"{' + '.join(parts)}{total} ({clean(found.incident)})"


def _from(evidence: Sequence[str]) -> str:
    """Which incidents it is worked out from, the newest first."""
    newest = [clean(key) for key in reversed(evidence)]
    more = f" and {len(newest) - _NAMED} more" if len(newest) > _NAMED else ""
    incidents = "incident" if len(newest) == 1 else "incidents"
    return f"worked out from {len(newest)} {incidents}: {', '.join(newest[:_NAMED])}{more}"
