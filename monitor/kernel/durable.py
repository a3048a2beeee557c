"""Small files of the state dir that are whole at all times, also after a power cut. All of it may block."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put a file with ``data`` in the place of ``path``, all of it or nothing. Raises OSError."""
    temporary = path.with_name(".new")  # whatever a daemon that was killed left there
    temporary.unlink(missing_ok=True)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # before it gets its name, or a power cut could leave an empty file
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)  # the name
    finally:
        os.close(fd)
