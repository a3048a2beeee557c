"""What the OOM killer chooses among, held against what the kernel itself reports of the same processes."""

import os
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs, meminfo
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.oom_candidates import PAGE, candidates, total_pages
from monitor.kernel.procfs import Process, lives
from monitor.race.badness import badness
from tests.limited import write
from tests.live import MIB, Puppet, cgroup
from tests.waiting import until

GIB = 1 << 30


def oom_score(points: int, total: int) -> int:
    """What /proc/PID/oom_score shows (fs/proc/base.c, proc_oom_score): C divides toward zero."""
    scaled = abs(points) * 1000 // total * (1 if points >= 0 else -1)
    return (1000 + scaled) * 2 // 3


@pytest.mark.kernel
@pytest.mark.parametrize("adj", [0, 300, 1000])
def test_the_kernel_reckons_alike(adj: int) -> None:
    hierarchy = cgroupfs.detect()
    total = total_pages(hierarchy, hierarchy.root)
    with cgroup("candidates") as path, Puppet(path) as puppet:
        puppet.do(f"open('/proc/self/oom_score_adj', 'w').write('{adj}')")
        puppet.do("anon(128)")
        (process,) = candidates(hierarchy, path, lambda _: None)
        points = badness(process, total)
        # A page or two may come or go between the two looks: at most one step of the kernel's coarse scale.
        assert abs(oom_score(points, total) - int(Path(f"/proc/{puppet.pid}/oom_score").read_text())) <= 1
        assert (process.pid, process.oom_score_adj, process.swap) == (puppet.pid, adj, 0)
        assert process.rss >= 128 * MIB
        # Each 4 KiB page needs an entry of 8 bytes.
        assert 128 * MIB // PAGE * 8 <= process.pgtables < 2 * MIB
        assert process.cgroup == str(path)


@pytest.mark.kernel
def test_a_process_whose_main_thread_has_exited_counts_by_another() -> None:
    """/proc/PID shows no memory and no program of it; the kernel scores any thread that has the memory."""
    hierarchy = cgroupfs.detect()
    with cgroup("candidates") as path, Puppet(path) as large, Puppet(path) as small:
        large.do("anon(64)")
        small.do("anon(8)")
        program = os.readlink(f"/proc/{large.pid}/exe")
        large.do("import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start()")
        large.tell("ctypes.CDLL(None).pthread_exit(None)")
        until(lambda: "VmRSS" not in Path(f"/proc/{large.pid}/status").read_text(), "the main thread lives")
        first, second = sorted(candidates(hierarchy, path, lambda _: None), key=lambda p: p.rss, reverse=True)
        assert (first.pid, second.pid) == (large.pid, small.pid)
        assert 64 * MIB <= first.rss < 128 * MIB
        assert first.pgtables >= 64 * MIB // PAGE * 8
        total = total_pages(hierarchy, hierarchy.root)
        points = badness(first, total)
        assert abs(oom_score(points, total) - int(Path(f"/proc/{large.pid}/oom_score").read_text())) <= 1
        with Process(large.pid) as process:
            assert process.exe() == program
        assert lives(large.pid)
        large.process.kill()
        os.waitid(os.P_PID, large.pid, os.WEXITED | os.WNOWAIT)
        assert not lives(large.pid)
        with Process(large.pid) as process:
            assert process.exe() is None


@pytest.mark.kernel
def test_processes_belong_to_whom_their_cgroup_does() -> None:
    hierarchy = cgroupfs.detect()
    with cgroup("candidates") as path:
        # Each in a leaf: cgroup v2 has no processes in a cgroup that hands its controllers down.
        inner, service = cgroupfs.make(path / "pod" / "c0"), cgroupfs.make(path / "service")
        with Puppet(service) as outside, Puppet(inner) as inside:
            owner = ("u", "ns/pod")
            found = candidates(hierarchy, path, lambda p: owner if p.is_relative_to(path / "pod") else None)
            assert {(p.pid, p.pod, p.pod_name) for p in found} == {
                (outside.pid, None, None),
                (inside.pid, "u", "ns/pod"),
            }
            mine = next(p for p in found if p.pid == inside.pid)
            assert mine.cgroup == str(inner)
            inside.process.kill()
            os.waitid(os.P_PID, inside.pid, os.WEXITED | os.WNOWAIT)
            # A zombie has no memory left.
            assert [p.pid for p in candidates(hierarchy, path, lambda _: None)] == [outside.pid]


@pytest.mark.parametrize(
    ("version", "files", "gibibytes"),
    [
        (2, {"memory.max": 4 * GIB, "memory.swap.max": GIB}, 5),
        (2, {"memory.max": 4 * GIB, "memory.swap.max": "max"}, 12),
        (2, {"memory.max": 4 * GIB, "memory.swap.max": 0}, 4),
        (2, {"memory.max": "max"}, 24),
        (1, {"memory.limit_in_bytes": 4 * GIB, "memory.swappiness": 60}, 12),
        (1, {"memory.limit_in_bytes": 4 * GIB, "memory.swappiness": 0}, 4),
        (1, {"memory.limit_in_bytes": 4 * GIB, "memory.memsw.limit_in_bytes": 6 * GIB, "memory.swappiness": 60}, 6),
    ],
)
def test_swap_counts_where_it_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, files: dict[str, int | str], gibibytes: int
) -> None:
    """This machine has no swap: one of 16 GiB with 8 GiB of it, described by files."""
    node = write(tmp_path / "node", files)
    monkeypatch.setattr(meminfo, "read", lambda: {"MemTotal": 16 * GIB, "SwapTotal": 8 * GIB})
    assert total_pages(Hierarchy(version, tmp_path), node) == gibibytes * GIB // PAGE
