"""`outrace reserve` as a command: JSON to the byte and millicore, tables, a configuration that is accepted."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.kernel import disks, meminfo
from tests.commands import called
from tests.daemon.config_files import KUBELET, write
from tests.live import one_line

MIB, GIB = 1 << 20, 1 << 30


def sized(*arguments: str) -> Any:
    done = called("reserve", *arguments, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_what_the_kernel_keeps_is_no_room_on_this_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """100Mi of which the kernel keeps 64: anything slower than 36 MiB in 5 ms is survived; with 135 nothing is."""
    monkeypatch.setattr(meminfo, "huge_pages", lambda: 0)
    of_outrace = {}
    for kept in (0, 64 * MIB, 135 * MIB):
        monkeypatch.setattr(meminfo, "kernels_share", lambda kept=kept, **_: kept)
        growth = sized("--this-node", "--eviction-hard", "memory.available<100Mi")["growth"]
        assert growth["kernel_keeps_bytes"] == kept
        of_outrace[kept] = next(r["always_bytes_per_s"] for r in growth["survives"] if r["reaction"] == "enforce")
    assert of_outrace == {0: 100 * MIB * 200 - 1, 64 * MIB: 36 * MIB * 200 - 1, 135 * MIB: None}
    shown = called("reserve", "--this-node", "--eviction-hard", "memory.available<100Mi").stdout
    assert "(135Mi that the kernel keeps count as available, and pods cannot grow into them.)" in shown
    # Of a node that is described nothing is known.
    assert sized("--this-node", "--memory", "16Gi")["growth"]["kernel_keeps_bytes"] == 0


def survived(found: Any) -> dict[str, tuple[int, int]]:
    """In whole MiB/s: always, and at best."""
    return {
        each["reaction"]: (each["always_bytes_per_s"] // MIB, each["at_best_bytes_per_s"] // MIB)
        for each in found["growth"]["survives"]
    }


def test_the_documents_node_of_ten_gibibytes() -> None:
    """10 GiB, 10 % for the system, eviction at 95 %: memory.available<500Mi and system-reserved=1.5Gi.

    The kubelet's loop: 500 / 12.03 = 41.6 MiB/s always, 500 / 2.03 = 246.3 at best; enforce: 500 / 0.005 =
    100,000, of which the last byte is not allowed; hold: 3/7 of that.
    """
    node = ("--memory", "10Gi", "--eviction-hard", "memory.available<500Mi")
    found = sized(*node, "--system-reserved", "memory=1.5Gi")
    assert found["growth"]["threshold_bytes"] == 500 * MIB
    assert survived(found) == {
        "kubelet": (41, 246),
        "hold": (42_857, 42_857),
        "enforce": (99_999, 99_999),
    }
    # The 1.5Gi count the threshold in: 1536 - 500 = 1036 MiB, the "1Gi" of the document, for the system.
    # A kubelet of today takes the threshold off beside it, so the system may use all 1536 MiB.
    assert found["growth"]["system_may_use_bytes"] == 1536 * MIB
    assert found["memory"]["allocatable_bytes"] == 8204 * MIB
    # So reserved=1Gi gives what the document wants: 10240 - 1024 - 500 = 8716 MiB, and 1 GiB for the system.
    today = sized(*node, "--system-reserved", "memory=1Gi")
    assert today["memory"]["allocatable_bytes"] == 8716 * MIB
    assert today["growth"]["system_may_use_bytes"] == GIB
    assert survived(today) == survived(found)  # what is reserved gives eviction no time


def test_huge_pages(tmp_path: Path) -> None:
    """Before 1.37 they are available: a threshold of 100 MiB is never met before the OOM killer, one of 4096 + 500 MiB
    survives 500 / 12.03 = 41.6 MiB/s. Since then 500 do.
    """
    apart = ("--memory", "16Gi", "--huge-pages", "4Gi")
    found = sized(*apart, "--eviction-hard", "memory.available<500Mi")
    assert survived(found)["kubelet"] == (41, 246)
    off = write(tmp_path, "off.yaml", f"{KUBELET}featureGates: {{HugepageAwareEviction: false}}\n")
    node = (*apart, "--kubelet-config", off)
    found = sized(*node)["growth"]
    assert [each["always_bytes_per_s"] for each in found["survives"]] == [None] * 3
    found = sized(*node, "--eviction-hard", "memory.available<4596Mi", "--system-reserved", "memory=1Gi")
    assert (survived(found)["kubelet"], found["growth"]["system_may_use_bytes"]) == ((41, 246), GIB)
    # A kubelet publishes 0 instead of a negative number, and starts.
    assert sized("--memory", "1Gi", "--huge-pages", "1000Mi")["memory"]["allocatable_bytes"] == 0
    assert "eviction threshold - huge pages: what the node publishes" in called("reserve", *node).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model", "cce-v1", "--memory", "3Gi", "--cpu", "1500m", "--max-pods", "20"),
        ("--model", "cce-v2", "--memory", "256Gi", "--cpu", "64", "--max-pods", "200", "--runtime", "docker"),
        ("--memory", "4Gi", "--system-reserved", "memory=100Mi,cpu=100m", "--max-pods", "50"),
    ],
)
def test_the_configuration_is_accepted_and_gives_the_same(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = called("reserve", *arguments, "-o", "kubelet-config")
    assert (done.returncode, done.stderr) == (0, "")
    made = sized(*arguments)
    assert yaml.safe_load(done.stdout) == made["kubelet_configuration"]
    file = write(tmp_path, "made.yaml", done.stdout)
    assert called("config", "check", "--kubelet-config", file).returncode == 0
    capacity = ("--memory", arguments[arguments.index("--memory") + 1])
    if "--cpu" in arguments:
        capacity += ("--cpu", arguments[arguments.index("--cpu") + 1])
    again = sized(*capacity, "--kubelet-config", file)
    for resource in ("memory", "cpu"):
        if made[resource] is not None:
            assert again[resource] | {"terms": None} == made[resource] | {"terms": None}


def test_this_node() -> None:
    found = sized("--this-node")
    assert found["memory"]["capacity_bytes"] == meminfo.mem_total()
    assert found["memory"]["huge_pages_bytes"] == meminfo.huge_pages()
    assert found["cpu"]["capacity_millicores"] == (os.cpu_count() or 0) * 1000
    assert found["data_disk"]["capacity_bytes"] == disks.file_system(disks.find_disks().nodefs).capacity
    # What is given wins. CCE's data disk is not the file system that was made on it.
    found = sized("--this-node", "--model", "cce-v2", "--memory", "16Gi", "--max-pods", "110")
    assert found["memory"]["allocatable_bytes"] == 14434 * MIB
    assert (found["cpu"]["capacity_millicores"], found["data_disk"]) == ((os.cpu_count() or 0) * 1000, None)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--memory 0", "--memory: '0' is no capacity of a node; write a quantity such as 16Gi"),
        ("--memory 8Ei", "--memory: '8Ei' is no capacity of a node"),
        ("--memory 1Gi --cpu 1u", "--cpu: '1u' is no capacity of a node; write a quantity such as 4 or 3500m"),
        ("--memory 1Gi --huge-pages 2Gi", "--huge-pages: 2147483648 bytes of huge pages are more than the node's"),
        ("--memory 1Gi --eviction-hard memory.available<nan%", "memory.available<nan% (--eviction-hard), a percentage"),
        ("--memory 1Gi --system-reserved memory=5%", "--system-reserved: memory: 5%: quantities must match"),
        (
            "--memory 4Gi --model cce-v2 --max-pods 9 --kube-reserved memory=1Gi",
            "--kube-reserved: cce-v2 works this out itself; leave it out, or take --model kubelet",
        ),
        (
            "--memory 1Gi --data-disk 1Gi --kube-reserved ephemeral-storage=1Gi",
            "--data-disk: 1Gi (kubeReserved ephemeral-storage) + 107374184 (nodefs.available) is more than",
        ),
        ("--memory 4Gi --eviction-hard memory.available<1Gb", "--eviction-hard: memory.available: 1Gb"),
        ("--memory 4Gi --eviction-hard memory.reclaimable<1Gi", "write memory.available<QUANTITY"),
        ("--memory 4Gi --kubelet-config /no/such/file", "/no/such/file: cannot be read"),
    ],
)
def test_bad_input_is_one_line(arguments: str, complaint: str) -> None:
    one_line(called("reserve", *arguments.split()), 2, complaint)
