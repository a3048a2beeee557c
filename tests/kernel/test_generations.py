"""Page cache under the multi-gen LRU: divided as memory.stat does, to the page, also while the switch is turned."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.wire import CROSS, PAGE
from tests import live

pytestmark = pytest.mark.kernel
MIB = live.MIB
SWITCH = Path("/sys/kernel/mm/lru_gen/enabled")
ON, OFF = "7", "0"


@pytest.fixture
def turn() -> Iterator[Callable[[str], object]]:
    """Turn the machine's switch; it is put back."""
    if not SWITCH.exists():
        pytest.skip("this kernel has no multi-gen LRU (CONFIG_LRU_GEN)")
    before = SWITCH.read_text()
    try:
        yield SWITCH.write_text
    finally:
        SWITCH.write_text(before)


def reclaim(cgroup: Path, size: int) -> None:
    """Have the kernel take ``size`` bytes of page cache back. Less than asked for is EAGAIN, and just as good."""
    if not (cgroup / "memory.reclaim").exists():
        pytest.skip("memory.reclaim needs cgroup v2 (Linux 5.19 and later)")
    try:
        (cgroup / "memory.reclaim").write_text(str(size))
    except BlockingIOError:
        pass


@pytest.fixture
def age(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Have the kernel begin a new generation of a cgroup, as reclaim does when it has used up the oldest: what was
    looked at since the last one becomes part of it. (Linux 6.1 never makes page cache active by memory.reclaim alone.)
    """
    debugfs = tmp_path / "debug"
    debugfs.mkdir()
    subprocess.run(["mount", "-t", "debugfs", "none", debugfs], check=True)

    def command(cgroup: Path) -> None:
        name = "/" + str(cgroup.relative_to(cgroupfs.detect().root))
        text = (debugfs / "lru_gen").read_text()
        # "memcg ID PATH", then for each "node N" a line "GENERATION AGE ANON FILE" for the oldest to the youngest.
        found = re.search(rf"memcg +(\d+) {re.escape(name)}\n((?: +.*\n)*)", text)
        assert found, text
        for node, generations in re.findall(r" node +(\d+)\n((?: +\d+ .*\n)+)", found[2]):
            youngest = generations.splitlines()[-1].split()[0]
            (debugfs / "lru_gen").write_text(f"+ {found[1]} {node} {youngest} 1 1")

    try:
        yield command
    finally:
        subprocess.run(["umount", debugfs], check=True)


Activate = Callable[[live.Watching, live.Puppet, Path, int], None]


@pytest.fixture
def activate(age: Callable[[Path], None]) -> Activate:
    """Have the kernel make ``wanted`` bytes of a pod's mapped file active: it is looked at, then reclaim takes a little
    (that does it in Linux 7.2, at once, and in 6.12 after some 20 rounds), or the pod is aged (6.1 and 6.12).
    """

    def until_active(watch: live.Watching, puppet: live.Puppet, pod: Path, wanted: int) -> None:
        for way in [lambda: reclaim(pod, 2 * MIB)] * 8 + [lambda: age(pod)] * 8:
            puppet.do("look()")
            way()
            if watch.partial:
                watch.sweeper.run()
            reading = watch.table.read(cgroupfs.cgroup_id(pod))
            if reading.active_file >= wanted:
                return
        pytest.fail(f"neither reclaim nor ageing made {wanted} bytes active")

    return until_active


@pytest.mark.parametrize("how", [ON, OFF])
def test_page_cache_is_that_of_memory_stat(
    files: Path, turn: Callable[[str], object], activate: Activate, how: str
) -> None:
    """One story: written, read, touched, reclaimed (which ages it), dropped, and left behind by a removed cgroup."""
    turn(how)
    with live.Watching() as watch, live.cgroup("generations", 256 * MIB) as node:
        pod = cgroupfs.make(node / "pod")
        for path in (node, pod):
            watch.add(path)
        with live.Puppet(pod) as puppet:
            watch.agree(node, pod)
            puppet.do(f"write('{files}/a', 24)")
            at = watch.agree(node, pod)
            assert at[0].inactive_file >= 20 * MIB
            assert at[0].inactive_file == at[1].inactive_file
            puppet.do(f"read('{files}/a'); read('{files}/a')")
            watch.agree(node, pod)
            reclaim(node, 4 * MIB)
            watch.agree(node, pod)
            puppet.do(f"drop('{files}/a')")
            watch.agree(node, pod)
            puppet.do(f"write('{files}/b', 16); attend('{files}/b')")
            watch.agree(node, pod)
            if how == ON:
                activate(watch, puppet, pod, 4 * MIB)
            else:
                # The last 31 folios that a CPU activates (PAGEVEC_SIZE) are on no list yet, and each may be large.
                live.until(
                    lambda: puppet.do(f"read('{files}/b')") or watch.agree(node, pod)[0].active_file >= 4 * MIB,
                    "page cache to turn active",
                )
            watch.agree(node, pod)  # the kernel may age it meanwhile: it was active
        watch.table.remove(cgroupfs.cgroup_id(pod))
        pod.rmdir()
        at = watch.agree(node)
        assert at[0].inactive_file + at[0].active_file >= 4 * MIB


def test_the_switch_may_be_turned_while_there_is_page_cache(files: Path, turn: Callable[[str], object]) -> None:
    with live.Watching() as watch, live.cgroup("turned") as pod, live.Puppet(pod) as puppet:
        watch.add(pod)
        watch.sweeper.run()
        for n, how in enumerate((ON, OFF, ON, OFF)):
            turn(how)
            puppet.do(f"write('{files}/{n}', 8)")
            (at,) = watch.agree(pod)
            assert at.inactive_file + at.active_file >= (8 * n + 7) * MIB
        for n in range(4):
            puppet.do(f"drop('{files}/{n}')")
            (at,) = watch.agree(pod)
        assert at.inactive_file + at.active_file < 2 * MIB


def test_pages_that_turn_active_by_ageing_cross_without_a_charge(
    files: Path, turn: Callable[[str], object], activate: Activate
) -> None:
    turn(ON)
    with live.Watching() as watch, live.cgroup("younger") as pod, live.Puppet(pod) as puppet:
        if watch.partial:
            pytest.skip("this kernel's hook sees charges only: a sweep sees it, see test_charging.py")
        index = watch.add(pod)
        puppet.do(f"write('{files}/a', 48); attend('{files}/a')")
        watch.sweeper.run()
        before = watch.table.reading(index)
        watch.table.set_ceilings(index, [(before.working_set + 4 * MIB) // PAGE])
        watch.consume()
        watch.events.clear()
        activate(watch, puppet, pod, before.active_file + 8 * MIB)
        watch.consume()
        assert watch.table.reading(index).usage <= before.usage + MIB, "this was to charge nothing"
    # Ageing takes some of it back below in between, and a page on its way is for a moment in neither list.
    assert {(e.kind, e.domain) for e in watch.events} == {(CROSS, index)}
    assert all(e.working_set >= before.working_set + 3 * MIB for e in watch.events)
