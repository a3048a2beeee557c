"""Reading the parts of a case, and writing our values in the shape the recorded answers have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from monitor.policy.errors import PolicyError
from monitor.policy.gosyntax import parse_float32
from monitor.policy.layout import DiskLayout
from monitor.policy.quantity import Quantity
from monitor.policy.signals import RESOURCE, Observation
from monitor.policy.thresholds import Threshold, ThresholdValue

SECOND = 10**9
Case = Mapping[str, Any]


def config_maps(given: Case) -> tuple[Any, Any, Any, Any, Sequence[str]]:
    names = ("evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim")
    hard, soft, grace, reclaim = (given.get(name) for name in names)
    return hard, soft, grace, reclaim, given.get("enforceNodeAllocatable") or ()


def layout(given: Case) -> DiskLayout:
    """The disks of a case; a single one unless it says otherwise."""
    return DiskLayout(bool(given.get("dedicatedImageFs")), bool(given.get("dedicatedContainerFs")))


def threshold(given: Case) -> Threshold:
    """A threshold as the cases of single steps write it."""
    reclaim = given.get("minReclaim")
    grace = round(given.get("gracePeriodSeconds", 0) * SECOND)
    return Threshold(given["signal"], _value(given), grace, None if reclaim is None else _value(reclaim))


def _value(given: Case) -> ThresholdValue:
    if given.get("quantity") is not None:
        return ThresholdValue(Quantity.parse(given["quantity"]))
    # Already a fraction: rounded to 32 bits once, unlike a percentage in text, which is divided by 100 in 32 bits.
    return ThresholdValue(percentage=parse_float32(repr(float(given.get("percentage", 0)))))


def comparable(t: Threshold) -> dict[str, Any]:
    """One of our thresholds, shaped like a recorded one (see `recorded`)."""
    return {
        "signal": t.signal,
        "operator": t.operator,
        "grace": t.grace_ns,
        "value": _shown(t.value),
        "minReclaim": None if t.min_reclaim is None else _shown(t.min_reclaim),
    }


def recorded(t: Case) -> dict[str, Any]:
    """A recorded threshold, with numbers as numbers: Go and Python spell floats differently."""
    return {
        "signal": t["signal"],
        "operator": t["operator"],
        "grace": int(t["gracePeriodNanoseconds"]),
        "value": _recorded_value(t["value"]),
        "minReclaim": None if t["minReclaim"] is None else _recorded_value(t["minReclaim"]),
    }


def _shown(value: ThresholdValue) -> str:
    return value.quantity.kubelet_text() if value.quantity is not None else _number(value.percentage)


def _recorded_value(value: Case) -> str:
    return str(value["quantity"]) if value.get("quantity") is not None else _number(float(value["percentage"]))


def _number(fraction: float) -> str:
    return "NaN" if math.isnan(fraction) else f"{fraction + 0.0!r} of capacity"


def by_text(found: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """In an order that depends on the content only."""
    return sorted(found, key=repr)


def observation_answer(signal: str, seen: Observation) -> dict[str, str]:
    """An observation, shaped like a recorded one."""
    resource = RESOURCE[signal]
    return {
        "available": str(Quantity.of(seen.available, resource)),
        "availableValue": str(seen.available),
        "capacity": str(Quantity.of(seen.capacity, resource)),
        "capacityValue": str(seen.capacity),
    }


def quantities(given: Case | None) -> dict[str, Quantity]:
    """A resource list; raises PolicyError naming the resource."""
    found = {}
    for name, text in (given or {}).items():
        try:
            found[name] = Quantity.parse(str(text))
        except PolicyError as error:
            raise PolicyError(f"{name}: {error}") from None
    return found
