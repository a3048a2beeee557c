"""OOM kills from the kernel's log: its lines, and each kill put together from them, with what is not known."""

import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.kmsg import Kmsg, LoggedKill, OomLog
from tests import live

MIB = live.MIB


MEMCG = b"6,54374,133,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
NONE = b"6,1,99,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
#: No process has this number.
PID = 5_000_000
ROOT = Path("/sys/fs/cgroup")


def of_two(report: bytes, name: bytes = b"x", invoked: bytes = b"") -> LoggedKill | None:
    """The kill by a report, which may be lacking, and the line that is never left out."""
    line = b"3,1,2,-;Memory cgroup out of memory: Killed process %d (%b) total-vm:276796kB, anon-rss:1kB\n" % (
        PID,
        name,
    )
    return fed(Hierarchy(2, ROOT), invoked, report).feed(line)


@pytest.mark.parametrize(
    ("name", "order", "by_hand"),
    [
        (b"kworker/0:1", b"-1", True),
        (b"python", b"0", False),
        (b"order=-1", b"3", False),
        (b"a, order=-1,", b"0", False),
    ],
)
def test_which_kills_were_asked_for_by_hand(name: bytes, order: bytes, by_hand: bool) -> None:
    line = b" invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL|__GFP_ZERO), order=" + order + b", oom_score_adj=-999\n"
    found = of_two(b"", invoked=b"4,1,7,-;" + name + line)
    assert (found.event.invoker_comm, found.by_hand) == (name.decode(), by_hand)
    found = of_two(b"", invoked=b"12,1,7,-;" + name + line)  # a program wrote it
    assert (found.event.invoker_comm, found.by_hand) == ("", False)


@pytest.mark.parametrize(
    "name", [b"a,pid=5,b", b"x,pid=1,uid=0", b"pid=1,uid=0", b",task=x,pid=1,", b") total-vm:1kB", b"a) b (c"]
)
def test_a_task_that_is_called_like_the_rest_of_the_line(name: bytes) -> None:
    assert len(name) <= 15
    report = b"oom_memcg=/a,task_memcg=/a/b,task=%b,pid=%d,uid=1000\n SUBSYSTEM=x\n" % (name, PID)
    found = of_two(MEMCG + report, name)
    assert (found.victim_path, found.event.victim_pid, found.event.victim_comm) == (ROOT / "a/b", PID, name.decode())


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"garbage",
        b"3,2,x,-;Out of memory: Killed process 12 (x)",
        b"3,2,100,-;something else",
        # Written by a program (facility 1, "user"), not by the kernel: some tests of others do that.
        b"11,2,100,-;Memory cgroup out of memory: Killed process 12 (x) total-vm:1kB",
        b"\xff\xfe;\xff",
    ],
)
def test_anything_else_is_not_believed(tree: Hierarchy, record: bytes) -> None:
    assert OomLog(tree).feed(record) is None


def test_a_log_that_cannot_be_read_has_a_reason(tmp_path: Path) -> None:
    with pytest.raises(MonitorError, match="cannot be read"):
        Kmsg(Hierarchy(2, ROOT), str(tmp_path / "missing"))


def test_the_logs_escapes_are_the_bytes_that_they_stand_for() -> None:
    """`a<ESC>` is not the cgroup whose name has a backslash, an x, a 1 and a b; the log has that as `a\\x5cx1b`."""
    paths = []
    for logged in (rb"\x1b", rb"\x5cx1b", rb"\xff", rb"\xc3\xbf", rb"\x5cx2d"):
        found = of_two(MEMCG + b"oom_memcg=/u/a%b,task_memcg=/u/a%b,task=a,pid=%d,uid=0\n" % (logged, logged, PID))
        paths.append(os.fsencode(found.victim_path.relative_to(ROOT)))
    assert paths == [b"u/a\x1b", rb"u/a\x1b", b"u/a\xff", "u/a\xff".encode(), rb"u/a\x2d"]
    found = of_two(b"", rb"a\x5cb\xc3\xbc\x1b")
    assert found.event.victim_comm == "a\\bü\\x1b", "as /proc/PID/comm and the programs have it"


