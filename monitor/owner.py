"""Whether root alone made something: what names pods or their cgroups is believed only then."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

#: As many as the kernel follows (MAXSYMLINKS).
_MOST_LINKS = 40
_AMONG_OTHERS = " is in a directory where others can put files"
_ELSEWHERE = " leads into another mount namespace"
_FUSE = " is a FUSE mount of user"
_MOUNTER = re.compile(r"\buser_id=(\d+)")
#: struct ucred: process, user and group id.
_CREDENTIALS = struct.Struct("3i")
#: Paths that name a descriptor of this process.
_HANDED = re.compile(r"/dev/stdin|/(?:dev|proc/self)/fd/\d+")


def distrust(path: Path, root: Path) -> str:
    """Why a directory of the hierarchy mounted at ``root`` is not root's alone: its owner or mode, or that of one
    above it. "" if it is (or belongs to the caller).
    """
    for directory in (path, *path.parents):
        try:
            status = os.lstat(directory)
        except OSError as error:
            return f"{directory}: {error.strerror}"
        problem = others(directory, status)
        if problem or directory == root:
            return problem
    return f"{path} is not below {root}"


def others(path: Path, status: os.stat_result) -> str:
    """Which user besides root and the caller could have changed a file or directory; "" if none."""
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to user {status.st_uid}"
    # The right to write to a socket or a device is that to use it, not to change what it is.
    fixed = stat.S_ISSOCK(status.st_mode) or stat.S_ISCHR(status.st_mode)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not fixed:
        return f"{path} (mode {stat.S_IMODE(status.st_mode):o}) can be written by others"
    return ""


def mend(problem: str) -> str:
    """The remedy for a problem of `others` or `changed_by`."""
    if problem.endswith(_AMONG_OTHERS):
        return "move it into a directory of root's"
    if _FUSE in problem:
        return "name a path that is not below it"
    if problem.endswith(_ELSEWHERE):
        return "name a copy of it"
    path, _, rest = problem.partition(" belongs to")
    return f"chown root {path}" if rest else f"chmod go-w {problem.partition(' (mode ')[0]}"


def changed_by(path: Path, *, mounted: bool = True) -> str:
    """Which user besides root and the caller could change what this path leads to: through the file or directory
    itself, or any directory or symbolic link on the way. "" if none. Raises OSError.

    In a sticky directory others may make files, but not replace ours: a directory of root's in it is believed. A file
    is not: others can put a file of root's there (a hard link, rename). A user's FUSE mount says any owner.
    ``mounted``: on a read-only mount no one can write, whatever the modes, as the kubelet mounts a ConfigMap with 0777.
    That is not so where the node's own directory is mounted so.
    """
    is_shared, device = False, os.stat("/").st_dev
    for at, status, last in _way(path):
        if status.st_uid not in (0, os.geteuid()):
            return f"{at} belongs to user {status.st_uid}"
        if is_shared and not stat.S_ISDIR(status.st_mode):
            return f"{at}{_AMONG_OTHERS}"
        if status.st_dev != device and (user := mounted_by(status.st_dev, _mounts())) not in (0, os.geteuid()):
            return f"{at}{_FUSE} {user}"
        is_shared, device = False, status.st_dev
        problem = "" if stat.S_ISLNK(status.st_mode) else others(Path(at), status)
        if problem and not (mounted and os.statvfs(at).f_flag & os.ST_RDONLY):
            if last or status.st_uid != 0 or not status.st_mode & stat.S_ISVTX:
                return problem
            is_shared = True
    # The kernel goes through /proc/PID/root into another mount namespace, where the text of that link says "/".
    return "" if os.path.samestat(status, os.stat(path)) else f"{path}{_ELSEWHERE}"


def mounted_by(device: int, mounts: Iterable[str]) -> int:
    """The user that mounted a device by FUSE, by the lines of a mountinfo; 0 for root and for every other kind."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts:
        mount, _, kind = line.partition(" - ")
        if mount.split(" ", 3)[2] == number:
            found = _MOUNTER.search(kind) if kind.startswith("fuse") else None
            return int(found[1]) if found else 0
    return 0


def _mounts() -> list[str]:
    try:
        return Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []  # no /proc


