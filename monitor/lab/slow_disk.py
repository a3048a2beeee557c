"""A disk that takes only so many bytes a second: dirty page cache of its files is not to be had at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from monitor.errors import CannotError
from monitor.kernel import cgroupfs
from monitor.lab.node import MIB, LabNode

_SIZE = 512 * MIB  # of the file system; its file is sparse
_NEEDS = ("mkfs.ext4", "mount", "umount")


def problem(hierarchy: cgroupfs.Hierarchy) -> str:
    """Why there can be none here, or ""."""
    missing = [name for name in _NEEDS if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    if not Path("/dev/loop-control").exists():
        return "needs loop devices: modprobe loop"
    if hierarchy.version != 1:
        return "needs cgroup v1 (v2 was not tried)"
    return "" if throttle_file().exists() else "needs cgroup v1's blkio controller with throttling"


class SlowDisk:
    """Context manager: an ext4 in a file below ``directory``, on a loop device that writes ``rate`` bytes a second.

    cgroup v1 does not know whose page cache is written: the limit is the root's, for this one device. Whatever becomes
    of the owner, the node's janitor takes limit and mount away.
    """

    def __init__(self, node: LabNode, directory: Path, rate: int) -> None:
        self._node, self._rate = node, rate
        self._own = Path(tempfile.mkdtemp(prefix=f"{node.cgroup.name}-disk-", dir=directory))
        self.path = self._own / "mounted"
        self._undo: tuple[Path, str] | None = None
        node.also_remove(self._own)

    def __enter__(self) -> Self:
        """Raises CannotError where the kernel refuses."""
        image = self._own / "image"
        self.path.mkdir()
        with image.open("wb") as file:
            file.truncate(_SIZE)
        # No journal: nobody who commits may wait for the disk, and no inode tables to be written later.
        _run("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=0", image)
        self._node.also_unmount(self.path)
        _run("mount", "-o", "loop", image, self.path)
        number = os.stat(self.path).st_dev
        device = f"{os.major(number)}:{os.minor(number)}"
        self._limit(throttle_file(), f"{device} {self._rate}", f"{device} 0")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.full_speed()

    def full_speed(self) -> None:
        """Take the limit away: who waits for the disk goes on, and can end."""
        if self._undo is not None:
            path, text = self._undo
            path.write_text(text)

    def _limit(self, path: Path, text: str, undo: str) -> None:
        self._node.also_write(path, undo)
        try:
            path.write_text(text)
        except OSError as error:
            raise CannotError(f"{path}: {error.strerror}", "leave out what needs a slow disk") from None
        self._undo = (path, undo)


def throttle_file() -> Path:
    """Where cgroup v1 limits what the machine writes to a device. (It does not know whose page cache is written.)"""
    mounted = [path for path, kind, options in cgroupfs.mount_table() if kind == "cgroup" and "blkio" in options]
    return (mounted[0] if mounted else Path("/sys/fs/cgroup/blkio")) / "blkio.throttle.write_bps_device"


def _run(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotError(f"{words[0]} failed: {done.stderr.strip()}", "leave out what needs a slow disk")
