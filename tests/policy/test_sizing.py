"""A node's arithmetic under a kubelet: what is published, what limits kubepods, and the configuration made of it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.policy import configuration
from monitor.policy.configuration import Source
from monitor.policy.errors import PolicyError
from monitor.policy.quantity import Quantity
from monitor.policy.sizing import (
    BYTES,
    CPU,
    KUBE,
    MEMORY_RESOURCE,
    MILLICORES,
    SYSTEM,
    Sizing,
    Term,
    kubelet_configuration,
    kubelet_terms,
    reservations,
    reserve,
    size,
)
from monitor.policy.thresholds import parse_thresholds

GIB, MIB = 1 << 30, 1 << 20


def sized(resource: str, capacity: int, enforced: bool = True, **maps: dict[str, str]) -> Sizing:
    """As a kubelet with these maps in its file sizes the resource."""
    settings = configuration.in_force(Source("kubelet.yaml", maps), (), {})
    reserved = {f: {n: Quantity.parse(e.value) for n, e in settings.maps[f].items()} for f in (SYSTEM, KUBE)}
    terms = kubelet_terms(resource, capacity, reserved, settings.maps, settings.thresholds())
    return size(resource, MILLICORES if resource == CPU else BYTES, capacity, terms, enforced)


AMOUNTS = st.integers(0, 64 * GIB)


@given(AMOUNTS, AMOUNTS, AMOUNTS, st.integers(1, 64 * GIB))
@example(GIB, 924 * MIB, 0, 100 * MIB)  # and not a byte more
def test_it_is_what_the_policy_reserves(capacity: int, system: int, kube: int, threshold: int) -> None:
    """Beside `reserve`, which conformance compares with a real kubelet's answers."""

    def memory(n: int) -> dict[str, Quantity]:
        return {"memory": Quantity.of_bytes(n)}

    hard = parse_thresholds({"memory.available": str(threshold)})
    theirs = reserve(memory(capacity), memory(system), memory(kube), hard)
    maps = {
        "systemReserved": {"memory": str(system)},
        "kubeReserved": {"memory": str(kube)},
        "evictionHard": {"memory.available": str(threshold)},
    }
    if theirs.exceeded:
        with pytest.raises(PolicyError):
            sized("memory", capacity, **maps)
        return
    found = sized("memory", capacity, **maps)
    assert found.pods_limit == theirs.pods_limit["memory"].value
    assert capacity - found.allocatable == theirs.reserved["memory"].value
    assert found.allocatable <= found.pods_limit <= capacity


@given(AMOUNTS, AMOUNTS, st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_configuration_keeps_back_the_same(system: int, kube: int, milli: int, more: int) -> None:
    """Its texts are read back to the byte and millicore."""
    memory = (Term(SYSTEM, "a", system, ""), Term(KUBE, "b", kube, ""), Term(KUBE, "c", 1, ""))
    sizings = (
        Sizing(MEMORY_RESOURCE, BYTES, 1 << 62, memory),
        Sizing(CPU, MILLICORES, 10**9, (Term(SYSTEM, "d", milli, ""), Term(KUBE, "e", more, ""))),
    )
    made = kubelet_configuration(reservations(sizings), {"memory.available": "100Mi"}, ["pods"], 110)
    for field in (SYSTEM, KUBE):
        again = {name: Quantity.parse(text) for name, text in made.get(field, {}).items()}
        assert again.get("memory", Quantity(0)).value == sizings[0].of(field)
        assert again.get("cpu", Quantity(0)).nanos == sizings[1].of(field) * 10**6
    assert (made["evictionHard"], made["maxPods"]) == ({"memory.available": "100Mi"}, 110)
