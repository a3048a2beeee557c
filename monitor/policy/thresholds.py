"""Eviction thresholds: from the flags and maps a user writes to values a pass can compare.

Texts of errors are the kubelet's. Its order is random (a Go map): ours is as written, results by `KUBELET_SIGNALS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from monitor.policy.compat import INT64_MIN
from monitor.policy.errors import PolicyError
from monitor.policy.gosyntax import parse_duration, parse_percentage
from monitor.policy.quantity import Quantity
from monitor.policy.signals import ALL_SIGNALS, ALLOCATABLE_OF, KUBELET_SIGNALS, KUBELETS, OWN_SIGNALS

#: The kubelet's hard thresholds when its configuration names none (Linux, Kubernetes 1.36).
DEFAULT_HARD: dict[str, str] = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}
#: evictionPressureTransitionPeriod when absent or zero: 5 minutes.
DEFAULT_TRANSITION_PERIOD_NS = 300 * 10**9

LESS_THAN = "LessThan"
OFF = ("0%", "100%")  # values that switch a threshold off
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ThresholdValue:
    """An absolute quantity, or (quantity None) a fraction of the capacity, rounded to 32 bits as the kubelet's is."""

    quantity: Quantity | None = None
    percentage: float = 0.0

    def amount(self, capacity: int) -> int:
        """In whole units of the signal: a fraction truncates, a quantity rounds up (q > n exactly if ceil(q) > n)."""
        if self.quantity is not None:
            return self.quantity.value
        product = float(capacity) * self.percentage
        # NaN and what does not fit 64 bits become the smallest integer on the kubelet's platform: never met.
        return int(product) if -(2.0**63) <= product < 2.0**63 else INT64_MIN

    def shown(self, capacity: int) -> Quantity:
        """The value as the kubelet prints it: a quantity keeps its spelling, a fraction becomes bytes."""
        return self.quantity if self.quantity is not None else Quantity.of_bytes(self.amount(capacity))

    def __str__(self) -> str:
        return str(self.quantity) if self.quantity is not None else f"{self.percentage * 100:.6g}%"


