"""The kernel's log as a second witness of OOM kills."""

import os
from pathlib import Path

import pytest

from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from monitor.kernel.kmsg import Constraint, Killed, Kmsg, parse
from tests import live

MIB = live.MIB


def test_the_lines_of_a_kill_in_a_memcg() -> None:
    line = (
        b"6,54374,13321083252,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
        b"oom_memcg=/kubepods,task_memcg=/kubepods/podx/c,0,task=a,pid=5,b,pid=7209,uid=0\n SUBSYSTEM=x\n"
    )
    found = parse(line)
    assert isinstance(found, Constraint)
    assert (found.constraint, found.oom_memcg) == ("CONSTRAINT_MEMCG", "/kubepods")
    assert found.pid == 7209
    killed = parse(
        b"3,54375,13321083462,-;Memory cgroup out of memory: Killed process 7209 (a) b (c) total-vm:276796kB, "
        b"anon-rss:102016kB, file-rss:6312kB, shmem-rss:0kB, UID:0 pgtables:260kB oom_score_adj:0\n"
    )
    assert isinstance(killed, Killed)
    assert (killed.ts_ns, killed.pid, killed.in_memcg) == (13321083462000, 7209, True)


def test_the_lines_of_a_kill_of_the_machine() -> None:
    found = parse(
        b"6,1,99,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
        b"task_memcg=/user.slice,task=x,pid=12,uid=0\n"
    )
    assert found == Constraint(99000, "CONSTRAINT_NONE", None, "/user.slice", 12, found.text if found else "")
    killed = parse(b"3,2,100,-;Out of memory: Killed process 12 (x) total-vm:1kB, anon-rss:1kB\n")
    assert isinstance(killed, Killed)
    assert not killed.in_memcg


@pytest.mark.parametrize("name", [b"x,pid=1,uid=0", b"pid=1,uid=0", b",task=x,pid=1,", b") total-vm:1kB"])
def test_a_task_that_is_called_like_the_rest_of_the_line(name: bytes) -> None:
    assert len(name) <= 15
    line = b"6,54374,133,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    found = parse(line + b"oom_memcg=/a,task_memcg=/a/b,task=" + name + b",pid=7209,uid=1000\n")
    assert isinstance(found, Constraint)
    assert (found.oom_memcg, found.pid) == ("/a", 7209)
    killed = parse(
        b"3,1,2,-;Memory cgroup out of memory: Killed process 7209 (" + name + b") total-vm:276796kB, anon-rss:1kB\n"
    )
    assert isinstance(killed, Killed)
    assert (killed.pid, killed.comm) == (7209, name.decode())


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


@pytest.mark.kernel
def test_a_real_kill_is_found_and_older_ones_are_not() -> None:
    def one_kill() -> tuple[int, Path]:
        with live.cgroup("kmsg", 32 * MIB) as path, live.Puppet(path) as puppet:
            puppet.tell("anon(64)")
            assert puppet.answer() == ""
            puppet.wait()
            return puppet.pid, path

    old, _ = one_kill()
    log = Kmsg()
    try:
        new, path = one_kill()
        lines = []

        def logged() -> list[Killed | Constraint]:
            lines.extend(log.read())
            return [line for line in lines if isinstance(line, Killed) and line.pid == new]

        live.until(logged, "the line of the kill")
    finally:
        log.close()
    relative = f"/{path.relative_to(cgroupfs.detect().root)}"
    reasons = [line for line in lines if isinstance(line, Constraint) and line.pid == new]
    assert all((line.oom_memcg, line.task_memcg) == (relative, relative) for line in reasons)  # these are rate limited
    assert not [line for line in lines if line.pid == old]


def test_the_logs_escapes_are_the_bytes_that_they_stand_for() -> None:
    """`a<ESC>` is not the cgroup whose name has a backslash, an x, a 1 and a b; the log has that as `a\\x5cx1b`."""
    line = b"6,1,9,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/u/a"
    paths = {}
    for logged in (rb"\x1b", rb"\x5cx1b", rb"\xff", rb"\xc3\xbf", rb"\x5cx2d"):
        found = parse(line + logged + b",task_memcg=/u/a" + logged + b",task=a" + logged + b",pid=7,uid=0\n")
        assert isinstance(found, Constraint)
        assert found.oom_memcg == found.task_memcg
        paths[logged] = os.fsencode(found.task_memcg)
    assert list(paths.values()) == [b"/u/a\x1b", rb"/u/a\x1b", b"/u/a\xff", "/u/a\xff".encode(), rb"/u/a\x2d"]
    killed = parse(rb"3,2,100,-;Out of memory: Killed process 12 (a\x5cb\xc3\xbc\x1b) total-vm:1kB")
    assert isinstance(killed, Killed)
    assert killed.comm == "a\\bü\\x1b", "as /proc/PID/comm and the programs have it"


@pytest.mark.kernel
def test_a_kill_is_of_the_cgroup_and_not_of_its_twin() -> None:
    with live.cgroup("kmsg\x1b", 32 * MIB) as path, live.cgroup("kmsg\\x1b") as twin, live.Puppet(path) as puppet:
        log = Kmsg()
        try:
            puppet.tell("anon(64)")
            puppet.wait()
            lines = []

            def logged() -> list[Constraint]:
                lines.extend(log.read())
                return [line for line in lines if isinstance(line, Constraint) and line.pid == puppet.pid]

            logged_kill = live.until(logged, "the report of the kill")[0]
        finally:
            log.close()
        found = cgroupfs.detect().root / logged_kill.task_memcg.lstrip("/")
        assert (found, found != twin) == (path, True)


def test_a_cgroup_that_is_called_like_the_rest_of_the_line() -> None:
    """Of two places none is believed: the kill would be given to a pod that has nothing to do with it."""
    line = b"6,54374,133,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    path = b"/pods/evil/x,task_memcg=/pods/other/c,task=y"
    assert parse(line + b"oom_memcg=" + path + b",task_memcg=" + path + b",task=z,pid=7209,uid=0\n") is None
