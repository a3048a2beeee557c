"""A node's arithmetic under a kubelet: what is published, what limits kubepods, and the configuration made of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy import configuration
from monitor.policy.configuration import Source
from monitor.policy.errors import PolicyError
from monitor.policy.quantity import Quantity
from monitor.policy.sizing import (
    BYTES,
    CPU,
    DISK,
    EVICTION,
    EXACT,
    KUBE,
    MEMORY_RESOURCE,
    MILLICORES,
    SYSTEM,
    UP,
    Sizing,
    Term,
    kubelet_configuration,
    kubelet_terms,
    reservations,
    reserve,
    size,
    written,
)
from monitor.policy.thresholds import parse_thresholds

GIB, MIB = 1 << 30, 1 << 20


def sized(resource: str, capacity: int, enforced: bool = True, **maps: dict[str, str]) -> Sizing:
    """As a kubelet with these maps in its file sizes the resource."""
    settings = configuration.in_force(Source("kubelet.yaml", maps), (), {})
    reserved = {f: {n: Quantity.parse(e.value) for n, e in settings.maps[f].items()} for f in (SYSTEM, KUBE)}
    terms = kubelet_terms(resource, capacity, reserved, settings.maps, settings.thresholds())
    return size(resource, MILLICORES if resource == CPU else BYTES, capacity, terms, enforced)


def test_terms_of_every_resource() -> None:
    maps = {
        "systemReserved": {"memory": "1Gi", "cpu": "500m", "ephemeral-storage": "1Gi"},
        "kubeReserved": {"memory": "512Mi", "cpu": "250500u", "pid": "1000"},
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "5Gi", "imagefs.available": "50%"},
    }
    memory = sized("memory", 8 * GIB, **maps)  # 8192 - 1024 - 512 - 100
    assert (memory.allocatable, memory.pods_limit) == (6556 * MIB, 6656 * MIB)
    assert (memory.of(SYSTEM), memory.of(KUBE), memory.of(EVICTION)) == (GIB, 512 * MIB, 100 * MIB)
    cpu = sized(CPU, 4000, **maps)  # 4000 - 500 - 250.5, which counts as 251
    assert (cpu.allocatable, cpu.pods_limit) == (3249, 3249)
    assert [term.rounding for term in cpu.terms] == [EXACT, UP]
    disk = sized(DISK, 100 * GIB, **maps)  # 100 - 1 - 5: images do not reserve
    assert disk.allocatable == 94 * GIB


@pytest.mark.parametrize(("system", "starts"), [("924Mi", True), (str(924 * MIB + 1), False)])
def test_more_kept_back_than_there_is(system: str, starts: bool) -> None:
    """1024 - 100 (the default threshold) = 924 MiB can be reserved, and not a byte more."""
    if starts:
        assert sized("memory", GIB, systemReserved={"memory": system}).allocatable == 0
        return
    with pytest.raises(PolicyError, match=r"968884225 \(.*\) \+ 100Mi \(memory.available\) is more than .* of 1Gi"):
        sized("memory", GIB, systemReserved={"memory": system})


AMOUNTS = st.integers(0, 64 * GIB)


@given(AMOUNTS, AMOUNTS, AMOUNTS, st.integers(1, 64 * GIB))
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


def test_a_configuration_without_reservations() -> None:
    assert list(kubelet_configuration({SYSTEM: {}, KUBE: {}}, {}, ["none"], None)) == [
        *("apiVersion", "kind", "evictionHard", "enforceNodeAllocatable"),
    ]
    assert written(Sizing(CPU, MILLICORES, 2000, ()), 2000) == "2"