@dataclass(frozen=True, slots=True)
class Threshold:
    """`signal` is met while available < `value`; it may act once met for `grace_ns` without a break.

    `min_reclaim` widens the value after an eviction. An `operator` other than LessThan is never met.
    """

    signal: str
    value: ThresholdValue
    grace_ns: int = 0
    min_reclaim: ThresholdValue | None = None
    operator: str = LESS_THAN

    @property
    def hard(self) -> bool:
        """No grace. A soft entry with grace 0 is hard in every way, wherever it was written."""
        return self.grace_ns == 0

    def quantity(self, capacity: int, with_reclaim: bool = False) -> int:
        """The value in bytes, inodes or pids for this capacity; ``with_reclaim``: and the min reclaim."""
        reclaim = self.min_reclaim if with_reclaim else None
        if reclaim is None:
            return self.value.amount(capacity)
        if self.value.quantity is not None and reclaim.quantity is not None:
            nanos = self.value.quantity.nanos + reclaim.quantity.nanos
            return -(-nanos // 10**9)  # added before rounding: 1500m + 1500m is 3
        # A part in percent is whole already, so rounding the other alone is exact.
        return self.value.amount(capacity) + reclaim.amount(capacity)

    def met(self, available: int, capacity: int, with_reclaim: bool = False) -> bool:
        """Whether this little is available; ``with_reclaim``: less than the value and the min reclaim together."""
        return self.operator == LESS_THAN and self.quantity(capacity, with_reclaim) > available

    def __str__(self) -> str:
        grace = "" if self.hard else f" for {self.grace_ns / 1e9:g}s"
        return f"{self.signal}<{self.value}{grace}"


def parse_flag_map(text: str, operator: str = "<") -> dict[str, str]:
    """The value of a kubelet flag: ``memory.available<100Mi,nodefs.available<10%`` (or ``=`` for grace and reclaim)."""
    pairs: dict[str, str] = {}
    for entry in text.split(","):
        if not entry:
            continue
        name, found, value = entry.partition(operator)
        if not found:
            raise PolicyError(f"malformed pair {entry!r}, expect signal{operator}value")
        pairs[name.strip()] = value.strip()
    return pairs


def parse_thresholds(
    hard: Mapping[str, str] | None,
    soft: Mapping[str, str] | None = None,
    soft_grace: Mapping[str, str] | None = None,
    min_reclaim: Mapping[str, str] | None = None,
    enforce_node_allocatable: Sequence[str] = (),
    in_order: bool = False,
    own: bool = False,
) -> tuple[Threshold, ...]:
    """All thresholds of a configuration (None: an empty map), the allocatable copies included. Raises PolicyError.

    ``in_order``: hard, soft, copies, as written; else of `ALL_SIGNALS`. ``own``: with outrace's own signals.
    """
    known = ALL_SIGNALS if own else KUBELET_SIGNALS
    found = _parsed(hard, known, _threshold)
    gentle = _parsed(soft, known, _threshold)
    graces = _parsed(soft_grace, known, _grace)
    reclaims = _parsed(min_reclaim, known, _reclaim)

    thresholds = [threshold for threshold in found.values() if threshold is not None]
    for threshold in filter(None, gentle.values()):
        if threshold.signal not in graces:
            raise PolicyError(f"grace period must be specified for the soft eviction threshold {threshold.signal}")
        thresholds.append(replace(threshold, grace_ns=graces[threshold.signal]))
    thresholds = [replace(t, min_reclaim=reclaims.get(t.signal)) for t in thresholds]
    if "pods" in enforce_node_allocatable:
        # The copy guards the kubepods cgroup: a percentage in it is of that cgroup's limit.
        thresholds += [
            replace(t, signal=ALLOCATABLE_OF[t.signal]) for t in thresholds if t.signal in ALLOCATABLE_OF and t.hard
        ]
    return tuple(thresholds if in_order else sorted(thresholds, key=place))


def place(threshold: Threshold) -> tuple[int, int]:
    """Sort key: the order of `ALL_SIGNALS`, hard before soft."""
    return ALL_SIGNALS.index(threshold.signal), threshold.grace_ns


def kubelets(thresholds: Sequence[Threshold]) -> tuple[Threshold, ...]:
    """What a kubelet would go by: its own signals, and the first lines of domains that only outrace's watch."""
    mine = tuple(t for t in thresholds if t.signal not in OWN_SIGNALS)
    there = {t.signal for t in mine}
    found: dict[tuple[str, bool], Threshold] = {}
    for t in thresholds:
        signal = KUBELETS.get(t.signal)
        if t.signal in OWN_SIGNALS and signal is not None and signal not in there:
            found.setdefault((signal, t.hard), replace(t, signal=signal))
    return (*found.values(), *mine)


def _parsed(entries: Mapping[str, str] | None, known: Sequence[str], parse: Callable[[str, str], T]) -> dict[str, T]:
    found = {}
    for signal, text in (entries or {}).items():
        if signal not in known:
            raise PolicyError(f"unsupported eviction signal {signal}")
        found[signal] = parse(signal, text)
    return found


def _threshold(signal: str, text: str) -> Threshold | None:
    """One entry of the hard or soft map; None if it switches the threshold off."""
    if text in OFF:
        return None
    value = _value(text)
    if value.percentage < 0:
        raise PolicyError(f"eviction percentage threshold {signal} must be >= 0%: {text}")
    if value.percentage > 1:
        raise PolicyError(f"eviction percentage threshold {signal} must be <= 100%: {text}")
    if value.quantity is not None and value.quantity.nanos <= 0:
        raise PolicyError(f"eviction threshold {signal} must be positive: {value.quantity}")
    return Threshold(signal, value)


def _grace(_signal: str, text: str) -> int:
    grace = parse_duration(text)
    if grace < 0:
        raise PolicyError(f"invalid eviction grace period specified: {text}, must be a positive value")
    return grace


def _reclaim(signal: str, text: str) -> ThresholdValue:
    value = _value(text)
    # Over 100% is allowed, and NaN, which compares with nothing, passes too.
    if value.quantity is None and value.percentage <= 0:
        raise PolicyError(f"eviction percentage minimum reclaim {signal} must be positive: {text}")
    if value.quantity is not None and value.quantity.nanos < 0:
        raise PolicyError(f"negative eviction minimum reclaim specified for {signal}")
    return value


def _value(text: str) -> ThresholdValue:
    if text.endswith("%"):
        return ThresholdValue(percentage=parse_percentage(text))
    return ThresholdValue(Quantity.parse(text))
