"""`outrace reserve` as a command: JSON to the byte and millicore, tables, a configuration that is accepted."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.cli.main import main
from monitor.kernel import disks, meminfo
from tests.daemon.config_files import KUBELET, write

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def reserve(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["reserve", *arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def sized(reserve):
    def call(*arguments: str) -> Any:
        code, out, err = reserve(*arguments, "-o", "json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return call


def test_cce_v1(sized) -> None:
    """16 GiB, 110 pods, 5 cores, 100 GiB; the sums are worked in tests/policy/test_cce.py."""
    node = ("--memory", "16Gi", "--cpu", "5", "--max-pods", "110", "--data-disk", "100Gi", "--runtime", "docker")
    found = sized("--model", "cce-v1", *node)
    assert list(found) == ["model", "inputs", "memory", "cpu", "data_disk", "kubelet_configuration", "notes"]
    assert found["inputs"] == {
        "memory_bytes": 16 * GIB,
        "cpu_millicores": 5000,
        "data_disk_bytes": 100 * GIB,
        "max_pods": 110,
        "runtime": None,  # v1 does not ask for it
    }
    terms = found["memory"].pop("terms")
    assert found["memory"] == {
        "capacity_bytes": 17179869184,
        "system_reserved_bytes": 858993460,
        "kube_reserved_bytes": 1665977549,
        "reserved_bytes": 2524971009,
        "eviction_threshold_bytes": 104857600,
        "allocatable_bytes": 14550040575,
        "kubepods_limit_bytes": 14654898175,
    }
    assert terms[0] == {
        "part": "systemReserved",
        "name": "system components",
        "bytes": 858993460,
        "rounding": "up",
        "rule": "8 GiB < memory <= 16 GiB: 10 % of what is above 8 GiB",
    }
    assert sum(term["bytes"] for term in terms) == 17179869184 - 14550040575
    cpu = found["cpu"]
    assert (cpu["kube_reserved_millicores"], cpu["allocatable_millicores"]) == (83, 4917)
    assert cpu["kubepods_limit_millicores"] == 4917
    disk = found["data_disk"]
    assert (disk["reserved_bytes"], disk["allocatable_bytes"]) == (4 * MIB, 102396 * MIB)
    assert "kubepods_limit_bytes" not in disk
    assert found["kubelet_configuration"]["kubeReserved"] == {"memory": "1665977549", "cpu": "83m"}


def test_cce_v2(sized) -> None:
    for runtime, allocatable in (("docker", 12784 * MIB), ("containerd", 14434 * MIB)):
        found = sized("--model", "cce-v2", "--memory", "16Gi", "--max-pods", "110", "--runtime", runtime)
        assert found["memory"]["allocatable_bytes"] == allocatable
        assert found["inputs"]["runtime"] == runtime
        assert (found["cpu"], found["data_disk"]) == (None, None)


def test_kubelet(sized, tmp_path: Path) -> None:
    flags = ("--memory", "10Gi", "--system-reserved", "memory=1.5Gi", "--eviction-hard", "memory.available<500Mi")
    found = sized(*flags)
    memory = found["memory"]
    assert (memory["allocatable_bytes"], memory["kubepods_limit_bytes"]) == (8204 * MIB, 8704 * MIB)
    assert [note.partition(" switches ")[2].partition(" off")[0] for note in found["notes"]] == [
        *("nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"),
    ]
    # The same from a file, and what limits nothing.
    file = write(
        tmp_path,
        "kubelet.yaml",
        KUBELET + "systemReserved: {memory: 1.5Gi, pid: '1000'}\nevictionHard: {memory.available: 500Mi}\n",
    )
    found = sized("--memory", "10Gi", "--kubelet-config", file, "--enforce-node-allocatable", "none")
    memory = found["memory"]
    assert (memory["allocatable_bytes"], memory["kubepods_limit_bytes"]) == (8204 * MIB, 10 * GIB)
    assert memory["terms"][0]["rule"] == f"memory=1.5Gi ({file}: systemReserved)"
    # Also what was not asked about stays in the configuration, as it was written.
    assert found["kubelet_configuration"]["systemReserved"] == {"memory": "1.5Gi", "pid": "1000"}


def test_table(reserve) -> None:
    code, out, err = reserve("--memory", "1Gi", "--cpu", "2", "--kube-reserved", "memory=24Mi,cpu=100m")
    assert (code, err) == (0, "")
    assert [line.split(maxsplit=1)[0] for line in out.splitlines()] == ["RESOURCE", *["memory"] * 5, *["cpu"] * 4]
    for words in (
        "memory    capacity                1.0Gi   1Gi  --memory",
        "- kubeReserved memory    24.0Mi      24Mi  memory=24Mi (--kube-reserved)",
        "= allocatable           900.0Mi     900Mi",
        "limit of kubepods      1000.0Mi    1000Mi",
        "= allocatable             1900m     1900m",
    ):
        assert " ".join(words.split()) in " ".join(out.split())
    out = reserve("--model", "cce-v1", "--memory", "2147483649", "--max-pods", "17")[1]
    assert "memory > 2 GiB, 17 to 32 pods: 700 MiB + 18.75 MiB for each above 16" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model", "cce-v1", "--memory", "3Gi", "--cpu", "1500m", "--max-pods", "20"),
        ("--model", "cce-v2", "--memory", "256Gi", "--cpu", "64", "--max-pods", "200", "--runtime", "docker"),
        ("--memory", "4Gi", "--system-reserved", "memory=100Mi,cpu=100m", "--max-pods", "50"),
    ],
)
def test_the_configuration_is_accepted_and_says_the_same(reserve, sized, tmp_path: Path, arguments) -> None:
    code, text, err = reserve(*arguments, "-o", "kubelet-config")
    assert (code, err) == (0, "")
    made = sized(*arguments)
    assert yaml.safe_load(text) == made["kubelet_configuration"]
    file = write(tmp_path, "made.yaml", text)
    assert main(["config", "check", "--kubelet-config", file]) == 0
    capacity = ("--memory", arguments[arguments.index("--memory") + 1])
    if "--cpu" in arguments:
        capacity += ("--cpu", arguments[arguments.index("--cpu") + 1])
    again = sized(*capacity, "--kubelet-config", file)
    for resource in ("memory", "cpu"):
        if made[resource] is not None:
            assert {k: v for k, v in again[resource].items() if k != "terms"} == {
                k: v for k, v in made[resource].items() if k != "terms"
            }


def test_this_node(sized) -> None:
    found = sized("--this-node")
    assert found["inputs"]["memory_bytes"] == meminfo.mem_total()
    assert found["inputs"]["cpu_millicores"] == (os.cpu_count() or 0) * 1000
    assert found["inputs"]["data_disk_bytes"] == disks.file_system(disks.find_disks().nodefs).capacity
    # What is given wins. CCE's data disk is not the file system that was made on it.
    found = sized("--this-node", "--model", "cce-v2", "--memory", "16Gi", "--max-pods", "110")
    assert found["memory"]["allocatable_bytes"] == 14434 * MIB
    assert (found["cpu"]["capacity_millicores"], found["data_disk"]) == ((os.cpu_count() or 0) * 1000, None)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "--memory: is missing; give the node's memory, such as --memory 16Gi, or --this-node"),
        (("--memory", "16gi"), "--memory: '16gi': quantities must match the regular expression "
         "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'; write a quantity such as 16Gi"),
        (("--memory", "0"), "--memory: '0' is no capacity of a node; write a quantity such as 16Gi"),
        (("--memory", "-1Gi"), "--memory: '-1Gi' is no capacity of a node; write a quantity such as 16Gi"),
        (("--memory", "8Ei"), "--memory: '8Ei' is no capacity of a node; write a quantity such as 16Gi"),
        (("--memory", "1Gi", "--cpu", "1u"),
         "--cpu: '1u' is no capacity of a node; write a quantity such as 4 or 3500m"),
        (("--memory", "1Gi", "--max-pods", "0"),
         "--max-pods: 0 is no number of pods; write how many the node may run, such as 110"),
        (("--memory", "4Gi", "--model", "cce-v1"), "--max-pods: is missing, and cce-v1 keeps memory back by it; "
         "give the node's maxPods, such as 110"),
        (("--memory", "4Gi", "--model", "cce-v2", "--max-pods", "9", "--kube-reserved", "memory=1Gi"),
         "--kube-reserved: cce-v2 works this out itself; leave it out, or take --model kubelet"),
        (("--memory", "1Gi", "--system-reserved", "memory=1Gi"), "--memory: 1Gi (systemReserved memory) + 100Mi "
         "(memory.available) is more than the capacity of 1Gi: a kubelet does not start; keep back less, or take a "
         "larger node"),
        (("--memory", "1Gi", "--data-disk", "1Gi", "--kube-reserved", "ephemeral-storage=1Gi"),
         "--data-disk: 1Gi (kubeReserved ephemeral-storage) + 107374184 (nodefs.available) is more than the capacity "
         "of 1Gi: a kubelet does not start; keep back less, or take a larger node"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(reserve, arguments: tuple[str, ...], complaint: str) -> None:
    assert reserve(*arguments) == (2, "", f"outrace: error: {complaint}\n")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--eviction-hard", "memory.available<1Gb"), ("--eviction-hard: memory.available: 1Gb", "such as 100Mi")),
        (("--eviction-hard", "memory.free<1Gi"), ("unsupported eviction signal", "signals are memory.available")),
        (("--system-reserved", "disk=1Gi"), ("--system-reserved: disk",)),
        (("--kubelet-config", "/no/such/file"), ("/no/such/file: cannot be read",)),
        (("--model", "gke"), ("--model", "see `outrace reserve --help`")),
    ],
)
def test_what_the_kubelet_would_refuse(reserve, flags: tuple[str, ...], words: tuple[str, ...]) -> None:
    code, out, err = reserve("--memory", "4Gi", *flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert all(word in err for word in words), err
