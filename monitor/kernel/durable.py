"""Small files of the state dir that are whole at all times, also after a power cut. All of it may block."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put a file with ``data`` in the place of ``path``, all of it or nothing. Raises OSError."""
    # A new file with a hidden name, whatever a daemon that was killed left there.
    temporary = path.with_name(f".{path.name.removesuffix('.json')[:200]}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # before it gets its name, or a power cut could leave an empty file
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Have the names in a directory on disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@dataclass(frozen=True)
class JsonFolder:
    """A directory of files ``NAME.json``. Its methods raise OSError."""

    path: Path

    def replace(self, file_name: str, data: bytes) -> None:
        """Write the file; it replaces an older one of that name."""
        self.path.mkdir(mode=0o750, parents=True, exist_ok=True)
        replace_file(self.path / file_name, data, 0o640)

    def remove(self, file_name: str) -> None:
        (self.path / file_name).unlink(missing_ok=True)

    def listed(self) -> dict[str, int]:
        """The names of the files, oldest first, and their bytes."""
        found = []
        with os.scandir(self.path) as entries:
            for one in entries:
                if one.name.endswith(".json") and not one.name.startswith("."):
                    with suppress(FileNotFoundError):  # removed meanwhile
                        status = one.stat(follow_symlinks=False)
                        found.append((status.st_mtime_ns, one.name, status.st_size))
        return {name: size for _, name, size in sorted(found)}
