"""The kernel's log as a second witness of OOM kills."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.kmsg import Constraint, Killed, Kmsg, parse
from monitor.sources.oomlog import LoggedKill, OomLog, kmsg_records
from tests import live

MIB = live.MIB


MEMCG = b"6,54374,133,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
NONE = b"6,1,99,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"


def test_the_lines_of_a_kill_in_a_memcg() -> None:
    line = b"oom_memcg=/kubepods,task_memcg=/kubepods/podx/c,0,task=a,pid=5,b,pid=7209,uid=0\n SUBSYSTEM=x\n"
    found = parse(MEMCG + line)
    assert isinstance(found, Constraint)
    assert (found.constraint, found.oom_memcg, found.pid) == ("CONSTRAINT_MEMCG", "/kubepods", 7209)


def test_the_lines_of_a_kill_of_the_machine() -> None:
    found = parse(NONE + b"task_memcg=/user.slice,task=x,pid=12,uid=0\n")
    assert found == Constraint(99000, "CONSTRAINT_NONE", None, "/user.slice", 12, found.text if found else "")
    killed = parse(b"3,2,100,-;Out of memory: Killed process 12 (x) total-vm:1kB, anon-rss:1kB\n")
    assert isinstance(killed, Killed)
    assert (killed.ts_ns, killed.in_memcg) == (100_000, False)


@pytest.mark.parametrize("name", [b"x,pid=1,uid=0", b"pid=1,uid=0", b",task=x,pid=1,", b") total-vm:1kB", b"a) b (c"])
def test_a_task_that_is_called_like_the_rest_of_the_line(name: bytes) -> None:
    assert len(name) <= 15
    found = parse(MEMCG + b"oom_memcg=/a,task_memcg=/a/b,task=" + name + b",pid=7209,uid=1000\n")
    assert isinstance(found, Constraint)
    assert (found.oom_memcg, found.pid) == ("/a", 7209)
    line = b"3,1,2,-;Memory cgroup out of memory: Killed process 7209 (" + name + b") total-vm:276796kB, anon-rss:1kB\n"
    killed = parse(line)
    assert isinstance(killed, Killed)
    assert (killed.pid, killed.comm, killed.in_memcg) == (7209, name.decode(), True)


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
def test_anything_else_is_not_believed(record: bytes) -> None:
    assert parse(record) is None


def test_a_log_that_cannot_be_read_has_a_reason(tmp_path: Path) -> None:
    with pytest.raises(MonitorError, match="cannot be read"):
        Kmsg(str(tmp_path / "missing"))


def test_the_logs_escapes_are_the_bytes_that_they_stand_for() -> None:
    """`a<ESC>` is not the cgroup whose name has a backslash, an x, a 1 and a b; the log has that as `a\\x5cx1b`."""
    paths = {}
    for logged in (rb"\x1b", rb"\x5cx1b", rb"\xff", rb"\xc3\xbf", rb"\x5cx2d"):
        found = parse(MEMCG + b"oom_memcg=/u/a%b,task_memcg=/u/a%b,task=a,pid=7,uid=0\n" % (logged, logged))
        assert isinstance(found, Constraint)
        assert found.oom_memcg == found.task_memcg
        paths[logged] = os.fsencode(found.task_memcg)
    assert list(paths.values()) == [b"/u/a\x1b", rb"/u/a\x1b", b"/u/a\xff", "/u/a\xff".encode(), rb"/u/a\x2d"]
    killed = parse(rb"3,2,100,-;Out of memory: Killed process 12 (a\x5cb\xc3\xbc\x1b) total-vm:1kB")
    assert isinstance(killed, Killed)
    assert killed.comm == "a\\bü\\x1b", "as /proc/PID/comm and the programs have it"


@pytest.mark.kernel
def test_a_kill_is_of_the_cgroup_and_not_of_its_twin() -> None:
    """As a line of the log, and put together with what else the kernel writes of it; not one from before."""

    def kill(puppet: live.Puppet) -> int:
        puppet.tell("anon(64)")
        assert puppet.answer() == ""
        puppet.wait()
        return puppet.pid

    with live.cgroup("kmsg\x1b", 32 * MIB) as path, live.cgroup("kmsg\\x1b"), closing(Kmsg()) as whole:
        with live.Puppet(path) as puppet:
            old = kill(puppet)
        with closing(Kmsg()) as log, live.Puppet(path) as puppet:
            new, lines, kills = kill(puppet), [], []
            assembled = OomLog(cgroupfs.detect(), lambda _: None)

            def logged() -> list[Constraint]:
                lines.extend(log.read())
                return [line for line in lines if isinstance(line, Constraint) and line.pid == new]

            def put_together() -> list[LoggedKill]:
                records, gap = kmsg_records(whole.fileno())
                assert gap is None
                kills.extend(one for record in records if (one := assembled.feed(record)) is not None)
                return [one for one in kills if one.event.victim_pid == new]

            (report,) = live.until(logged, "the report of the kill")
            (found,) = live.until(put_together, "the log's lines about the kill")
        relative = f"/{path.relative_to(cgroupfs.detect().root)}"
        assert (report.oom_memcg, report.task_memcg) == (relative, relative)
        assert {line.pid for line in lines if isinstance(line, Killed | Constraint)} & {old, new} == {new}
        assert found.event.victim_cgroup == found.event.oom_cgroup == cgroupfs.cgroup_id(path)
        assert found.event.oom_limit == 32 * MIB
        assert found.event.anon_rss > 10 * MIB


def test_a_cgroup_that_is_called_like_the_rest_of_the_line() -> None:
    """Of two places none is believed: the kill would be given to a pod that has nothing to do with it."""
    path = b"/pods/evil/x,task_memcg=/pods/other/c,task=y"
    assert parse(MEMCG + b"oom_memcg=" + path + b",task_memcg=" + path + b",task=z,pid=7209,uid=0\n") is None
