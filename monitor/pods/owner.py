"""Whether root alone made something: what names pods or their cgroups is believed only then."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

#: As many as the kernel follows (MAXSYMLINKS).
_MOST_LINKS = 40


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
    """Who besides root and the caller could have changed a file or directory; "" if no one."""
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} (mode {stat.S_IMODE(status.st_mode):o}) can be written by others"
    return ""


def mend(problem: str) -> str:
    """The remedy for a problem of `others` or `changed_by`."""
    path, _, rest = problem.partition(" belongs to")
    return f"chown root {path}" if rest else f"chmod go-w {problem.partition(' (mode ')[0]}"


def changed_by(path: Path) -> str:
    """Who besides root and the caller could change what this path leads to: through the file or directory itself, or
    any directory or symbolic link on the way. "" if no one.

    In a sticky directory others may make files, but not replace ours. On a read-only mount no one can write, whatever
    the modes: the kubelet mounts a ConfigMap with 0777. Raises OSError.
    """
    rest = [part for part in os.path.abspath(path).split("/") if part][::-1]
    at, links = "/", 0
    while True:
        status = os.lstat(at)
        if stat.S_ISLNK(status.st_mode):
            problem = "" if status.st_uid in (0, os.geteuid()) else f"{at} belongs to user {status.st_uid}"
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = os.readlink(at)
            rest += [part for part in target.split("/") if part][::-1]
            at = "/" if target.startswith("/") else os.path.dirname(at)
        else:
            problem = others(Path(at), status)
            shared = rest and status.st_uid == 0 and status.st_mode & stat.S_ISVTX
            if problem and status.st_uid in (0, os.geteuid()) and (shared or os.statvfs(at).f_flag & os.ST_RDONLY):
                problem = ""
            if not rest and not problem:
                return ""
        if problem:
            return problem
        if rest:
            part = rest.pop()
            at = os.path.normpath(os.path.join(at, part))
