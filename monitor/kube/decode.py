"""Lists of any length, decoded one item at a time as they come in (10,000 pods need the memory of one), and the stream
of a watch: one JSON object a line, each an event.

The bytes are scanned for strings and brackets; an item is given to json when its last bracket is there. What is around
the items (kind, metadata) is parsed at the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from monitor.documents import MAX_DEPTH, one_line, shown
from monitor.kube.errors import InvalidResponse, ResponseTooLarge, api_error

Object = dict[str, Any]

#: Bytes of one object. etcd takes 1.5 MiB, and Go writes each `<`, `>` and `&` of it with six bytes (\u003c): a larger
#: one is no API server's.
MAX_OBJECT = 16 << 20
#: Bytes of one list: 10,000 pods of the usual 10 KB are 100 MB. Not held in memory.
MAX_LIST = 512 << 20
#: A string; the quote of a string that is cut off; a bracket.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|"|[][{}]', re.DOTALL)
_QUOTE = ord('"')
_OPEN = b"[{"


def parse_object(data: bytes | bytearray | str, what: str) -> Object:
    """One JSON object. Raises InvalidResponse."""
    try:
        made = json.loads(data if isinstance(data, str) else data.decode())
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise InvalidResponse(f"{what}: not JSON: {one_line(error)}") from None
    if not isinstance(made, dict):
        raise InvalidResponse(f"{what}: JSON, but no object")
    return made


class ItemDecoder:
    """The objects in the array ``key`` of one JSON object; then `envelope` is the rest of it, ``key`` empty."""

    def __init__(self, what: str, key: str = "items", max_object: int = MAX_OBJECT, max_bytes: int = MAX_LIST) -> None:
        self._what = what
        self._key = json.dumps(key).encode()
        self._max_object = max_object
        self._max_bytes = max_bytes
        self._buffer = bytearray()  # from the first byte that belongs to nothing yet
        self._scanned = 0  # bytes of it
        self._enough = 0  # bytes of it before a string that is not complete is scanned again: twice as many of it
        self._depth = 0
        self._last = b""  # the last string directly in the object: the key of the array that begins next
        self._in_items = False
        self._text = bytearray()  # what is around the items
        self.envelope: Object = {}

    def items(self, chunks: Iterable[bytes]) -> Iterator[Object]:
        """Each item when it is complete. Raises InvalidResponse, ResponseTooLarge."""
        total = 0
        for chunk in chunks:
            total += len(chunk)
            if total > self._max_bytes:
                raise ResponseTooLarge(f"{self._what}: a list of more than {self._max_bytes >> 20} MiB")
            self._buffer += chunk
            if len(self._buffer) >= self._enough:
                yield from self._scan()
            if max(len(self._buffer), len(self._text)) > self._max_object:
                raise ResponseTooLarge(f"{self._what}: an object of more than {self._max_object >> 10} KiB")
        yield from self._scan()
        if self._depth > 0 or self._buffer:
            raise InvalidResponse(f"{self._what}: the JSON is cut off after {total} bytes")
        self.envelope = parse_object(self._text, self._what)

    def _scan(self) -> Iterator[Object]:
        buffer, begin, end = self._buffer, 0, len(self._buffer)
        for token in _TOKEN.finditer(buffer, self._scanned):
            mark, at = buffer[token.start()], token.end()
            if mark == _QUOTE:
                if at == token.start() + 1:
                    end = token.start()
                    break
                if self._depth == 1:
                    self._last = token[0]
                continue
            if mark in _OPEN:
                begin = self._opened(buffer, begin, token.start(), mark)
                continue
            self._depth -= 1
            if self._in_items and self._depth == 2:
                yield parse_object(buffer[begin:at], self._what)
                begin = at
            elif self._in_items and self._depth == 1:
                self._check_gap(buffer[begin : token.start()])
                self._in_items, begin = False, token.start()
            elif self._depth < 0:
                raise InvalidResponse(f"{self._what}: not JSON: a bracket is closed that was not opened")
        keep = begin
        if not self._in_items:
            keep = end
            self._text += buffer[begin:keep]
        self._scanned, begun = end - keep, len(buffer) - end
        del buffer[:keep]
        self._enough = len(buffer) + begun

    def _opened(self, buffer: bytearray, begin: int, start: int, mark: int) -> int:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidResponse(f"{self._what}: nested too deeply: more than {MAX_DEPTH} levels")
        if self._in_items and self._depth == 3:
            self._check_gap(buffer[begin:start])
            return start
        if not self._in_items and self._depth == 2 and mark == _OPEN[0] and self._last == self._key:
            self._in_items = True
            self._text += buffer[begin : start + 1]
            return start + 1
        return begin

    def _check_gap(self, gap: bytearray) -> None:
        if gap.strip(b" \t\r\n,"):
            raise InvalidResponse(f"{self._what}: a list of something else than objects")


# ---- watches

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
