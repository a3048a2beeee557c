"""Whether root alone made something: what names pods or their cgroups is believed only then."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def distrust(path: Path, root: Path) -> str:
    """Why a directory of the hierarchy mounted at ``root`` is not root's alone: its owner or mode, or that of one
    above it. "" if it is (or belongs to whoever asks).
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
    """Who else than root, or whoever asks, could have changed a file or directory; "" if nobody."""
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} (mode {stat.S_IMODE(status.st_mode):o}) can be written by others"
    return ""