def _way(path: Path) -> Iterator[tuple[str, os.stat_result, bool]]:
    """Every directory and symbolic link on the way to what a path leads to, and that itself, which is the last. Raises
    OSError.
    """
    # No abspath: of link/.. it makes nothing, and the kernel the directory above the link's target.
    rest = [part for part in os.path.join(os.getcwd(), path).split("/") if part][::-1]
    at, links = "/", 0
    while True:
        status = os.lstat(at)
        is_link = stat.S_ISLNK(status.st_mode)
        yield at, status, not rest and not is_link
        if is_link:
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = os.readlink(at)
            rest += [part for part in target.split("/") if part][::-1]
            at = "/" if target.startswith("/") else os.path.dirname(at)
        if not rest:
            if not is_link:
                return
            continue
        at = os.path.normpath(os.path.join(at, rest.pop()))


def distrust_file(path: Path) -> str:
    """Which other user could change a file that root is to believe, with the remedy. "" if none, and for other users:
    each answers for its own files.
    """
    try:
        if os.geteuid() == 0:
            check_alone(path)
    except ChangeableError as error:
        return str(error)
    return ""


class ChangeableError(Exception):
    """Others than root can change what was to be believed: ``problem``, as of `changed_by`; as text with the remedy."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; {mend(problem)}")
        self.problem = problem


def check_alone(path: Path, *, mounted: bool = True) -> None:
    """Raises ChangeableError where others could change, or make, what this path leads to. What cannot be looked at is
    reported by the one that reads it.
    """
    problem = ""
    try:
        problem = changed_by(path, mounted=mounted)
    except FileNotFoundError as error:
        with suppress(OSError):
            problem = _made_by(Path(error.filename), mounted)
    except OSError:
        pass
    if problem:
        raise ChangeableError(problem)


def _made_by(path: Path, mounted: bool) -> str:
    """Which user besides root and the caller could make a path that is not there. Raises OSError."""
    problem = changed_by(path.parent, mounted=mounted)
    is_shared = problem and os.lstat(path.parent).st_mode & stat.S_ISVTX and os.lstat(path.parent).st_uid == 0
    return f"{path}{_AMONG_OTHERS}" if is_shared else problem


def read_alone(path: Path, *, pipes: bool = False, mounted: bool = True) -> bytes:
    """The content of a regular file that root alone could have written; with ``pipes`` also of a pipe. Raises
    ChangeableError, OSError.

    The way is checked while the file is open, and has to lead to that very file. A descriptor of this process
    (``/dev/stdin``, ``<(...)`` of a shell) is the word of the process that started this one, also where the file is
    another user's.
    """

    from monitor import documents  # the hot process reads none

    def check(fd: int) -> None:
        if is_handed(path):
            return
        if problem := changed_by(path, mounted=mounted):
            raise ChangeableError(problem)
        if not os.path.samestat(os.fstat(fd), os.stat(path)):
            raise OSError(errno.ESTALE, "was replaced while it was read", str(path))

    return documents.read_bytes(path, pipes=pipes, opened=check)


def is_handed(path: str | Path) -> bool:
    """Whether a path names a descriptor of this process."""
    return _HANDED.fullmatch(os.path.normpath(path)) is not None


def search_path() -> str:
    """$PATH without the directories where others could put a program, and without relative ones."""
    found = list[str]()
    for one in os.environ.get("PATH", os.defpath).split(":"):
        with suppress(OSError):
            found += [one] if one[:1] == "/" and not changed_by(Path(one)) else []
    return ":".join(found)


def program(name: str) -> str:
    """The path of a program that root alone could have written, looked for in `search_path` where ``name`` has no
    slash. Raises ChangeableError, or OSError where there is none.
    """
    import shutil  # 0.5 MiB that the hot process does not need

    found = shutil.which(name, path=search_path())
    if found is None:
        where = (
            "no such program" if "/" in name else "no such command in the directories of $PATH that are root's alone"
        )
        raise FileNotFoundError(errno.ENOENT, where, name)
    if problem := changed_by(Path(found)):
        raise ChangeableError(problem)
    return found


def connected(path: Path, timeout_s: float) -> socket.socket:
    """A connection to a socket that root alone could have put there, and that a process of root's (or the caller's)
    listens on. Raises ChangeableError, OSError.
    """
    if problem := changed_by(path):
        raise ChangeableError(problem)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(timeout_s)
        connection.connect(os.fspath(path))
        check_peer(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def check_peer(connection: socket.socket) -> None:
    """Raises OSError if the process that listened is another user's. Its effective user id counts, as it was
    when it called listen(2) (unix(7)); root of another user namespace is another user.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    if user not in (0, os.geteuid()):
        raise OSError(errno.ECONNABORTED, f"a process of user {user} listens there")
