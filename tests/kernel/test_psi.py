"""Where the pressure files of a memory cgroup are, and what they and memory.stat say."""

from pathlib import Path

import pytest

from monitor.kernel import pressure
from monitor.kernel.cgroupfs import Hierarchy
from tests.limited import write

MOUNTS = """cgroup {root}/memory cgroup rw,memory 0 0
cgroup2 {root}/unified cgroup2 rw 0 0
"""


def some(total: int) -> str:
    return f"some avg10=1.50 avg60=0.00 avg300=0.00 total={total}\nfull avg10=12.25 avg60=0.00 avg300=0.00 total=7"


def test_on_v2_the_files_are_the_cgroups_own(tmp_path: Path) -> None:
    hierarchy = Hierarchy(2, tmp_path)
    pod = write(tmp_path / "pod", {"memory.pressure": some(53519), "io.pressure": some(4)})
    assert pressure.unified(hierarchy) == tmp_path
    assert pressure.directory_of(hierarchy, tmp_path, pod) == pod
    assert (pressure.waited(pod), pressure.full(pod)) == ((53519, 4), 0.1225)


def test_on_v1_they_are_in_the_hierarchy_beside_it_if_the_pods_processes_are(tmp_path: Path) -> None:
    hierarchy = Hierarchy(1, tmp_path / "memory")
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS.format(root=tmp_path))
    v2 = pressure.unified(hierarchy, mounts)
    assert v2 == tmp_path / "unified"
    pod = write(tmp_path / "memory/kubepods/pod", {})
    assert pressure.directory_of(hierarchy, v2, pod) is None, "no such cgroup there"
    beside = write(tmp_path / "unified/kubepods/pod", {"cgroup.events": "populated 0\nfrozen 0"})
    assert pressure.directory_of(hierarchy, v2, pod) is None, "none of its processes"
    write(beside, {"cgroup.events": "populated 1\nfrozen 0"})
    assert pressure.directory_of(hierarchy, v2, pod) == beside
    mounts.write_text(MOUNTS.format(root=tmp_path).splitlines()[0])
    assert pressure.unified(hierarchy, mounts) is None
    assert pressure.unified(hierarchy, tmp_path / "none") is None
    assert pressure.directory_of(hierarchy, None, pod) is None


@pytest.mark.parametrize(
    "text", ["", "some avg10=0.00", "some avg10=0.00 avg60=0.00 avg300=0.00 total=\n", "full total=x\n"]
)
def test_what_the_kernel_does_not_say_is_not_known(tmp_path: Path, text: str) -> None:
    assert pressure.waited(None) is pressure.full(None) is None
    assert pressure.waited(tmp_path) is pressure.full(tmp_path) is None
    pod = write(tmp_path / "pod", {"io.pressure": some(4)})
    (pod / "memory.pressure").write_text(text)
    assert pressure.waited(pod) is pressure.full(pod) is None


def test_pages_by_version_and_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = "workingset_refault_anon 3\nworkingset_refault_file 5\npgsteal 40\npgpgout 7"
    v1 = "\n".join(f"total_{line}" for line in stat.splitlines()) + "\nworkingset_refault_file 1"
    assert pressure.pages(Hierarchy(2, tmp_path), write(tmp_path / "a", {"memory.stat": stat})) == (8, 40, 3)
    assert pressure.pages(Hierarchy(1, tmp_path), write(tmp_path / "b", {"memory.stat": v1})) == (8, 7, 3)
    assert pressure.pages(Hierarchy(2, tmp_path), tmp_path / "gone") is None
    vmstat = tmp_path / "vmstat"
    monkeypatch.setattr(pressure, "VMSTAT", vmstat)
    assert pressure.pages(Hierarchy(2, tmp_path), tmp_path) is None
    assert pressure.passed() is None
    vmstat.write_text(stat + "\npgsteal_anon 2\npgsteal_file 30\npgsteal_kswapd 32\n")
    assert pressure.pages(Hierarchy(2, tmp_path), tmp_path) == (8, 32, 3)
    vmstat.write_text(vmstat.read_text() + "nr_inactive_file 400\nnr_active_file 600\npglazyfreed 9\n")
    assert pressure.passed() == 30 - 5 + 400 + 600 - 9
    vmstat.write_text("nr_inactive_file 400\nnr_active_file 600\n")
    assert pressure.passed() is None
