"""The tables of CCE at every edge, one below and one above, worked by hand; what is made of a node's terms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy import cce
from monitor.policy.cce import CONTAINERD, GIB, MIB
from monitor.policy.quantity import Quantity
from monitor.policy.sizing import (
    BYTES,
    CPU,
    EXACT,
    KUBE,
    LVM,
    MEMORY_RESOURCE,
    MILLICORES,
    SYSTEM,
    UP,
    Sizing,
    Term,
    kubelet_configuration,
    reservations,
    size,
)


@pytest.mark.parametrize(
    ("memory", "amount", "rounding"),
    [
        (8 * GIB - 1, 0, EXACT),
        (8 * GIB + 1, 1, UP),  # 10 % of a byte
        (9 * GIB, 107374183, UP),  # 10 % of 1024 MiB: 102.4 MiB = 107374182.4
        (16 * GIB, 858993460, UP),  # 8 x 102.4 MiB = 819.2 MiB = 858993459.2
        (16 * GIB + 1, 858993460, UP),  # 6 % of a byte more: .26
        (128 * GIB, 8074538517, UP),  # 819.2 + 112 x 61.44 = 7700.48 MiB = 8074538516.48
        (128 * GIB + 50, 8074538518, UP),  # 2 % of 50 bytes is 1
        (256 * GIB, 10823317586, UP),  # 7700.48 + 128 x 20.48 = 10321.92 MiB = 10823317585.92
    ],
)
def test_v1_system_components(memory: int, amount: int, rounding: str) -> None:
    term = cce.memory_v1(memory, 110)[0]
    assert (term.part, term.amount, term.rounding) == (SYSTEM, amount, rounding)


@pytest.mark.parametrize(
    ("memory", "amount"),
    [
        (1, 1),  # a quarter of a byte
        (1 * GIB, 256 * MIB),
        (2 * GIB, 512 * MIB),
        (2 * GIB + 1, 700 * MIB),
        (8 * GIB, 700 * MIB),
    ],
)
def test_v1_pods_by_memory(memory: int, amount: int) -> None:
    _, pods, threshold = cce.memory_v1(memory, 16)
    assert (pods.part, pods.amount, threshold) == (KUBE, amount, cce.THRESHOLD)
    if memory <= 2 * GIB:  # for any number of pods
        assert cce.memory_v1(memory, 500)[1].amount == amount


@pytest.mark.parametrize(
    ("pods", "amount", "band"),
    [
        (16, 700 * MIB, "up to 16"),
        (17, 753664000, "17 to 32"),  # 700 + 18.75 = 718.75 MiB
        (32, 1000 * MIB, "17 to 32"),  # 700 + 16 x 18.75
        (33, 1080295424, "33 to 64"),  # 1024 + 6.25 = 1030.25 MiB
        (64, 1224 * MIB, "33 to 64"),  # 1024 + 32 x 6.25
        (65, 1297927373, "65 to 128"),  # 1230 + 7.80 = 1237.8 MiB = 1297927372.8
        (128, 1813197620, "65 to 128"),  # 1230 + 64 x 7.80 = 1729.2 MiB = 1813197619.2
        (129, 1836266292, "more than 128"),  # 1740 + 11.20 = 1751.2 MiB = 1836266291.2
        (256, 3327760794, "more than 128"),  # 1740 + 128 x 11.20 = 3173.6 MiB = 3327760793.6
    ],
)
def test_v1_pods_by_number(pods: int, amount: int, band: str) -> None:
    term = cce.memory_v1(8 * GIB, pods)[1]
    assert (term.part, term.amount) == (KUBE, amount)
    assert band in term.rule


@pytest.mark.parametrize(
    ("memory", "amount", "rounding"),
    [
        (GIB - 1, 26214400, UP),  # 25/1024 of a byte less than 25 MiB
        (GIB, 26214400, EXACT),
        (GIB + 1, 26214401, UP),
        (GIB + GIB // 2, 39321600, EXACT),  # 37.5 MiB: a part of a GiB counts in part
    ],
)
def test_v2_kernel(memory: int, amount: int, rounding: str) -> None:
    term = cce.memory_v2(memory, 20, CONTAINERD)[1]
    assert (term.amount, term.rounding) == (amount, rounding)


@pytest.mark.parametrize(
    ("millicores", "amount", "rounding"),
    [
        (1, 1, UP),  # 0.06
        (999, 60, UP),  # 59.94
        (1000, 60, EXACT),  # 6 % of one core
        (1001, 61, UP),  # 60.01
        (2000, 70, EXACT),  # 60 + 10
        (2001, 71, UP),  # 70.005
        (4000, 80, EXACT),  # 70 + 10
        (4001, 81, UP),  # 80.0025
        (64000, 230, EXACT),  # 80 + 60 x 2.5
    ],
)
def test_cpu(millicores: int, amount: int, rounding: str) -> None:
    (term,) = cce.cpu(millicores)
    assert (term.part, term.amount, term.rounding) == (KUBE, amount, rounding)


def test_data_disk() -> None:
    (term,) = cce.data_disk(100 * GIB)
    assert (term.part, term.amount) == (LVM, 4 * MIB)
    assert size("ephemeral-storage", BYTES, 100 * GIB, (term,)).allocatable == 102396 * MIB


def test_allocatable_of_a_node() -> None:
    """16 GiB for 110 pods. v1: 16384 - 819.2 - (1230 + 46 x 7.80 = 1588.8) - 100 = 13876 MiB. Both terms end in a
    fraction of a byte and are rounded up: .2 and .8 are missing up to whole bytes, so one byte is less.
    """
    v1 = size(MEMORY_RESOURCE, BYTES, 16 * GIB, cce.memory_v1(16 * GIB, 110))
    assert v1.allocatable == 13876 * MIB - 1
    # v2: 16384 - 400 - 400 - 500 - 550 - 100 = 14434 MiB; 1650 MiB less with docker
    v2 = [size(MEMORY_RESOURCE, BYTES, 16 * GIB, cce.memory_v2(16 * GIB, 110, runtime)) for runtime in cce.PER_POD]
    assert [found.allocatable for found in v2] == [12784 * MIB, 14434 * MIB]
    assert [found.pods_limit for found in v2] == [12884 * MIB, 14534 * MIB]


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
