"""OOM kills put together from the kernel's log: every fact it has, and the names of those it has not."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import live

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.kmsg import Kmsg
from monitor.kernel.oomlog import OomLog, kmsg_records

MIB = live.MIB
KIB = 1024
#: As Linux 6.18 wrote it.
LINES = (
    b"4,343,760408201,-;python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n",
    b"4,344,760408233,-;CPU: 1 UID: 0 PID: 6600 Comm: python3 Not tainted 6.18.44 #1 PREEMPT(none) \n",
    b"6,370,760410078,-;memory: usage 16384kB, limit 16384kB, failcnt 19\n",
    b"6,371,760410092,-;memory+swap: usage 16384kB, limit 9007199254740988kB, failcnt 0\n",
    b"6,419,760410197,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    b"oom_memcg=/a,task_memcg=/a/b,task=python3,pid=6601,uid=0\n",
)
KILLED = (
    b"3,420,760410209,-;Memory cgroup out of memory: Killed process 6601 (python3) total-vm:82120kB, "
    b"anon-rss:23160kB, file-rss:3700kB, shmem-rss:4kB, UID:7 pgtables:108kB oom_score_adj:-5\n"
)


@pytest.fixture
def tree(tmp_path: Path) -> Hierarchy:
    (tmp_path / "a" / "b").mkdir(parents=True)
    return Hierarchy(1, tmp_path)


def test_every_fact_of_a_report(tree: Hierarchy) -> None:
    log = OomLog(tree, {cgroupfs.cgroup_id(tree.root / "a" / "b"): 3}.get)
    assert [log.feed(line) for line in LINES] == [None] * len(LINES)
    found = log.feed(KILLED)
    assert found is not None
    expected = {
        "kind": "mark",
        "victim_pid": 6601,
        "victim_comm": "python3",
        "victim_cgroup": cgroupfs.cgroup_id(tree.root / "a" / "b"),
        "oom_cgroup": cgroupfs.cgroup_id(tree.root / "a"),
        "domain": 3,
        "invoker_pid": 6600,
        "invoker_comm": "python3",
        "oom_usage": 16384 * KIB,
        "oom_limit": 16384 * KIB,
        "anon_rss": 23160 * KIB,
        "file_rss": 3700 * KIB,
        "shmem_rss": 4 * KIB,
        "total_vm": 82120 * KIB,
        "pgtables": 108 * KIB,
        "uid": 7,
        "oom_score_adj": -5,
        "oom_inactive_file": None,
        "missing": ["reclaim"],
        "victim_path": tree.root / "a" / "b",
    }
    assert {key: found[key] for key in expected} == expected
    assert found["ts_ns"] == pytest.approx(time.monotonic_ns(), abs=5_000_000_000)


def test_what_a_rate_limited_report_leaves_out_is_named(tree: Hierarchy) -> None:
    found = OomLog(tree, lambda _: None).feed(KILLED)
    assert found is not None
    assert set(found["missing"]) >= {"victim_cgroup", "oom", "invoker"}
    assert (found["victim_cgroup"], found["oom_cgroup"], found["invoker_pid"], found["invoker_comm"]) == (0, 0, 0, "")
    assert found["victim_pid"] == 6601


def test_facts_of_one_kill_are_not_told_of_the_next(tree: Hierarchy) -> None:
    log = OomLog(tree, lambda _: None)
    for line in LINES:
        log.feed(line)
    assert log.feed(KILLED) is not None
    other = log.feed(LINES[0].replace(b"python3", b"other"))
    assert other is None
    found = log.feed(KILLED.replace(b"6601", b"6602"))
    assert found is not None
    assert (found["invoker_comm"], found["invoker_pid"], found["victim_cgroup"]) == ("other", 0, 0)
    assert "oom" in found["missing"]


def test_a_kill_of_the_whole_machine_is_at_no_limit(tree: Hierarchy) -> None:
    log = OomLog(tree, lambda _: None)
    log.feed(
        b"6,1,99,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
        b"task_memcg=/a/b,task=x,pid=6601,uid=0\n"
    )
    found = log.feed(KILLED.replace(b"Memory cgroup out of memory", b"Out of memory"))
    assert found is not None
    assert found["oom_cgroup"] == 0
    assert "oom" not in found["missing"]


@pytest.mark.kernel
def test_a_real_kill() -> None:
    kmsg = Kmsg()
    with live.cgroup("oomlog", 24 * MIB) as path, live.Puppet(path) as puppet:
        log = OomLog(cgroupfs.detect(), lambda _: None)
        puppet.tell("anon(64)")
        assert puppet.answer() == ""
        kills = []

        def look() -> bool:
            records, overrun = kmsg_records(kmsg.fileno())
            assert not overrun
            kills.extend(found for record in records if (found := log.feed(record)) is not None)
            return any(found["victim_pid"] == puppet.pid for found in kills)

        live.until(look, "the log's lines about the kill")
        (found,) = (one for one in kills if one["victim_pid"] == puppet.pid)
        assert found["victim_cgroup"] == found["oom_cgroup"] == cgroupfs.cgroup_id(path)
        assert found["oom_limit"] == 24 * MIB
        assert found["anon_rss"] > 10 * MIB
    kmsg.close()
