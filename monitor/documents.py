"""YAML and JSON of other authors, read within limits: the one reader of manifests and configuration files.

What comes out are plain JSON values, as Kubernetes reads them: a date stays text. A file may have `MAX_BYTES`, and what
it makes is bounded too: 351 bytes of aliases of aliases are 10^9 values ("billion laughs"), so aliases are refused.
Values are made from the parser's events: no tree of nodes (1 KB each in PyYAML) is made first.
"""

from __future__ import annotations

import json
import os
import re
import reprlib
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader
from typing import Any

#: A List of 110 pods as the API server prints it is about 1 MiB.
MAX_BYTES = 8 << 20
#: Maps and lists inside one another. A Pod needs 20, a KubeletConfiguration 5.
MAX_DEPTH = 64
#: Values in one file. 110 pods have 40,000; an empty map takes 64 bytes, one with a key 300.
MAX_VALUES = 400_000
#: Characters of a number. 64 bits have 20 digits, and Python takes the square of their number to read them.
_MAX_DIGITS = 100
_CHUNK = 1 << 16

_repr = reprlib.Repr()
_repr.maxstring, _repr.maxlong, _repr.maxlevel = 64, 40, 3
_TOO_DEEP = f"nested too deeply: more than {MAX_DEPTH} levels; a Pod needs no more than 20"
_TOO_MANY = f"more than {MAX_VALUES} values; split it"
_YAML = "tag:yaml.org,2002:"
_SCALARS = {_YAML + name for name in ("null", "bool", "int", "float", "str")}
#: YAML 1.1 reads 1:30 as 90. Kubernetes does not, and a long one takes the square of its length.
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-9_]+)+(\.[0-9_]*)?")
#: Lines such as %TAG: libyaml compares each with all before, 430 s for 8 MiB of them, in which no other thread runs.
_DIRECTIVE = re.compile(r"^%", re.MULTILINE)
_MAX_DIRECTIVES = 100
_TEXT_OR_MARK = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[][{},]', re.DOTALL)


class UnreadableError(ValueError):
    """The text is no document, or one beyond the limits: one line that says where, why, and what to do."""


class NotAFileError(OSError):
    """A device, a socket, a directory or a silent pipe where a file was expected."""


def read_bytes(
    path: str | os.PathLike[str], *, pipes: bool = False, opened: Callable[[int], object] = lambda _: None
) -> bytes:
    """A regular file, little more than ``MAX_BYTES`` of it; with ``pipes`` a pipe too, as a shell's ``<(...)`` is one.
    ``opened`` is called with its descriptor before it is read.

    Opening never waits for a writer that does not come; a pipe is read to its end. Raises OSError, of which
    `NotAFileError`.
    """
    with open_file(path, pipes=pipes) as f:
        opened(f.fileno())
        is_pipe = stat.S_ISFIFO(os.fstat(f.fileno()).st_mode)
        os.set_blocking(f.fileno(), is_pipe)
        data = bytearray()  # one read of the limit would make a buffer of the limit
        while len(data) <= MAX_BYTES and (chunk := f.read(_CHUNK)):
            data += chunk
    if is_pipe and not data:
        raise NotAFileError("nothing writes into this pipe")
    return bytes(data)


def open_file(path: str | os.PathLike[str], *, pipes: bool = False) -> BufferedReader:
    """A regular file, or with ``pipes`` a pipe; opening it never waits. Raises OSError, of which `NotAFileError`."""
    # Looked at before it is opened, because opening alone makes some devices act; and again after, because it may have
    # been replaced.
    _check_kind(os.stat(path).st_mode, pipes)
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")  # noqa: SIM115 - returned
    try:
        _check_kind(os.fstat(file.fileno()).st_mode, pipes)
    except NotAFileError:
        file.close()
        raise
    return file


def _check_kind(mode: int, pipes: bool) -> None:
    if not (stat.S_ISREG(mode) or (pipes and stat.S_ISFIFO(mode))):
        raise NotAFileError(
            f"not a regular file but a {'directory' if stat.S_ISDIR(mode) else 'FIFO, socket or device'}"
        )


def decoded(data: bytes) -> str:
    """The text in a file's bytes. Raises UnreadableError."""
    if len(data) > MAX_BYTES:
        raise UnreadableError(f"larger than {MAX_BYTES >> 20} MiB; split it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"not UTF-8 at byte {error.start}; save it as UTF-8") from None


def from_json(text: str) -> Any:
    """The value of a JSON text. Raises UnreadableError."""
    _measure(text)
    try:
        return json.loads(text, object_pairs_hook=_once)
    except UnreadableError:
        raise
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"not JSON: {one_line(error)}; correct the syntax") from None


def _measure(text: str) -> None:
    """Count how deep and how much it is before anything is made of it. Strings are passed over whole."""
    depth = values = 0
    for found in _TEXT_OR_MARK.finditer(text):
        mark = text[found.start()]
        if mark in "[{":
            depth += 1
            values += 1
            if depth > MAX_DEPTH:
                raise UnreadableError(f"{_TOO_DEEP} (line {_line(text, found.start())})")
        elif mark in "]}":
            depth -= 1
        elif mark == ",":
            values += 1
        if values > MAX_VALUES:
            raise UnreadableError(_TOO_MANY)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A map; a key given twice has no value that is plainly meant."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise UnreadableError(f"key {shown(twice)} is given twice; remove one")
    return found


