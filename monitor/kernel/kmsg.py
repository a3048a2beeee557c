"""The lines of the kernel's log about OOM kills: they confirm a kill and never decide anything.

Their wording has changed before, and parts of them are rate limited (10 in 5 s). Reading begins at the end of the log:
older lines are of earlier kills.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from monitor.errors import MonitorError, remedy_of
from monitor.kernel.wire import printable

_KILLED = re.compile(r"(Memory cgroup out of memory|Out of memory)[^:]*: Killed process (\d+) \((.*)\)")
_CONSTRAINT = re.compile(
    # To the very end, because a task is called as it likes: "x,pid=1,uid=0" is a name.
    r"oom-kill:constraint=(\w+),.*?(?:oom_memcg=(.*?),)?(?:global_oom,)?task_memcg=(.*?),task=.*,pid=(\d+),uid=\d+$"
)
#: With the order of the allocation; -1 where SysRq f called the OOM killer (is_sysrq_oom, mm/oom_kill.c).
_INVOKED = re.compile(r"(.*) invoked oom-killer: (?:.*, order=(-?\d+))?")
#: What /dev/kmsg writes for each byte that is no printable ASCII, and for a backslash (msg_add_ext_text, printk.c).
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
#: A record of /dev/kmsg is at most this long (CONSOLE_EXT_LOG_MAX).
_RECORD = 8192
#: Records read at once: a flood of the log must not hold up its reader.
_MOST = 500


class Killed(NamedTuple):
    """A process was killed: the line that is never rate limited. ``ts_ns``: the log's own clock (sched_clock)."""

    ts_ns: int
    pid: int
    comm: str
    in_memcg: bool
    text: str


class Constraint(NamedTuple):
    """Why, and in which cgroups (paths below the hierarchy's root; ``oom_memcg`` None: the machine)."""

    constraint: str
    oom_memcg: str | None
    task_memcg: str
    pid: int


class Invoked(NamedTuple):
    """The first line of the report of a kill, before its `Constraint`. ``by_hand``: SysRq f asked for a kill."""

    comm: str
    by_hand: bool


def line_of(record: bytes) -> tuple[int, str]:
    """Time (ns, by the log's own clock) and text of a record of /dev/kmsg; no text unless the kernel wrote it. The low
    bits of the first field are the level, the rest the facility, of which 0 is the kernel's alone: any process may
    write lines of another one.
    """
    head, _, rest = record.decode(errors="replace").partition(";")
    fields = head.split(",")
    if len(fields) < 3 or not (fields[0].isdecimal() and fields[2].isdecimal()) or int(fields[0]) >> 3:
        return 0, ""
    return int(fields[2]) * 1000, rest.split("\n", 1)[0]


def parse(record: bytes) -> Killed | Constraint | Invoked | None:
    """One record of /dev/kmsg; None if it is not about an OOM kill."""
    ts_ns, text = line_of(record)
    # A cgroup's name is free text: ",task_memcg=/another" within a name makes the line name two.
    if text.count("oom_memcg=") > 1 or text.count("task_memcg=") > 1:
        return None
    if found := _KILLED.match(text):
        return Killed(ts_ns, int(found[2]), printable(_bytes(found[3])), found[1].startswith("Memory"), text)
    if found := _CONSTRAINT.match(text):
        oom_memcg = None if found[2] is None else path_of(found[2])
        return Constraint(found[1], oom_memcg, path_of(found[3]), int(found[4]))
    if found := _INVOKED.match(text):
        return Invoked(printable(_bytes(found[1])), found[2] == "-1")
    return None


def path_of(logged: str) -> str:
    """The path of a cgroup as the file system has it, from the log's text: each cgroup has a path of its own there."""
    return os.fsdecode(_bytes(logged))


def _bytes(logged: str) -> bytes:
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), logged.encode())


class Kmsg:
    """The log from now on. Raises MonitorError when it may not be read."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            raise MonitorError(
                f"{path} cannot be read ({error.strerror}): OOM kills are not checked against the kernel's log",
                "run as root, or give it CAP_SYSLOG",
            ) from None

    def fileno(self) -> int:
        return self._fd

    def records(self, most: int = _MOST) -> Iterator[bytes | None]:
        """What was written since the last time, of a flood the first ``most``, the rest the next time; None where
        others were overwritten before they were read. Raises MonitorError.
        """
        for _ in range(most):
            try:
                record = os.read(self._fd, _RECORD)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise MonitorError(
                        f"the kernel's log cannot be read any more: {error.strerror}",
                        remedy_of(error.errno, "restart outrace with CAP_SYSLOG"),
                    ) from None
                yield None
                continue
            if not record:
                return
            yield record

    def read(self) -> list[Killed | Constraint | Invoked]:
        """What was written since the last time about OOM kills. Raises MonitorError."""
        return [line for record in self.records() if record is not None and (line := parse(record))]

    def close(self) -> None:
        os.close(self._fd)
