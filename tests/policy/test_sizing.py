"""The configuration that is made of a node's terms (the terms themselves: test_recorded.py)."""

from hypothesis import given
from hypothesis import strategies as st

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
    reservations,
)

GIB = 1 << 30


AMOUNTS = st.integers(0, 64 * GIB)


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