def from_yaml(text: str) -> Iterator[Any]:
    """The documents of a YAML text, one after the other; None for an empty one. Raises UnreadableError."""
    import yaml  # 1 MB that a node without YAML files need not carry

    if len(_DIRECTIVE.findall(text)) > _MAX_DIRECTIVES:
        raise UnreadableError(f"more than {_MAX_DIRECTIVES} lines begin with '%'; remove the directives")
    try:
        # PyYAML's parser, tags and scalars; with libyaml 10 times faster.
        yield from _Builder(yaml, getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)).documents()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" at line {mark.line + 1}" if mark else ""
        reason = " ".join(str(error.problem or error.context).split())
        if "nesting depth" in reason and mark:  # a limit of libyaml's own, reached before ours
            raise UnreadableError(f"{_TOO_DEEP} (line {mark.line + 1})") from None
        raise UnreadableError(f"not YAML{line}: {reason}; correct the syntax") from None
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise UnreadableError(f"not YAML: {one_line(error)}; correct it") from None


class _Builder:
    """Makes values of the events of a parser of PyYAML."""

    def __init__(self, yaml: Any, parser: Any) -> None:
        self._yaml = yaml
        self._parser = parser
        self._values = 0

    def documents(self) -> Iterator[Any]:
        while not isinstance(event := self._parser.get_event(), self._yaml.StreamEndEvent):
            if isinstance(event, self._yaml.DocumentStartEvent):
                yield self._value(self._parser.get_event(), 0)

    def _value(self, event: Any, depth: int) -> Any:
        line = event.start_mark.line + 1
        self._values += 1
        if self._values > MAX_VALUES:
            raise UnreadableError(f"{_TOO_MANY} (line {line})")
        if isinstance(event, self._yaml.AliasEvent):
            raise UnreadableError(
                f"line {line}: alias *{shortened(event.anchor or '', 40)}; write out what it stands for"
            )
        if isinstance(event, self._yaml.ScalarEvent):
            return self._scalar(event, line)
        if depth >= MAX_DEPTH:
            raise UnreadableError(f"{_TOO_DEEP} (line {line})")
        is_map = isinstance(event, self._yaml.MappingStartEvent)
        if event.tag not in (None, "!", _YAML + ("map" if is_map else "seq")):
            raise UnreadableError(f"not YAML at line {line}: tag {shown(event.tag)} is not known here; remove it")
        if is_map:
            return self._map(depth)
        items = []
        while not isinstance(event := self._parser.get_event(), self._yaml.SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _map(self, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while not isinstance(event := self._parser.get_event(), self._yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            key = self._value(event, depth + 1)
            if isinstance(key, dict | list):
                raise UnreadableError(f"not YAML at line {line}: a key must be text; correct it")
            if key == "<<":
                raise UnreadableError(f"line {line}: '<<' merges nothing here; write out what it stands for")
            if isinstance(key, bool | int | float | None):
                # As text, which has a secret hash: 160,000 numbers that are chosen for theirs took half a minute.
                key = json.dumps(key)
            if key in found:
                raise UnreadableError(f"line {line}: key {shown(key)} is given twice; remove one")
            found[key] = self._value(self._parser.get_event(), depth + 1)
        return found

    def _scalar(self, event: Any, line: int) -> Any:
        tag, value = event.tag, event.value
        if tag in (None, "!"):
            if event.implicit[0] and _SEXAGESIMAL.fullmatch(value):
                return value
            tag = self._parser.resolve(self._yaml.ScalarNode, value, event.implicit)
        if tag in (_YAML + "merge", _YAML + "timestamp", _YAML + "value") and event.tag is None:
            return value
        if tag not in _SCALARS:
            raise UnreadableError(f"not YAML at line {line}: tag {shown(tag)} is not known here; remove it")
        if tag != _YAML + "str" and len(value) > _MAX_DIGITS:
            raise UnreadableError(f"line {line}: a number of {len(value)} characters; write one of 64 bits")
        try:
            return self._parser.yaml_constructors[tag](self._parser, self._yaml.ScalarNode(tag, value))
        # PyYAML's constructors let out whatever Python raises for a scalar that does not fit its explicit tag:
        # ValueError for !!int x, KeyError for !!bool x, IndexError for an empty !!int.
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
            raise UnreadableError(f"not YAML at line {line}: {one_line(error)}; correct it") from None


def one_line(error: Exception) -> str:
    """What an exception says, in one line of at most 200 characters."""
    return shortened(" ".join(str(error).split()) or type(error).__name__, 200)


def shown(value: Any) -> str:
    """A value for a message, in at most 40 characters of one line, however large it is."""
    if value is None:
        return "nothing"
    text = _repr.repr(value)
    return shortened(text if isinstance(value, str) else f"{type(value).__name__} {text}", 40)


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
