"""Small files of the state dir that are whole at all times, also after a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Put a file with ``data`` in the place of ``path``, all of it or nothing. Raises OSError."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # before the rename, or a power cut could leave an empty file
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
