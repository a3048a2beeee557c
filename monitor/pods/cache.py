"""The pods of a cluster in the state directory: what is known after a restart without network."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from monitor import documents
from monitor.documents import UnreadableError

#: Beside the pods, so that a later version can tell that it does not know the format.
_VERSION = 1


class PodCache:
    """One JSON file, replaced as a whole, for root alone. A cache that cannot be read or written is none."""

    def __init__(self, state_dir: Path, node: str) -> None:
        self.path = state_dir / "pods-cache.json"
        self._node = node
        self.problem = ""  # why the last `load` or `store` failed

    def load(self) -> list[Any]:
        """The objects that were stored for this node; none where there is no file, or a damaged one."""
        try:
            found = documents.from_json(documents.decoded(documents.read_bytes(self.path)))
        except FileNotFoundError:
            return []
        except (OSError, UnreadableError, documents.NotAFileError) as error:
            self.problem = f"{self.path}: {error}; pods are known when the cluster answers"
            return []
        if not isinstance(found, dict) or found.get("version") != _VERSION or found.get("node") != self._node:
            return []  # of another version, or the disk of another node
        pods = found.get("pods")
        return pods if isinstance(pods, list) else []

    def store(self, objects: list[Any]) -> None:
        """Raises nothing: what is not stored is asked for after the next start."""
        text = json.dumps({"version": _VERSION, "node": self._node, "pods": objects}, separators=(",", ":"))
        new = self.path.with_suffix(".new")
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(fd)
            os.replace(new, self.path)
            self.problem = ""
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror}; after a restart pods are known when the cluster answers"
