"""Struct offsets, enum values and tracepoint arguments of the running kernel, read from its BTF.

BPF programs here never include kernel structs: headers of another release compile and then read garbage silently.
What they need (`mem_cgroup.memory.usage.counter`, `NR_INACTIVE_FILE`) comes from `/sys/kernel/btf/vmlinux` instead.

The format (Documentation/bpf/btf.rst): a header, variable-sized type records numbered from 1, NUL-terminated strings.
Reading all of it into Python objects takes 0.48 s for 126,000 types; so only the start of each record is collected, in
one pass over 32-bit words (0.04 s), and names are found by searching the raw bytes, which C does at memory speed.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from monitor.errors import CannotError

VMLINUX = Path("/sys/kernel/btf/vmlinux")
_TOO_OLD = "the BPF rungs need Linux 5.8 or newer; if this is one, report this line"

_MAGIC = 0xEB9F
_HEADER = struct.Struct("=HBBIIIII")

_PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _TYPEDEF, _FUNC, _FUNC_PROTO = 2, 3, 4, 5, 6, 8, 12, 13
#: volatile, const, restrict, and tags of a type.
_QUALIFIERS = frozenset((9, 10, 11, 18))
_MODIFIERS = _QUALIFIERS | {_TYPEDEF}

#: Words after the three every record starts with, by kind: a fixed number, and a number for each of its `vlen` entries.
_FIXED = (0, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0)
_EACH = (0, 0, 0, 0, 3, 3, 2, 0, 0, 0, 0, 0, 0, 2, 0, 3, 0, 0, 0, 3)


class BtfError(CannotError):
    """The kernel's BTF is missing, is not BTF, or does not have what was asked for (named in the message)."""


class _Member(NamedTuple):
    name: int  # offset into the strings; the empty string for an anonymous struct or union
    type: int
    bits: int  # from the start of the enclosing struct
    width: int  # in bits, 0 unless it is a bit field


