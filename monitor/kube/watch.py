"""The stream of a watch: one JSON object a line, each an event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from monitor.documents import shown
from monitor.kube.decode import MAX_OBJECT, Object, parse_object
from monitor.kube.errors import InvalidResponse, ResponseTooLarge, api_error

ADDED, MODIFIED, DELETED, BOOKMARK, ERROR = "ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"


@dataclass(frozen=True)
class WatchEvent:
    """``kind`` is ADDED, MODIFIED, DELETED or BOOKMARK; after it one watches from ``resource_version``."""

    kind: str
    object: Object
    resource_version: str


def events(chunks: Iterable[bytes], what: str, max_object: int = MAX_OBJECT) -> Iterator[WatchEvent]:
    """Raises the ApiError of an ERROR event, InvalidResponse, ResponseTooLarge."""
    for line in _lines(chunks, what, max_object):
        made = parse_object(line, what)
        kind, found = made.get("type"), made.get("object")
        if kind == ERROR:
            raise api_error(what, 0, found)
        if kind not in (ADDED, MODIFIED, DELETED, BOOKMARK) or not isinstance(found, dict):
            raise InvalidResponse(f"{what}: no event: type {shown(kind)}")
        metadata = found.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if not isinstance(version, str) or not version:
            raise InvalidResponse(f"{what}: a {kind} event without metadata.resourceVersion")
        yield WatchEvent(kind, found, version)


def _lines(chunks: Iterable[bytes], what: str, max_object: int) -> Iterator[bytearray]:
    """What ends with a newline. An event that is cut off at the end is sent again after its predecessor's version."""
    buffer, searched = bytearray(), 0
    for chunk in chunks:
        buffer += chunk
        while (end := buffer.find(b"\n", searched)) >= 0:
            if line := buffer[:end].strip():
                yield line
            del buffer[: end + 1]
            searched = 0
        searched = len(buffer)
        if searched > max_object:
            raise ResponseTooLarge(f"{what}: an event of more than {max_object >> 10} KiB")
