"""What is allowed in a configuration and bites: each finding where it belongs, and nowhere else."""

from dataclasses import replace
from typing import Any

import pytest

from monitor.policy.configuration import Given, Source, in_force
from monitor.policy.findings import Node, findings
from monitor.policy.releases import CURRENT, ERAS, era
from monitor.policy.thresholds import DEFAULT_HARD

GI = 1 << 30
MACHINE = Node({"memory.available": 10 * GI, "allocatableMemory.available": 8 * GI, "nodefs.available": 100 * GI})
#: All defaults, so that naming them switches nothing off.
ALL = dict(DEFAULT_HARD)


def found(node: Node = MACHINE, **content: Any) -> list[str]:
    return findings(in_force(Source("file", content)), node)


def test_no_findings() -> None:
    assert (found(), found(evictionHard=ALL)) == ([], [])
    assert findings(in_force(), Node()) == []
    for name in ERAS:
        assert findings(in_force(rules=era(name)), MACHINE, era(name)) == []


@pytest.mark.parametrize(
    ("text", "gib", "lines"),
    [("1Gi", 1, 1), ("1Gi", 2, 1), ("1025Mi", 1, 0), ("9%", 1, 1), ("11%", 1, 0), ("1Gi", 0, 0), ("0%", 1, 0)],
)
def test_a_line_below_huge_pages_is_never_met_before_1_37(text: str, gib: int, lines: int) -> None:
    """100Mi free and 1 GiB in huge pages are 1.1 GiB available there."""
    node = replace(MACHINE, huge_pages=gib * GI)
    settings = in_force(Source("file", {"evictionHard": {**ALL, "memory.available": text}}))
    for name in ERAS:
        found = [line for line in findings(settings, node, era(name)) if "huge pages" in line]
        assert len(found) == (0 if name == CURRENT.name else lines)
        for line in found:
            assert line.startswith(f"file: evictionHard: memory.available: {text} is never met: under {name} huge")
            assert f"here {gib}Gi," in line


def test_what_is_reserved_is_of_the_whole_memory() -> None:
    """9 GiB of 10, and 100Mi: with 2 GiB in huge pages, which leave a capacity of 8 GiB."""
    node, kept = Node({"memory.available": 8 * GI}, huge_pages=2 * GI), {"systemReserved": {"memory": "9Gi"}}
    assert not [line for line in found(node, **kept) if "does not start" in line]
    assert [line for line in found(replace(node, huge_pages=GI), **kept) if "does not start" in line]


@pytest.mark.parametrize(
    ("content", "begins", "expected"),
    [
        ({"evictionHard": {"memory.available": "1Gi", "nodefs.available": "0%"}}, "file: evictionHard: naming any",
         "nodefs.inodesFree<5%, imagefs.available<15%, imagefs.inodesFree<5%; name those"),
        ({"evictionSoftGracePeriod": {"nodefs.available": "1m"}},
         "file: evictionSoftGracePeriod: nodefs.available: ", "no effect without a soft threshold"),
        ({"evictionMinimumReclaim": {"pid.available": "10"}}, "file: evictionMinimumReclaim: pid.available: ",
         "no effect without a threshold"),
        ({"kernelMemcgNotification": True}, "file: kernelMemcgNotification: ", "cgroup v2"),
        ({"evictionMaxPodGracePeriod": -1}, "file: evictionMaxPodGracePeriod: -1 leaves the grace", "118172"),
        ({"evictionHard": {**ALL, "pid.available": "0.0%"}}, "file: evictionHard: pid.available: 0.0%", "never met"),
        ({"evictionHard": {**ALL, "pid.available": "NaN%"}}, "file: evictionHard: pid.available: NaN%", "never met"),
        ({"evictionHard": {**ALL, "pid.available": "100.0%"}}, "file: evictionHard: pid.available", "always met"),
        ({"evictionHard": {**ALL, "memory.available": "0%"}}, "file: evictionHard: no memory threshold",
         "before memory runs out"),
    ],
)  # fmt: skip
def test_one_finding_each(content: dict[str, Any], begins: str, expected: str) -> None:
    (one,) = found(**content)
    assert one.startswith(begins)
    assert expected in one
    assert "\n" not in one


