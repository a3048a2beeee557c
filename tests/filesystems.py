"""Small real file systems for tests, unmounted and removed afterwards."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from tests.commands import run


@contextmanager
def swap() -> Iterator[None]:
    """96 MiB of it on the machine, in a file: only in a guest that may be lost."""
    with tempfile.TemporaryDirectory(prefix="outrace-test-", dir="/var/tmp") as place:
        file = Path(place, "swap")
        file.touch(0o600)
        file.write_bytes(bytes(96 << 20))
        subprocess.run(["mkswap", file], check=True, capture_output=True)
        subprocess.run(["swapon", file], check=True)
        try:
            yield
        finally:
            subprocess.run(["swapoff", file], check=True)


@contextmanager
def nested(path: Path) -> Iterator[int]:
    """30 directories one in another below ``path``, of 200 bytes each: the kernel refuses such a path. Yields the
    descriptor of the innermost.
    """
    name = "d" * 200
    inner = [os.open(path, os.O_RDONLY)]
    try:
        for _ in range(30):
            os.mkdir(name, dir_fd=inner[-1])
            inner.append(os.open(name, os.O_RDONLY, dir_fd=inner[-1]))
        yield inner[-1]
    finally:
        os.close(inner.pop())
        for outer in reversed(inner):
            os.rmdir(name, dir_fd=outer)
            os.close(outer)


class Mounts:
    """Context manager: file systems mounted below ``directory`` (None: a temporary one, removed at the end)."""

    def __init__(self, directory: Path | None = None) -> None:
        self._own = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="outrace-test-"))
        self._mounted: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for path in reversed(self._mounted):
            subprocess.run(["umount", path], check=True)
        if self._own:
            shutil.rmtree(self.directory)

    def _mount(self, name: str, *arguments: object) -> Path:
        point = self.directory / name
        point.mkdir(parents=True, exist_ok=True)
        done = run("mount", *map(str, arguments), point)
        if done.returncode:
            pytest.skip(f"cannot mount: {done.stderr.strip()}" + ("" if os.geteuid() == 0 else " (not root)"))
        self._mounted.append(point)
        return point

    def tmpfs(self, name: str, size: int, inodes: int = 1000) -> Path:
        """A tmpfs of ``size`` bytes; 0 ``inodes`` are as many as one likes."""
        return self._mount(name, "-t", "tmpfs", "-o", f"size={size},nr_inodes={inodes}", "outrace-test")

    def ext4(self, name: str, size: int, *options: str) -> Path:
        """An ext4 of ``size`` bytes in a file; ``options`` of mkfs."""
        image = self.directory / f"{name}.img"
        with open(image, "wb") as file:
            file.truncate(size)
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("no mkfs.ext4: apt-get install e2fsprogs")
        subprocess.run(["mkfs.ext4", "-q", *options, image], check=True)
        return self._mount(name, "-o", "loop", image)

    def cgroup2(self, name: str) -> Path:
        """The unified hierarchy of cgroups, with the memory controller where that is not in use by cgroup v1."""
        return self._mount(name, "-t", "cgroup2", "outrace-test")

    def overlay(self, name: str, lower: Path, upper: Path, work: Path) -> Path:
        """An overlay, as a container runtime makes one for a container."""
        return self._mount(name, "-t", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", "overlay")
