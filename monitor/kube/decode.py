"""Lists of any length, decoded one item at a time as they come in (10,000 pods need the memory of one), and the stream
of a watch: one JSON object a line, each an event.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from monitor.documents import one_line, shown
from monitor.kube.errors import InvalidResponse, ResponseTooLarge, TimedOut, api_error

Object = dict[str, Any]

#: Bytes of one object. etcd takes 1.5 MiB, and Go writes each `<`, `>` and `&` of it with six bytes (\u003c): a larger
#: one is no API server's.
MAX_OBJECT = 16 << 20
#: Bytes of one list: 10,000 pods of the usual 10 KB are 100 MB. Not held in memory.
MAX_LIST = 512 << 20
_JSON = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


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
    """The objects in the array "items" of one JSON object; then `envelope` is the rest of it, that array empty."""

    def __init__(self, chunks: Iterator[bytes], what: str) -> None:
        self.envelope: Object = {}
        self._chunks = chunks
        self._what = what
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text, self._at = "", 0  # what has come in and is not decoded yet: from here on
        self._total = 0  # bytes

    def items(self) -> Iterator[Object]:
        """Each item when it is complete. Raises InvalidResponse, ResponseTooLarge."""
        self._take("{")
        while self._mark() != "}":
            key = str(self._value())
            self._take(":")
            if key == "items" and self._mark() == "[":
                self._take("[")
                while self._mark() != "]":
                    if not isinstance(made := self._value(), dict):
                        raise InvalidResponse(f"{self._what}: a list of something else than objects")
                    yield made
                    self._take(",", before="]")
                self._take("]")
                self.envelope[key] = []
            else:
                self.envelope[key] = self._value()
            self._take(",", before="}")
        for _ in self._chunks:  # to the end: the connection is used again
            pass

    def _mark(self) -> str:
        """The next character that is no space."""
        while True:
            if found := _SPACE.match(self._text, self._at):
                self._at = found.end()
            if self._at < len(self._text):
                return self._text[self._at]
            self._read()

    def _take(self, mark: str, before: str = "") -> None:
        found = self._mark()
        if found == mark:
            self._at += 1
        elif found != before:
            raise InvalidResponse(f"{self._what}: not JSON, or no object: {mark} is missing")

    def _value(self) -> Any:
        self._mark()
        while True:
            try:
                made, end = _JSON.raw_decode(self._text, self._at)
                if end < len(self._text):  # a number at the end may go on
                    self._at = end
                    return made
            except ValueError:
                pass  # it is cut off, most likely
            except RecursionError:
                raise InvalidResponse(f"{self._what}: nested too deeply") from None
            self._read()

    def _read(self) -> None:
        """Get more text: as much again as there is, because a value that was cut off is decoded again."""
        parts, had, got = [self._text[self._at :]], len(self._text) - self._at, 0
        if had > MAX_OBJECT:
            raise ResponseTooLarge(f"{self._what}: an object of more than {MAX_OBJECT >> 10} KiB")
        while got <= had and had + got <= MAX_OBJECT:
            if (chunk := next(self._chunks, None)) is None:
                if got:
                    break
                raise InvalidResponse(f"{self._what}: not JSON, or cut off: {self._total} bytes")
            self._total += len(chunk)
            if self._total > MAX_LIST:
                raise ResponseTooLarge(f"{self._what}: a list of more than {MAX_LIST >> 20} MiB")
            parts.append(self._decoder.decode(chunk))
            got += len(parts[-1])
        self._text, self._at = "".join(parts), 0


# ---- watches

ADDED, MODIFIED, DELETED, BOOKMARK, ERROR = "ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"


@dataclass(frozen=True)
class WatchEvent:
    """``kind`` is ADDED, MODIFIED, DELETED or BOOKMARK; after it one watches from ``resource_version``."""

    kind: str
    object: Object
    resource_version: str


def events(chunks: Iterable[bytes], what: str) -> Iterator[WatchEvent]:
    """They end with the chunks, or their silence. Raises the ApiError of an ERROR event, InvalidResponse,
    ResponseTooLarge.
    """
    for line in _lines(chunks, what):
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


def _lines(chunks: Iterable[bytes], what: str) -> Iterator[bytearray]:
    """What ends with a newline. An event that is cut off at the end is sent again after its predecessor's version."""
    buffer, searched = bytearray(), 0
    with suppress(TimedOut):
        for chunk in chunks:
            buffer += chunk
            while (end := buffer.find(b"\n", searched)) >= 0:
                if line := buffer[:end].strip():
                    yield line
                del buffer[: end + 1]
                searched = 0
            searched = len(buffer)
            if searched > MAX_OBJECT:
                raise ResponseTooLarge(f"{what}: an event of more than {MAX_OBJECT >> 10} KiB")
