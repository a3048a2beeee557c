"""Sizing a node: Allocatable = Capacity - Reserved - Eviction threshold, each term with its rule in words.

Amounts are whole bytes or millicores: a term is rounded by itself, so what is printed adds up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from monitor.policy.configuration import HARD, Settings
from monitor.policy.errors import PolicyError
from monitor.policy.quantity import Quantity
from monitor.policy.signals import MEMORY, NODEFS
from monitor.policy.translate import API_VERSION, KIND

BYTES, MILLICORES = "bytes", "millicores"
MEMORY_RESOURCE, CPU, DISK = "memory", "cpu", "ephemeral-storage"
#: Whose a term is: the first two are the fields of a KubeletConfiguration.
SYSTEM, KUBE, EVICTION, LVM, HUGE = "systemReserved", "kubeReserved", HARD, "lvm", "hugepages"
EXACT, UP, DOWN = "exact", "up", "down"
#: The hard thresholds that count as reserved, and the resource each keeps back.
_RESERVING = {MEMORY: MEMORY_RESOURCE, NODEFS: DISK}


@dataclass(frozen=True, slots=True)
class Term:
    """One amount that pods do not get. ``rounding``: how it became whole, `exact` where its rule gave a whole one."""

    part: str
    name: str
    amount: int
    rule: str
    rounding: str = EXACT

    @classmethod
    def rounded_up(cls, part: str, name: str, amount: Fraction, rule: str) -> Term:
        """A reservation: a fraction of a byte or millicore counts as a whole one, as in a quantity of Kubernetes."""
        whole = -(-amount.numerator // amount.denominator)
        return cls(part, name, whole, rule, EXACT if amount.denominator == 1 else UP)


@dataclass(frozen=True, slots=True)
class Sizing:
    """A resource of a node and what is kept back of it. ``enforced``: kubepods is limited (enforceNodeAllocatable)."""

    resource: str
    unit: str
    capacity: int
    terms: tuple[Term, ...]
    enforced: bool = True

    def of(self, *parts: str) -> int:
        return sum(term.amount for term in self.terms if term.part in parts)

    @property
    def allocatable(self) -> int:
        """What the node publishes: requests of pods fit into it. 0 where huge pages leave nothing."""
        left = self.capacity - self.of(SYSTEM, KUBE, EVICTION, LVM)
        return max(min(left, 0), left - self.of(HUGE))

    @property
    def pods_limit(self) -> int:
        """Of the kubepods cgroup. The threshold is not taken off: pods may use that memory, they are evicted for it."""
        return self.capacity - self.of(SYSTEM, KUBE) if self.enforced else self.capacity


def size(resource: str, unit: str, capacity: int, terms: Iterable[Term], enforced: bool = True) -> Sizing:
    """Raises PolicyError where more is kept back than there is: a kubelet does not start then."""
    sizing = Sizing(resource, unit, capacity, tuple(terms), enforced)
    if capacity < sizing.of(SYSTEM, KUBE, EVICTION, LVM):
        kept = [term for term in sizing.terms if term.amount and term.part != HUGE]
        parts = " + ".join(f"{written(sizing, term.amount)} ({term.name})" for term in kept)
        raise PolicyError(f"{parts} is more than the capacity of {written(sizing, capacity)}: a kubelet does not start")
    return sizing


def kubelet_terms(resource: str, capacity: int, settings: Settings, unit: int = 0) -> list[Term]:
    """What a kubelet with these settings keeps back of a resource. ``unit``: of the terms, in 1e-9; 0: bytes or
    millicores.
    """
    terms = []
    unit = unit or (10**6 if resource == CPU else 10**9)
    for field in (SYSTEM, KUBE):
        if (entry := settings.maps[field].get(resource)) is not None:
            name, rule = f"{field} {resource}", f"{resource}={entry.value} ({entry.origin})"
            terms.append(Term.rounded_up(field, name, Fraction(Quantity.parse(entry.value).nanos, unit), rule))
    for found in settings.thresholds():
        threshold = found.threshold
        if not threshold.hard or _RESERVING.get(threshold.signal) != resource:
            continue
        percent = threshold.value.quantity is None
        rule = f"{threshold.signal}<{found.text} ({found.origin})"
        rule += ", a percentage of the capacity" if percent else ""
        amount = -(-threshold.value.shown(capacity).nanos // unit)
        terms.append(Term(EVICTION, threshold.signal, amount, rule, DOWN if percent else EXACT))
    return terms


def huge_pages(amount: int, origin: str) -> Term:
    """Of MemTotal: kept from what the node publishes and (1.37) `memory.available`, not from the limit of kubepods."""
    return Term(HUGE, "huge pages", amount, f"set aside for pods that ask for them ({origin})")


def written(sizing: Sizing, amount: int) -> str:
    """As a quantity of Kubernetes, exactly."""
    return str(Quantity.of_bytes(amount) if sizing.unit == BYTES else Quantity(amount * 10**6))


def reservations(sizings: Iterable[Sizing]) -> dict[str, dict[str, str]]:
    """The terms as both maps of a KubeletConfiguration."""
    reserved: dict[str, dict[str, str]] = {SYSTEM: {}, KUBE: {}}
    for sizing in sizings:
        for part, amounts in reserved.items():
            if amount := sizing.of(part):
                amounts[sizing.resource] = written(sizing, amount)
    return reserved


def kubelet_configuration(
    reserved: Mapping[str, Mapping[str, str]], hard: Mapping[str, str], enforce: Sequence[str], max_pods: int | None
) -> dict[str, Any]:
    """A KubeletConfiguration that keeps back what these maps say."""
    made: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, HARD: dict(hard)}
    made |= {field: dict(amounts) for field, amounts in reserved.items() if amounts}
    made["enforceNodeAllocatable"] = list(enforce)
    if max_pods is not None:
        made["maxPods"] = max_pods
    return made
