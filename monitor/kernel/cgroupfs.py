"""The memory cgroup hierarchy as files: where it is, what a cgroup holds, the kubelet's formulas on it, and making one.

Works on cgroup v1 (also "hybrid", where v2 is mounted but the memory controller is on v1) and on v2. Every root is a
parameter, so the same code runs on a literal tree. A cgroup that vanishes while it is read raises `CgroupGone`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from monitor.errors import CannotError, ConfigError, MonitorError

MOUNTS = "/proc/self/mounts"
#: Limits above this are "no limit" to the kubelet (cAdvisor's maxMemorySize). v1 prints 2^63-4096 for unlimited.
MAX_LIMIT = 1 << 62
#: A cgroup removed under us: the directory is gone (ENOENT), or an open file of it is (ENODEV).
GONE = (errno.ENOENT, errno.ENODEV)
#: Files by version of cgroups: bytes in use, and the limit.
USAGE = {1: "memory.usage_in_bytes", 2: "memory.current"}
LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
#: Which counts the processes of this very cgroup that the OOM killer took.
KILLS = {1: "memory.oom_control", 2: "memory.events.local"}
#: Bytes of the path of a cgroup whose files have paths that the kernel takes: 4,095 bytes.
_LONGEST = 4000


class CgroupGone(MonitorError):
    """The cgroup does not exist (any more)."""


@dataclass(frozen=True)
class Hierarchy:
    """The hierarchy that carries the memory controller: cgroup ``version`` (1 or 2) and its mount point."""

    version: int
    root: Path


class Reading(NamedTuple):
    """Memory of one cgroup and its descendants in bytes. ``reclaimable``: by the formula of `*.reclaimable`
    (docs/signals.md). ``capacity`` is the limit; None: unlimited, or not looked for.
    """

    usage: int
    inactive_file: int
    active_file: int
    reclaimable: bool = False
    capacity: int | None = None

    @property
    def working_set(self) -> int:
        """The kubelet's: usage without inactive file pages, not below 0."""
        return max(0, self.usage - self.inactive_file)

    @property
    def cache(self) -> int:
        """Page cache that is available by the formula of the signal that was asked for."""
        return self.inactive_file + (self.active_file if self.reclaimable else 0)

    @property
    def used(self) -> int:
        """What is not available by that formula; by the kubelet's the working set."""
        return max(0, self.usage - self.cache)

    @property
    def available(self) -> int | None:
        """The kubelet's. May be negative: it subtracts unsigned and casts to signed, which gives the same number
        (kubernetes issue 52386).
        """
        return None if self.capacity is None else self.capacity - self.working_set

    def figures(self) -> dict[str, int | None]:
        """By the names that `top` and the metrics have for them."""
        names = ("usage", "inactive_file", "active_file", "working_set", "capacity", "available")
        return {name: getattr(self, name) for name in names}


def detect(mounts: str | Path = MOUNTS) -> Hierarchy:
    """Find the memory hierarchy in a mount table; CannotError (with the remedy) if no controller is mounted."""
    found: Hierarchy | None = None
    unified: Path | None = None
    try:
        table = mount_table(mounts)
    except OSError as e:
        raise CannotError(f"{mounts}: {e.strerror}", "mount procfs at /proc") from e
    for point, kind, options in table:
        if kind == "cgroup" and "memory" in options:
            found = found or Hierarchy(1, point)  # the first: later ones are bind mounts, as of the host's in a pod
        elif kind == "cgroup2" and (unified is None or "memory" not in _controllers(unified)):
            unified = point
    # One controller lives in one hierarchy, so v1 and v2 never both offer memory.
    if found is None and unified is not None and "memory" in _controllers(unified):
        found = Hierarchy(2, unified)
    if found is not None:
        return found
    if unified is not None:
        raise CannotError(
            f"the cgroup v2 hierarchy at {unified} has no memory controller",
            "boot without cgroup_disable=memory (some ARM boards need cgroup_enable=memory)",
        )
    raise CannotError(
        "no cgroup hierarchy with the memory controller is mounted", "mount -t cgroup2 none /sys/fs/cgroup"
    )


def freezer(mounts: str | Path = MOUNTS) -> Path | None:
    """Where cgroup v1's freezer is mounted, which may be beside cgroup v2."""
    return next((at for at, kind, options in mount_table(mounts) if kind == "cgroup" and "freezer" in options), None)