@pytest.mark.kernel
def test_a_kill_is_of_the_cgroup_and_not_of_its_twin() -> None:
    """Put together from what the kernel writes of it; not one from before."""

    def kill(puppet: live.Puppet) -> int:
        puppet.tell("anon(64)")
        assert puppet.answer() == ""
        puppet.wait()
        return puppet.pid

    def killed() -> LoggedKill | None:
        """Another kill; None where the kernel has written 10 reports in 5 s already, also of kills elsewhere."""
        with closing(Kmsg(cgroupfs.detect())) as log, live.Puppet(path) as puppet:
            new = kill(puppet)
            kills = list(filter(None, log.kills()))
        assert not any(one.event.victim_pid in old for one in kills)
        old.append(new)
        found = next((one for one in kills if one.event.victim_pid == new), None)
        return found if found and found.event.oom_cgroup else None

    with live.cgroup("kmsg\x1b", 32 * MIB) as path, live.cgroup("kmsg\\x1b"):
        with live.Puppet(path) as puppet:
            old = [kill(puppet)]
        found = live.until(killed, "a kill with a report")
        assert found.victim_path == path
        assert found.event.victim_cgroup == found.event.oom_cgroup == cgroupfs.cgroup_id(path)
        assert found.event.oom_limit == 32 * MIB
        assert found.event.anon_rss > 10 * MIB


def test_a_cgroup_that_is_called_like_the_rest_of_the_line() -> None:
    """Of two places none is believed: the kill would be given to a pod that has nothing to do with it."""
    path = b"/pods/evil/x,task_memcg=/pods/other/c,task=y"
    found = of_two(MEMCG + b"oom_memcg=%b,task_memcg=%b,task=z,pid=%d,uid=0\n" % (path, path, PID))
    assert (found.victim_path, found.event.missing[:3]) == (None, ("reclaim", "victim_cgroup", "oom"))


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


def fed(tree: Hierarchy, *lines: bytes) -> OomLog:
    log = OomLog(tree)
    for line in lines:
        log.feed(line)
    return log


def test_every_fact_of_a_report(tree: Hierarchy) -> None:
    began = time.monotonic_ns()
    log = OomLog(tree)
    assert [log.feed(line) for line in LINES] == [None] * len(LINES)
    found = log.feed(KILLED)
    expected = {
        "kind": "mark",
        "victim_pid": 6601,
        "victim_comm": "python3",
        "victim_cgroup": cgroupfs.cgroup_id(tree.root / "a" / "b"),
        "oom_cgroup": cgroupfs.cgroup_id(tree.root / "a"),
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
    }
    assert {key: getattr(found.event, key) for key in expected} == expected
    assert (found.event.missing, found.victim_path) == (("reclaim",), tree.root / "a" / "b")
    assert began <= found.event.ts_ns <= time.monotonic_ns(), "read as soon as written"


def test_what_others_write_into_the_log_is_no_part_of_a_report(tree: Hierarchy) -> None:
    """A process that may open /dev/kmsg can forge the invoker, the limit, the end of a report, the rest of a group."""
    log = OomLog(tree)
    forged = (
        b"12,1,760410198,-;mallory invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0\n",
        b"12,1,760410198,-;CPU: 1 UID: 0 PID: 1 Comm: init Not tainted\n",
        b"14,1,760410198,-;memory: usage 1kB, limit 1kB, failcnt 19\n",
        b"12,1,760410198,-;Out of memory and no killable processes...\n",
        b"12,1,760410198,-;Tasks in /a are going to be killed due to memory.oom.group set\n",
    )
    for line in LINES:
        assert [log.feed(one) for one in (line, *forged)] == [None] * 6
    found = log.feed(KILLED)
    assert (found.event.invoker_comm, found.event.invoker_pid, found.event.oom_limit) == ("python3", 6600, 16384 * KIB)
    assert list(found.event.missing) == ["reclaim"]


