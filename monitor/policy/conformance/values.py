"""Ops about plain values: quantities, thresholds, reservations."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

from monitor.policy.conformance.reading import (
    Case,
    by_text,
    comparable,
    config_maps,
    layout,
    quantities,
    recorded,
    threshold,
)
from monitor.policy.errors import PolicyError
from monitor.policy.layout import overlay_containerfs
from monitor.policy.quantity import Quantity
from monitor.policy.reservation import reserve
from monitor.policy.thresholds import parse_thresholds

Pair = tuple[Any, Any]
_INT64 = 2**63


def parse_quantity(given: Case, answer: Any) -> Pair:
    """The text of the error, or every figure of the quantity."""
    want = {"error": answer["error"], "quantity": _recorded(answer.get("quantity"))}
    try:
        got = Quantity.parse(given["input"])
    except PolicyError as error:
        return {"error": str(error), "quantity": None}, want
    return {"error": None, "quantity": _figures(got, answer.get("quantity"))}, want


def quantity_math(given: Case, answer: Any) -> Pair:
    a, b = Quantity.parse(given["input"]), Quantity.parse(given["other"])
    got = {
        "cmp": (a > b) - (a < b),
        "add": _figures(a + b, answer["add"]),
        "sub": _figures(a - b, answer["sub"]),
    }
    return got, {"cmp": answer["cmp"], "add": _recorded(answer["add"]), "sub": _recorded(answer["sub"])}


def _figures(q: Quantity, answer: Any) -> dict[str, Any]:
    """The 64-bit figures are binding only where the amount fits 64 bits (a thousand times for milli)."""
    value, milli = str(q.int64()), str(q.int64(3))
    if answer is not None and not -_INT64 <= q.value < _INT64:
        value = answer["value"]
    if answer is not None and not -_INT64 <= -(-q.nanos // 10**6) < _INT64:
        milli = answer["milliValue"]
    return {
        "string": q.kubelet_text(),
        "value": value,
        "milliValue": milli,
        "asDec": _exact(q.nanos),
        "sign": (q.nanos > 0) - (q.nanos < 0),
        "isZero": q.is_zero,
        "format": q.format,
    }


def _recorded(answer: Any) -> Any:
    if answer is None:
        return None
    with localcontext() as context:
        context.prec = 2000
        return {**answer, "asDec": _exact(int(Decimal(answer["asDec"]) * 10**9))}


def _exact(nanos: int) -> str:
    return f"{nanos:#x}e-9"  # in base 16: Python refuses to write thousands of decimal digits


def parse_threshold_config(given: Case, answer: Any) -> Pair:
    """The thresholds in any order, or the text of the error."""
    want = {"error": answer["error"], "thresholds": by_text(recorded(t) for t in answer["thresholds"] or ())}
    try:
        found = parse_thresholds(*config_maps(given))
    except PolicyError as error:
        return _refusal(given, str(error), answer["error"]), want
    return {"error": None, "thresholds": by_text(comparable(t) for t in found)}, want


def _refusal(given: Case, error: str, recorded_error: str | None) -> dict[str, Any]:
    """Our error, or the recorded one where the kubelet could have come upon it first.

    It looks through each map in random order: with two bad entries in one map either may be named. It takes the maps
    one by one, so its error is that of the first map with a bad entry, for whichever entry it is.
    """
    if recorded_error is not None and recorded_error in _possible_errors(given):
        error = recorded_error
    return {"error": error, "thresholds": []}


def _possible_errors(given: Case) -> set[str]:
    hard, soft, grace, reclaim, _ = config_maps(given)
    for position, entries in enumerate((hard, soft, grace, reclaim)):
        found = set()
        for signal, text in (entries or {}).items():
            alone = [{signal: text} if at == position else {} for at in range(4)]
            if position == 1:
                alone[2] = {signal: "1s"}  # whether it has a grace comes later
            try:
                parse_thresholds(alone[0], alone[1], alone[2], alone[3])
            except PolicyError as error:
                found.add(str(error))
        if found:
            return found
    found = set()
    for signal, text in (soft or {}).items():
        try:
            parse_thresholds(None, {signal: text}, grace)
        except PolicyError as error:
            found.add(str(error))
    return found


def update_container_fs_thresholds(given: Case, answer: Any) -> Pair:
    """The thresholds in any order, and the complaint.

    Of several complaints the kubelet keeps the last it comes to: one about a soft threshold if there is one, about a
    hard one else, and which of two is left to chance.
    """
    overlay = overlay_containerfs(parse_thresholds(*config_maps(given), in_order=True), layout(given))
    soft = [c for c in overlay.conflicts if "for soft eviction" in c]
    last = soft or list(overlay.conflicts)
    error = answer["error"] if answer["error"] in last else (last[-1] if last else None)
    got = {"error": error, "thresholds": by_text(comparable(t) for t in overlay.thresholds)}
    return got, {"error": answer["error"], "thresholds": by_text(recorded(t) for t in answer["thresholds"])}


def threshold_quantity(given: Case, answer: Any) -> Pair:
    """What each threshold amounts to for a capacity."""
    capacity = Quantity.parse(given["input"]).int64()
    found = [threshold(t).value.shown(capacity) for t in given["thresholds"]]
    return [{"quantity": q.kubelet_text(), "value": str(q.int64())} for q in found], answer


def node_allocatable(given: Case, answer: Any) -> Pair:
    """The limit of kubepods and the reservation, in thousandths; whether more is reserved than there is."""
    capacity, system, kube = (quantities(given.get(key)) for key in ("capacity", "systemReserved", "kubeReserved"))
    hard = parse_thresholds(given.get("evictionHard") or {})
    found = reserve(capacity, system, kube, hard)
    got = {
        "podsCgroupLimitMilli": {name: str(q.int64(3)) for name, q in found.pods_limit.items()},
        "reservationMilli": {name: str(q.int64(3)) for name, q in found.reserved.items()},
        "validationError": bool(found.exceeded),
    }
    return got, {**answer, "validationError": bool(answer["validationError"])}