@pytest.mark.parametrize(
    ("signal", "text", "said"),
    [
        ("nodefs.inodesFree", "100Mi", "100Mi is 104,857,600 inodes, not bytes: always met on ordinary disks"),
        ("imagefs.inodesFree", "1G", "1G is 1,000,000,000 inodes, not bytes"),
        ("containerfs.inodesFree", "100Mi", ""),  # a copy takes its place
        ("nodefs.inodesFree", "500k", ""),
        ("nodefs.inodesFree", "32M", ""),
        ("nodefs.inodesFree", "10Mi", "10Mi is 10,485,760 inodes, not bytes: always met on ordinary disks (below 160"),
        ("memory.available", "100", "100 is 100 bytes: met too late; write a unit, as in 100Mi"),
        ("memory.available", "100m", "100m is 1 bytes"),
        ("nodefs.available", "10k", "10k is 10,000 bytes"),
        ("nodefs.available", "1Mi", ""),
        ("memory.available", "100Mi", ""),
    ],
)
def test_what_has_another_unit_than_it_seems(signal: str, text: str, said: str) -> None:
    lines = found(evictionHard={**ALL, signal: text})
    assert [line.startswith(f"file: evictionHard: {signal}: {said}") for line in lines] == ([True] if said else [])
    if signal == "nodefs.inodesFree":
        assert found(Node({signal: 1 << 60}), evictionHard={**ALL, signal: text}) == []  # it has so many


@pytest.mark.parametrize(
    ("key", "name", "text", "said"),
    [
        ("systemReserved", "memory", "500m", "500m is 1 bytes: too few to matter; write a unit, as in 100Mi"),
        ("kubeReserved", "ephemeral-storage", "10", "10 is 10 bytes: too few to matter"),
        ("evictionMinimumReclaim", "nodefs.available", "5", "5 is 5 bytes: too few to matter"),
        ("evictionMinimumReclaim", "nodefs.available", "5%", ""),
        ("evictionMinimumReclaim", "nodefs.available", "95%", "min reclaim 95% above 10% is never reached, with a"),
        ("evictionMinimumReclaim", "nodefs.available", "90Gi", "min reclaim 90Gi above 10% is never reached, with a"),
        ("evictionMinimumReclaim", "nodefs.available", "89Gi", ""),
        ("evictionMinimumReclaim", "imagefs.available", "86%", "min reclaim 86% above 15% is never reached: pods"),
        ("evictionMinimumReclaim", "imagefs.available", "900Gi", ""),  # of a disk that is not known
        ("evictionMinimumReclaim", "nodefs.inodesFree", "500Mi", "500Mi is 524,288,000 inodes, not bytes: never reac"),
        ("evictionMinimumReclaim", "memory.available", "0", ""),
        ("systemReserved", "cpu", "500m", ""),
        ("systemReserved", "pid", "1000", ""),
        ("kubeReserved", "memory", "1Mi", ""),
    ],
)
def test_what_is_reclaimed_or_reserved_without_a_unit(key: str, name: str, text: str, said: str) -> None:
    lines = found(evictionHard=ALL, **{key: {name: text}})
    assert [line.startswith(f"file: {key}: {name}: {said}") for line in lines] == ([True] if said else [])
    if name == "nodefs.inodesFree":
        assert found(Node({name: 1 << 60}), evictionHard=ALL, **{key: {name: text}}) == []


