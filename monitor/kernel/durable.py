"""Small files of the state dir that are whole at all times, also after a power cut. All of it may block."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put a file with ``data`` in the place of ``path``, all of it or nothing. Raises OSError."""
    with _written(path, data, mode) as temporary:
        temporary.rename(path)


@contextmanager
def _written(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """The data on disk, under a hidden name; a new file, whatever a daemon that was killed left there."""
    temporary = path.with_name(f".{path.name.removesuffix('.json')[:200]}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # before it gets its name, or a power cut could leave an empty file
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


class JsonFolder:
    """A directory of files ``NAME.json``, of which the newest ``keep`` stay. Its methods raise OSError."""

    def __init__(self, path: Path, keep: int, mode: int) -> None:
        self.path = path
        self._keep, self._mode = keep, mode

    def add(self, name: str, data: bytes) -> Path:
        """Write ``name.json``, or ``name.2.json`` and so on where an older file has that name."""
        self._make()
        while True:
            path = self.path / self._free(name)
            # Unlike a rename a link fails when the name is taken: by another process, since it was looked for.
            with suppress(FileExistsError), _written(path, data, self._mode) as temporary:
                os.link(temporary, path)
                self._tidy(path.name)
                return path

    def replace(self, file_name: str, data: bytes) -> None:
        """Write the file; it replaces an older one of that name."""
        self._make()
        replace_file(self.path / file_name, data, self._mode)
        self._tidy(file_name)

    def remove(self, file_name: str) -> None:
        (self.path / file_name).unlink(missing_ok=True)

    def listed(self) -> list[str]:
        """The names of the files, oldest first."""
        found = []
        with os.scandir(self.path) as entries:
            for one in entries:
                if one.name.endswith(".json") and not one.name.startswith("."):
                    with suppress(FileNotFoundError):  # removed meanwhile
                        found.append((one.stat(follow_symlinks=False).st_mtime_ns, one.name))
        return [name for _, name in sorted(found)]

    def _make(self) -> None:
        self.path.mkdir(mode=0o750, parents=True, exist_ok=True)

    def _free(self, name: str) -> str:
        pattern = re.compile(re.escape(name) + r"(?:\.([1-9][0-9]{0,9}))?\.json")
        numbers = [int(found[1] or 1) for other in os.listdir(self.path) if (found := pattern.fullmatch(other))]
        return f"{name}.{max(numbers) + 1}.json" if numbers else f"{name}.json"

    def _tidy(self, written: str) -> None:
        """Never the file just written: where the clock was set back it may be the oldest by its time."""
        others = [name for name in self.listed() if name != written]
        for oldest in others[: max(0, len(others) + 1 - self._keep)]:
            self.remove(oldest)