def mount_table(mounts: str | Path = MOUNTS) -> list[tuple[Path, str, list[str]]]:
    """(mount point, type, options) of each line of a mount table. Raises OSError."""
    rows = (line.split(" ") for line in Path(mounts).read_text(errors="surrogateescape").splitlines())
    return [(Path(unescape(row[1])), row[2], row[3].split(",")) for row in rows if len(row) > 3]


def unescape(field: str) -> str:
    """A field of a mount table: the kernel writes space, tab, newline and backslash as three octal digits (proc(5))."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), field)


def _controllers(path: Path, name: str = "cgroup.controllers") -> list[str]:
    try:
        return (path / name).read_text().split()
    except OSError:
        return []  # not mounted there any more, or not v2: it offers no controller


def exists(path: Path) -> bool:
    """Whether ``path`` is a cgroup directory (every cgroup of either version has a cgroup.procs)."""
    return os.path.exists(f"{path}/cgroup.procs")


def resolve(hierarchy: Hierarchy, text: str) -> Path:
    """The directory of the cgroup ``text``: relative to the hierarchy (with or without a leading slash), or absolute
    inside it. ConfigError naming it if it is missing, not a cgroup, or leads outside.
    """
    path = locate(hierarchy, text)
    if exists(path):
        return path
    if os.path.isdir(path):
        raise ConfigError(f"{text!r} is not a cgroup: {path} has no cgroup.procs", _where(hierarchy))
    raise ConfigError(
        f"no cgroup {text!r}: {path} does not exist", f"create it, or name one that exists; {_where(hierarchy)}"
    )


def locate(hierarchy: Hierarchy, text: str) -> Path:
    """As `resolve`, but the cgroup need not exist (yet)."""
    if not text or "\0" in text:
        raise ConfigError(f"{text!r} is not the name of a cgroup", _where(hierarchy))
    if ".." in text.split("/"):
        raise ConfigError(f"cgroup {text!r} leads outside the hierarchy", f"write it without '..'; {_where(hierarchy)}")
    # Without ".." this cannot leave the hierarchy: the kernel's cgroup trees have no symbolic links.
    root = os.fspath(hierarchy.root)
    return Path(text) if f"{text}/".startswith(f"{root}/") else hierarchy.root / text.lstrip("/")


def _where(hierarchy: Hierarchy) -> str:
    return f"the name is relative to {hierarchy.root} (see /proc/PID/cgroup)"


def cgroup_id(path: Path) -> int:
    """The kernel's id of the cgroup: the inode number of its directory in the memory hierarchy."""
    try:
        return os.stat(path).st_ino
    except OSError as e:
        raise failure(path, "read", e) from e


def limit(path: Path) -> int | None:
    """The cgroup's own memory limit in bytes; None if it has none (or is a root, which has no limit file on v2)."""
    for name in (LIMIT[2], LIMIT[1]):
        with suppress(CgroupGone):
            return amount(path, name)
    _check_there(path)
    return None


def amount(path: Path, name: str) -> int | None:
    """Bytes of what a file of a cgroup keeps or allows; None for "max". Raises MonitorError (`CgroupGone`)."""
    text = _read(path, name)
    try:
        return limit_of(text.encode())
    except ValueError as e:
        raise MonitorError(f"{path / name} is not a number: {text[:40]!r}") from e


def limit_of(text: bytes) -> int | None:
    """Bytes of what a limit file says; None for no limit. Raises ValueError."""
    if text.startswith(b"max"):
        return None
    value = int(text)
    return None if value > MAX_LIMIT else value