def test_the_maximum_pod_grace_counts_where_a_soft_threshold_is() -> None:
    def lines(**content: Any) -> list[str]:
        return found(evictionHard=ALL, enforceNodeAllocatable=["none"], **content)

    def soft(grace: str) -> dict[str, Any]:
        texts = ({"memory.available": "1Gi"}, {"memory.available": grace})
        return dict(zip(("evictionSoft", "evictionSoftGracePeriod"), texts, strict=True))

    zero = "the maximum pod grace is 0, so pods get 1 s whatever their own grace; set evictionMaxPodGracePeriod to the"
    assert [line.partition(" seconds")[0] for line in lines(**soft("1m30s"))] == [f"file: evictionSoft: {zero}"]
    (given,) = lines(**soft("1m30s"), evictionMaxPodGracePeriod=0)
    assert given.startswith(f"file: evictionMaxPodGracePeriod: {zero}")
    assert lines(**soft("1m30s"), evictionMaxPodGracePeriod=30) == []
    assert lines(**soft("0s")) == []  # that is a hard one
    (unused,) = lines(evictionMaxPodGracePeriod=30)
    assert unused.startswith("file: evictionMaxPodGracePeriod: 30 has no effect without a soft threshold")
    assert lines(evictionMaxPodGracePeriod=0) == []


def test_merging_defaults_is_advised_where_it_works() -> None:
    (by_file,) = found(evictionHard={"memory.available": "1Gi"})
    assert by_file.endswith("or set mergeDefaultEvictionSettings: true")
    flag = in_force(own={"evictionHard": Given({"memory.available": "1Gi"}, "--eviction-hard")})
    (by_flag,) = findings(flag, MACHINE)
    assert "mergeDefaultEvictionSettings" not in by_flag


@pytest.mark.parametrize(
    ("hard", "soft", "gib", "reported"),
    [
        ("1Gi", "512Mi", 10, True), ("1Gi", "1Gi", 10, True), ("1Gi", "2Gi", 10, False),
        ("10%", "5%", 10, True), ("10%", "10%", 10, True), ("10%", "15%", 10, False),
        ("1Gi", "9%", 10, True), ("1Gi", "11%", 10, False), ("1Gi", "1%", 50, True), ("1Gi", "1%", 200, False),
        ("1Gi", "1%", 0, False),  # cannot be compared where the capacity is not known
    ],
)  # fmt: skip
def test_soft_below_hard(hard: str, soft: str, gib: int, reported: bool) -> None:
    lines = found(
        Node({"memory.available": gib * GI} if gib else {}),
        evictionHard={**ALL, "memory.available": hard},
        evictionSoft={"memory.available": soft},
        evictionSoftGracePeriod={"memory.available": "1m"},
        evictionMaxPodGracePeriod=30,
        enforceNodeAllocatable=["none"],
    )
    assert [line for line in lines if "is not above the hard one" in line] == lines
    assert bool(lines) == reported


def test_met_by_definition() -> None:
    lines = found(evictionHard={**ALL, "memory.available": "8Gi"})
    (copy,) = lines  # the copy only: pods may use 8Gi of the 10Gi
    assert copy.startswith(
        "copy of memory.available (file: evictionHard): allocatableMemory.available: 8Gi is always met"
    )
    assert len(found(Node(), evictionHard={**ALL, "memory.available": "8Gi"})) == 0
    lines = found(evictionHard={**ALL, "memory.available": "10Gi"})
    assert ["is always met" in line for line in lines] == [True, True]


@pytest.mark.parametrize(("kept", "reported"), [("5Gi", False), ("9Gi", False), ("9217Mi", True)])
def test_more_reserved_than_there_is(kept: str, reported: bool) -> None:
    reserved = {"systemReserved": {"memory": kept}, "kubeReserved": {"cpu": "99"}}
    lines = found(evictionHard={**ALL, "memory.available": "1Gi"}, enforceNodeAllocatable=["none"], **reserved)
    why = f"memory: {kept} (systemReserved memory) + 1Gi (memory.available) is more than the capacity of 10Gi: "
    assert lines == ([f"{why}a kubelet does not start; lower one of them"] if reported else [])