class Btf:
    """One BTF blob. Opening it costs one pass over the type section (about 0.05 s for a kernel); look-ups are lazy.
    Raises BtfError when the file cannot be read or is not BTF of this machine's byte order.
    """

    def __init__(self, path: Path | str = VMLINUX) -> None:
        self.path = Path(path)
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise BtfError(
                f"cannot read the kernel's BTF {self.path}: {error.strerror}",
                "run a kernel built with CONFIG_DEBUG_INFO_BTF=y (Debian 11+, Ubuntu 20.10+ have it)",
            ) from error
        if len(data) < _HEADER.size:
            raise BtfError(f"{self.path} is not BTF: {len(data)} bytes")
        magic, version, _, header, type_off, type_len, str_off, str_len = _HEADER.unpack_from(data)
        types_end, strings_end = header + type_off + type_len, header + str_off + str_len
        if magic != _MAGIC or version != 1 or max(types_end, strings_end) > len(data) or type_len % 4:
            raise BtfError(f"{self.path} is not version 1 BTF in {sys.byteorder}-endian byte order, or is cut short")
        self._types = data[types_end - type_len : types_end]
        self._strings = data[strings_end - str_len : strings_end]
        self._words = memoryview(self._types).cast("I")
        self._starts = self._index()

    def _index(self) -> list[int]:
        """The word where each type's record starts; index 0 is a filler, because type 0 is `void` and has no record."""
        words, fixed, each = self._words, _FIXED, _EACH
        at, end, starts = 0, len(self._words), [-1]
        append = starts.append
        try:
            while at < end:
                append(at)
                info = words[at + 1]
                kind = info >> 24 & 31
                at += 3 + fixed[kind] + each[kind] * (info & 0xFFFF)
        except IndexError as error:
            raise BtfError(f"{self.path} has an unknown type record (type {len(starts) - 1})") from error
        if at != end:
            raise BtfError(f"{self.path} is cut short: its last type record ends after the type section")
        return starts

    def _text(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def _mentions(self, name: str) -> Iterator[int]:
        """Words of the type section that hold the string offset of ``name`` (some of them by coincidence)."""
        wanted = b"\0" + name.encode() + b"\0"
        found = self._strings.find(wanted)
        while found >= 0:
            pattern = struct.pack("=I", found + 1)
            at = self._types.find(pattern)
            while at >= 0:
                if at % 4 == 0:
                    yield at // 4
                at = self._types.find(pattern, at + 1)
            found = self._strings.find(wanted, found + 1)

    def _owner(self, word: int) -> int:
        """Number of the type whose record contains ``word``."""
        return bisect_right(self._starts, word) - 1

    def _named(self, name: str, *kinds: int) -> Iterator[int]:
        for word in self._mentions(name):
            number = self._owner(word)
            if self._starts[number] == word and self._kind(number) in kinds:
                yield number

    def _kind(self, number: int) -> int:
        return self._words[self._starts[number] + 1] >> 24 & 31 if number else 0

    def _vlen(self, number: int) -> int:
        return self._words[self._starts[number] + 1] & 0xFFFF

    def _target(self, number: int) -> int:
        """What a pointer, typedef or qualifier refers to (for other kinds: the size in bytes)."""
        return self._words[self._starts[number] + 2]

    def _strip(self, number: int) -> int:
        """The type behind typedefs and qualifiers."""
        while self._kind(number) in _MODIFIERS:
            number = self._target(number)
        return number

    def _members(self, number: int) -> Iterator[_Member]:
        start = self._starts[number]
        bit_fields = self._words[start + 1] >> 31
        for at in range(start + 3, start + 3 + 3 * self._vlen(number), 3):
            name, kind, offset = self._words[at : at + 3]
            yield _Member(name, kind, offset & 0xFFFFFF, offset >> 24) if bit_fields else _Member(name, kind, offset, 0)

    def _member(self, number: int, name: str) -> _Member | None:
        """The member ``name`` of struct or union ``number``, also inside its anonymous members."""
        for member in self._members(number):
            text = self._text(member.name)
            if text == name:
                return member
            inner = self._strip(member.type)
            if not text and self._kind(inner) in (_STRUCT, _UNION) and (found := self._member(inner, name)):
                return found._replace(bits=found.bits + member.bits)
        return None

    def _structs(self, name: str) -> list[int]:
        """The structs and unions of this name that have members. Raises BtfError where there is none."""
        numbers = [n for n in self._named(name, _STRUCT, _UNION) if self._vlen(n)]
        if not numbers:
            raise BtfError(f"this kernel has no struct {name} (in {self.path})", _TOO_OLD)
        return numbers

    def _walk(self, struct_name: str, path: str) -> _Member:
        """Follow ``path`` through nested structs (not through pointers or arrays)."""
        reached = ""
        # A driver may have a private struct of the same name: the one that has the whole path is meant.
        for number in self._structs(struct_name):
            bits, where = 0, number
            for i, step in enumerate(path.split(".")):
                member = self._member(where, step) if self._kind(where) in (_STRUCT, _UNION) else None
                if member is None:
                    reached = max(reached, ".".join(path.split(".")[: i + 1]), key=len)
                    break
                bits += member.bits
                where = self._strip(member.type)
            else:
                assert member is not None  # str.split never gives an empty list
                return member._replace(bits=bits)
        problem = f"this kernel's struct {struct_name} has no member {reached} (in {self.path})"
        raise BtfError(problem, _TOO_OLD)

    def has_member(self, struct_name: str, path: str) -> bool:
        """Whether ``path`` (see offset) exists in the struct, and the struct itself."""
        try:
            self._walk(struct_name, path)
        except BtfError:
            return False
        return True

    def size(self, struct_name: str) -> int:
        """Size of a struct or union in bytes; BtfError if there is none."""
        return self._target(self._structs(struct_name)[0])

    def offset(self, struct_name: str, path: str) -> int:
        """Offset in bytes of ``path``, e.g. ``offset("mem_cgroup", "memory.usage.counter")``. BtfError names what is
        missing. Nested and anonymous structs are followed, pointers and arrays are not.
        """
        member = self._walk(struct_name, path)
        if member.width or member.bits % 8:
            raise BtfError(f"struct {struct_name} member {path} is a bit field: it has no byte offset")
        return member.bits // 8

    def array_length(self, struct_name: str, path: str) -> int:
        """Number of elements of an array member (0 for a flexible one); BtfError if it is not an array. Of an array of
        arrays all of them: a member may be written either way (lru_zone_size in 6.18 and 7.2).
        """
        number = self._strip(self._walk(struct_name, path).type)
        if self._kind(number) != _ARRAY:
            raise BtfError(f"struct {struct_name} member {path} is {self._describe(number)}, not an array")
        elements = 1
        while self._kind(number) == _ARRAY:
            elements *= self._words[self._starts[number] + 5]
            number = self._strip(self._words[self._starts[number] + 3])
        return elements

    def enum(self, member: str) -> int | None:
        """Value of the enumerator ``member`` in whichever enum has it (the first); None if this kernel has none. (The
        programs need none of an enum with values below 0, or of 64 bits.)
        """
        for word in self._mentions(member):
            number = self._owner(word)
            at = word - self._starts[number] - 3
            if self._kind(number) == _ENUM and at >= 0 and not at % _EACH[_ENUM]:
                return self._words[word + 1]
        return None

    def has_tracepoint(self, name: str) -> bool:
        """Whether BPF programs can be attached to the tracepoint ``name`` (BPF_RAW_TRACEPOINT_OPEN)."""
        return any(self._named(f"btf_trace_{name}", _TYPEDEF))

    def tracepoint_args(self, name: str) -> list[str]:
        """Arguments of tracepoint ``name`` by the names of their types: ``["task_struct*", "uid_t"]``. BtfError without
        one. A raw tracepoint hands them over untyped: compare before trusting `ctx->args[n]`.
        """
        for number in self._named(f"btf_trace_{name}", _TYPEDEF):
            proto = self._strip(self._target(self._strip(number)))
            if self._kind(proto) == _FUNC_PROTO:
                return self._arguments(proto)[1:]  # the first is the registering caller's `void *__data`
        raise BtfError(f"this kernel has no tracepoint {name} (no btf_trace_{name} in {self.path})")

    def function(self, name: str) -> list[str] | None:
        """Arguments of the kernel's function ``name``, as those of a tracepoint; None if there is none."""
        return next((self._arguments(self._target(number)) for number in self._named(name, _FUNC)), None)

    def _arguments(self, proto: int) -> list[str]:
        first = self._starts[proto] + 3
        return [self._describe(self._words[first + 2 * i + 1]) for i in range(self._vlen(proto))]

    def _describe(self, number: int) -> str:
        """The name of a type, and a star for each pointer to it; qualifiers and the words struct and enum are left
        out.
        """
        stars = ""
        while (kind := self._kind(number)) == _PTR or kind in _QUALIFIERS:
            stars += "*" * (kind == _PTR)
            number = self._target(number)
        name = self._text(self._words[self._starts[number]]) if number else "void"
        return f"{name or '(anonymous)'}{stars}"
