"""The pods of a cluster in the state directory: what is known after a restart without network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from monitor import documents
from monitor.documents import UnreadableError
from monitor.kernel.durable import replace_file

#: Beside the pods, so that a later version can tell that it does not know the format.
_VERSION = 1
#: Bytes and values around the pods, and to spare.
_HEAD = 1024


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

    def store(self, objects: list[Any]) -> bool:
        """Whether the file is written. Raises nothing: after the next start the feed gets what is not stored.

        It is no more than `load` reads: without the largest pods, where all are more than that.
        """
        texts = [json.dumps(one, separators=(",", ":")) for one in objects]
        chosen = _within(texts)
        head = json.dumps({"version": _VERSION, "node": self._node, "pods": []}, separators=(",", ":"))
        text = head.removesuffix("]}") + ",".join(texts[at] for at in chosen) + "]}"
        try:
            replace_file(self.path, text.encode())
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror}; after a restart pods are known when the cluster answers"
            return False
        left_out = len(texts) - len(chosen)
        too_many = f"{self.path}: the {left_out} largest of {len(texts)} pods do not fit into a file"
        self.problem = f"{too_many}; after a restart they are known when the cluster answers" if left_out else ""
        return True


def _within(texts: list[str]) -> list[int]:
    """Which of these objects fit into one file, the smallest first; in their own order."""
    size = values = _HEAD
    for count, at in enumerate(by_size := sorted(range(len(texts)), key=lambda at: len(texts[at]))):
        text = texts[at]
        size += len(text) + 1  # ASCII, as json.dumps makes it
        values += sum(map(text.count, "[{,")) + 1  # in its strings too
        if size > documents.MAX_BYTES or values > documents.MAX_VALUES:
            return sorted(by_size[:count])
    return sorted(by_size)