def below(path: Path) -> Iterator[Path]:
    """Every cgroup below, each before it is looked into. Left out is what vanishes meanwhile, and what has a path of
    more than `_LONGEST` bytes: a user that may nest cgroups can make those. Raises OSError.
    """
    pending = [os.fspath(path)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for found in (e.path for e in entries if e.is_dir(follow_symlinks=False)):
                    if len(os.fsencode(found)) <= _LONGEST:
                        pending.append(found)
                        yield Path(found)
        except OSError as e:
            if e.errno not in GONE:
                raise


def read_cgroup(hierarchy: Hierarchy, path: Path, capacity: int | None = None) -> Reading:
    """One cgroup against its own limit, or against ``capacity`` bytes where it has no limit. The root is the machine,
    against MemTotal of /proc/meminfo: what is mounted as the root of a container has a limit, which is not asked for.
    """
    figures, own = _figures(hierarchy, path), None if path == hierarchy.root else limit(path)
    return Reading(*figures, capacity=capacity if own is None else own)


def usage(hierarchy: Hierarchy, path: Path) -> int:
    """Bytes charged to one cgroup (not the v2 root, which has no such file)."""
    return amount(path, USAGE[hierarchy.version]) or 0


def _figures(hierarchy: Hierarchy, path: Path) -> tuple[int, int, int]:
    """(usage, inactive_file, active_file) in bytes. A key missing in memory.stat counts as 0, as in cAdvisor."""
    stat = memory_stat(path)
    # total_*: v1 prints the cgroup's own pages without the prefix and the whole subtree with it.
    whole = "total_" if hierarchy.version == 1 else ""
    try:
        used = usage(hierarchy, path)
    except CgroupGone:
        # The v2 root has no memory.current: runc, and so the kubelet, adds up anon + file (kubernetes issue 118916).
        if whole:
            raise
        _check_there(path)
        used = stat.get("anon", 0) + stat.get("file", 0)
    return used, stat.get(f"{whole}inactive_file", 0), stat.get(f"{whole}active_file", 0)


def memory_stat(path: Path) -> dict[str, int]:
    """The numbers of memory.stat by name. Raises MonitorError (`CgroupGone`)."""
    lines = _read(path, "memory.stat").splitlines()
    return {key: int(value) for key, _, value in (line.partition(" ") for line in lines) if value.isdigit()}


def make(path: Path) -> Path:
    """Create the cgroup (and its parents) with the memory controller in it; no error if it is there already."""
    parent = path.parent
    try:
        if not parent.exists():
            make(parent)
        if os.path.exists(parent / "cgroup.subtree_control"):
            enable_controllers(parent)
        path.mkdir(exist_ok=True)
    except OSError as e:
        raise failure(path, "create", e) from e
    return path


def enable_controllers(path: Path, names: Iterable[str] = ("memory",)) -> None:
    """v2: hand the controllers down to the children of ``path``, through every ancestor that does not do so yet."""
    wanted = list(names)
    chain = [path, *takewhile(lambda above: os.path.exists(above / "cgroup.subtree_control"), path.parents)]
    for cgroup in reversed(chain):
        missing = [n for n in wanted if n not in _controllers(cgroup, "cgroup.subtree_control")]
        if missing:
            _write(cgroup, "cgroup.subtree_control", " ".join(f"+{n}" for n in missing))


def set_limit(path: Path, limit_bytes: int) -> None:
    """Limit the cgroup to ``limit_bytes`` of memory."""
    v2 = os.path.exists(path / "memory.max")
    _write(path, "memory.max" if v2 else "memory.limit_in_bytes", str(limit_bytes))


def _read(path: Path, name: str) -> str:
    try:
        with open(f"{path}/{name}") as f:
            return f.read()
    except OSError as e:
        raise failure(path / name, "read", e) from e


def _write(path: Path, name: str, text: str) -> None:
    try:
        with open(f"{path}/{name}", "w") as f:
            f.write(text)
    except OSError as e:
        raise failure(path / name, f"write {text!r} to", e) from e


def _check_there(path: Path) -> None:
    if not os.path.isdir(path):
        raise CgroupGone(f"cgroup {path} does not exist")


def failure(path: Path, verb: str, e: OSError) -> MonitorError:
    """The error a user can act on for a failed operation on a cgroup file."""
    if e.errno in GONE:
        return CgroupGone(f"cannot {verb} {path}: it does not exist")
    what = f"cannot {verb} {path}"
    if e.errno in (errno.EACCES, errno.EPERM):
        return CannotError(f"{what}: {e.strerror}", "run as root")
    if e.errno == errno.EROFS:
        return CannotError(f"{what}: {e.strerror}", f"mount -o remount,rw {path.anchor}sys/fs/cgroup")
    if e.errno == errno.EBUSY and path.name == "cgroup.subtree_control":
        return CannotError(
            f"{what}: the cgroup itself holds processes",
            "cgroup v2 lets only a cgroup without processes of its own hand controllers down: move them into a child",
        )
    return MonitorError(f"{what}: {e.strerror}")


def oom_kills(hierarchy: Hierarchy, path: Path) -> int | None:
    """Processes of this very cgroup that the OOM killer took, as the kernel counts them; None if it does not say. Those
    of cgroups below are not among them; on v1 the counters of parents stay 0 (measured).
    """
    try:
        lines = (path / KILLS[hierarchy.version]).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
