"""inotify by ctypes: one descriptor for select that becomes readable when a watched directory changes.

It also works on cgroup file systems, for cgroups that a process makes or removes (both go through mkdir and rmdir).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# <linux/inotify.h>
IN_MODIFY = 0x002
IN_CLOSE_WRITE = 0x008
IN_MOVED_FROM = 0x040
IN_MOVED_TO = 0x080
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x1000000
#: Children of a directory appear and vanish.
CHILDREN = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR
#: ... and files in it are written.
FILES = CHILDREN | IN_CLOSE_WRITE

#: Reads of 64 KiB in a row: 8,000 events, half of what the kernel queues (fs.inotify.max_queued_events). A user with a
#: cgroup of its own writes to two files in turns as fast as they are read, and the queue is never empty.
_READS = 4
_HEADER = struct.Struct("iIII")  # wd, mask, cookie, length of the name


@dataclass(frozen=True)
class Event:
    """Something happened to ``name`` in ``directory`` (None and "": events were lost, anything may have changed)."""

    directory: Path | None
    name: str
    mask: int


class Watcher:
    """Where the kernel gives no descriptor (limit of instances) it is `incomplete`, and nothing is ever reported."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watches: dict[Path, tuple[int, int]] = {}  # directory -> (watch descriptor, inode)
        self._paths: dict[int, Path] = {}
        self.added: set[Path] = set()  # what the last call of `watch_only` watched anew
        self.incomplete = self._fd < 0  # a directory that should be watched is not (a limit of the user is reached)

    def fileno(self) -> int | None:
        return self._fd if self._fd >= 0 else None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def watch_only(self, wanted: Mapping[Path, int]) -> set[Path]:
        """Watch exactly these directories (path -> mask); those that are watched anew. A directory that was
        removed and made again is watched anew, at the latest after `drain` gave its removal.
        """
        for path in self._watches.keys() - wanted.keys():
            self._forget(path)
        self.added, self.incomplete = set(), self._fd < 0
        for path, mask in wanted.items():
            try:
                inode = os.stat(path).st_ino
            except OSError:
                self._forget(path)
                continue  # it is gone: its parent, which is watched too, reports when it is back
            if path in self._watches and self._watches[path][1] == inode:
                continue
            self._forget(path)
            wd = self._libc.inotify_add_watch(self._fd, os.fsencode(path), ctypes.c_uint32(mask))
            if wd >= 0:
                self._watches[path] = (wd, inode)
                self._paths[wd] = path
                self.added.add(path)
            elif ctypes.get_errno() not in (errno.ENOENT, errno.ENOTDIR):
                self.incomplete = True  # ENOSPC: fs.inotify.max_user_watches; EACCES: not ours to read
        return self.added

    def drain(self) -> list[Event]:
        """Events waiting now, each kind once; never blocks. What is not read leaves the descriptor readable."""
        events: dict[Event, None] = {}
        for _ in range(_READS):
            try:
                data = os.read(self._fd, 65536)
            except OSError:  # there is no more, or no descriptor
                break
            at = 0
            while at < len(data):
                wd, mask, _, length = _HEADER.unpack_from(data, at)
                name = data[at + _HEADER.size : at + _HEADER.size + length].rstrip(b"\0")
                at += _HEADER.size + length
                path = self._paths.get(wd)
                if mask & IN_IGNORED and path is not None:
                    # The directory is gone. One made in its place may even have the same inode (ext4 does that).
                    self._paths.pop(wd)
                    self._watches.pop(path, None)
                if path is not None or mask & IN_Q_OVERFLOW:
                    events[Event(path, os.fsdecode(name), mask)] = None
        return list(events)

    def _forget(self, path: Path) -> None:
        watch = self._watches.pop(path, None)
        if watch is not None:
            self._paths.pop(watch[0], None)
            self._libc.inotify_rm_watch(self._fd, watch[0])  # EINVAL: the kernel dropped it with the directory