def lacks_report(found: LoggedKill) -> bool:
    """All that is not on the line about the victim itself is missing, by its name."""
    event = found.event
    facts = (event.victim_cgroup, event.oom_cgroup, event.oom_usage, event.oom_limit, event.invoker_pid)
    missing = {"victim_cgroup", "oom", "invoker"} <= set(found.event.missing)
    return missing and (*facts, event.invoker_comm) == (0, 0, 0, 0, 0, "")


def test_facts_of_one_kill_are_not_given_to_the_next(tree: Hierarchy) -> None:
    """At most 10 reports in 5 s are written, but every kill; some reports are cut off."""
    log = fed(tree, *LINES, KILLED)
    assert lacks_report(log.feed(later(3999998)))
    whole = log.feed(later(3999999).replace(b"Memory cgroup out of memory", b"Out of memory"))
    assert (whole.event.oom_cgroup, whole.event.oom_usage, whole.event.invoker_pid) == (0, 0, 0)
    assert log.feed(LINES[0].replace(b"python3", b"other")) is None
    found = log.feed(KILLED.replace(b"6601", b"6602"))
    assert (found.event.invoker_comm, found.event.invoker_pid, found.event.victim_cgroup) == ("other", 0, 0)
    assert "oom" in list(found.event.missing)


def later(pid: int, ms: int = 1) -> bytes:
    """The line about another process, some time later."""
    moved = KILLED.replace(b"760410209", b"%d" % (760410209 + ms * 1000))
    return moved.replace(b"process 6601", b"process %d" % pid)


def test_a_group_shares_the_report_and_its_first_victim_is_named_once(tree: Hierarchy) -> None:
    log = fed(tree, *LINES, KILLED)
    group = b"6,421,760410300,-;Tasks in /a are going to be killed due to memory.oom.group set\n"
    assert log.feed(group) is None
    assert log.feed(later(6601)) is None, "it has not gone yet, and is named again with the others"
    member = log.feed(later(3999997))
    assert (member.event.oom_usage, member.event.invoker_pid) == (16384 * KIB, 6600)
    assert member.event.oom_cgroup == cgroupfs.cgroup_id(tree.root / "a")
    assert member.event.victim_cgroup == 0, "gone: where it was is not known"
    other = log.feed(later(3999996, ms=1500))
    assert "oom" in list(other.event.missing), "long after"
    again = log.feed(later(6601, ms=60_000))
    assert again is not None, "another process of that number"


@pytest.mark.parametrize(("lost", "ms"), [(True, 2), (False, 1100)])
def test_a_victim_is_named_once_whatever_is_lost_or_late_in_between(tree: Hierarchy, lost: bool, ms: int) -> None:
    log = fed(tree, *LINES, KILLED)
    if lost:
        log.forget()
    assert log.feed(later(6601, ms=ms)) is None


@pytest.mark.parametrize(
    "end",
    [
        b"6,421,760410300,-;OOM victim 6601 (python3) is already exiting. Skip killing the task\n",
        b"6,421,760410300,-;Out of memory and no killable processes...\n",
        b"6,421,760410300,-;something else\n",  # the line about its victim was lost
    ],
)
def test_a_report_that_came_to_nothing_is_nobody_elses(tree: Hierarchy, end: bytes) -> None:
    assert lacks_report(fed(tree, *LINES, end).feed(later(3999998, ms=3000)))


def test_a_kill_of_the_whole_machine_is_at_no_limit(tree: Hierarchy) -> None:
    log = fed(tree, NONE + b"task_memcg=/a/b,task=x,pid=6601,uid=0\n")
    found = log.feed(KILLED.replace(b"Memory cgroup out of memory", b"Out of memory"))
    assert found.event.oom_cgroup == 0
    assert "oom" not in list(found.event.missing)
