"""What the nodes of CCE (Huawei's Cloud Container Engine) keep back: its tables for memory, CPU and data disks.

v1: clusters before 1.21.4-r0 and 1.23.3-r0, v2 from there on. A band includes its edge. Memory is MemTotal.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from monitor.policy.sizing import EVICTION, KUBE, LVM, SYSTEM, Term

MIB, GIB = 1 << 20, 1 << 30
#: The hard threshold is the same in every model and size.
THRESHOLD = Term(EVICTION, "memory.available", 100 * MIB, "memory.available<100Mi, always")
DOCKER, CONTAINERD = "docker", "containerd"

#: Shares of what lies in each band: its upper edge, which belongs to it (None: it has no end), percent, and the rule.
_SYSTEM_MEMORY = (
    (8 * GIB, Fraction(0), "memory <= 8 GiB: nothing"),
    (16 * GIB, Fraction(10), "8 GiB < memory <= 16 GiB: 10 % of what is above 8 GiB"),
    (128 * GIB, Fraction(6), "16 GiB < memory <= 128 GiB: 10 % of 8 GiB, 6 % of what is above 16 GiB"),
    (None, Fraction(2), "memory > 128 GiB: 10 % of 8 GiB, 6 % of 112 GiB, 2 % of what is above 128 GiB"),
)
_CPU = (
    (1000, Fraction(6), "CPU <= 1 core: 6 %"),
    (2000, Fraction(1), "1 < CPU <= 2 cores: 6 % of the first, 1 % of what is above 1"),
    (4000, Fraction(1, 2), "2 < CPU <= 4 cores: 6 % of the first, 1 % of the second, 0.5 % of what is above 2"),
    (
        None,
        Fraction(1, 4),
        "CPU > 4 cores: 6 % of the first, 1 % of the second, 0.5 % of the next two, 0.25 % of what is above 4",
    ),
)
#: MiB for up to so many pods (None: any number): a base, and for every pod above so many so much each; and the rule.
_PODS_MEMORY = (
    (16, 700, 0, Fraction(0), "up to 16 pods: 700 MiB"),
    (32, 700, 16, Fraction(1875, 100), "17 to 32 pods: 700 MiB + 18.75 MiB for each above 16"),
    (64, 1024, 32, Fraction(625, 100), "33 to 64 pods: 1024 MiB + 6.25 MiB for each above 32"),
    (128, 1230, 64, Fraction(780, 100), "65 to 128 pods: 1230 MiB + 7.80 MiB for each above 64"),
    (None, 1740, 128, Fraction(1120, 100), "more than 128 pods: 1740 MiB + 11.20 MiB for each above 128"),
)
_SMALL = 2 * GIB
#: MiB for each pod that the node may run, in v2.
PER_POD = {DOCKER: 20, CONTAINERD: 5}


def memory_v1(memory: int, max_pods: int) -> tuple[Term, ...]:
    """Both tables of v1, for ``memory`` bytes and a node that may run ``max_pods``."""
    amount, rule = _share(memory, _SYSTEM_MEMORY)
    system = Term.rounded_up(SYSTEM, "system components", amount, rule)
    if memory <= _SMALL:
        rule = "memory <= 2 GiB: 25 % of it, for any number of pods"
        return system, Term.rounded_up(KUBE, "managing pods", Fraction(memory, 4), rule), THRESHOLD
    _, base, above, each, rule = next(band for band in _PODS_MEMORY if band[0] is None or max_pods <= band[0])
    amount = (base + each * (max_pods - above)) * MIB
    return system, Term.rounded_up(KUBE, "managing pods", amount, f"memory > 2 GiB, {rule}"), THRESHOLD


def memory_v2(memory: int, max_pods: int, runtime: str) -> tuple[Term, ...]:
    """What v2 keeps back for the operating system and for CCE's own parts, each a base and a part that grows."""
    each = PER_POD[runtime]
    return (
        Term(SYSTEM, "services of the system", 400 * MIB, "400 MiB, always"),
        Term.rounded_up(
            SYSTEM, "kernel", Fraction(memory * 25 * MIB, GIB), "25 MiB for each GiB of memory, in part too"
        ),
        Term(KUBE, "kubelet and runtime, idle", 500 * MIB, "500 MiB, always"),
        Term(
            KUBE, "runtime, for each pod", max_pods * each * MIB, f"{runtime}: {each} MiB for each of {max_pods} pods"
        ),
        THRESHOLD,
    )


def cpu(millicores: int) -> tuple[Term, ...]:
    """The table for CPU, alike in v1 and v2."""
    amount, rule = _share(millicores, _CPU)
    return (Term.rounded_up(KUBE, "components of Kubernetes", amount, rule),)


def data_disk(size: int) -> tuple[Term, ...]:
    """The metadata area that LVM makes on a data disk."""
    return (Term(LVM, "metadata of LVM", 4 * MIB, "4 MiB of every data disk, always"),)


def _share(amount: int, bands: Iterable[tuple[int | None, Fraction, str]]) -> tuple[Fraction, str]:
    """The sum of the shares of every band that ``amount`` reaches into, and the rule of the last of them."""
    total, lower = Fraction(0), 0
    for edge, percent, rule in bands:
        upper = amount if edge is None else min(amount, edge)
        total += percent / 100 * (upper - lower)
        if edge is None or amount <= edge:
            return total, rule
        lower = edge
    raise AssertionError("the last band has no end")
