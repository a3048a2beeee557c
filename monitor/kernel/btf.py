"""Struct offsets, enum values and tracepoint arguments of the running kernel, from its BTF, which libbpf reads.

BPF programs here never include kernel structs: headers of another release compile and then read garbage silently.
What they need (`mem_cgroup.memory.usage.counter`, `NR_INACTIVE_FILE`) comes from `/sys/kernel/btf/vmlinux` instead.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from monitor.errors import CannotError
from monitor.kernel.libbpf import libbpf

VMLINUX = Path("/sys/kernel/btf/vmlinux")
_TOO_OLD = "the BPF rungs need Linux 5.8 or newer; if this is one, report this line"

#: Kinds of types (include/uapi/linux/btf.h).
_PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _TYPEDEF, _FUNC = 2, 3, 4, 5, 6, 8, 12
#: volatile, const, restrict, and tags of a type.
_QUALIFIERS = frozenset((9, 10, 11, 18))
_MODIFIERS = _QUALIFIERS | {_TYPEDEF}
#: struct btf_type, and what follows one of each kind: array, member, enumerator, parameter.
_TYPE, _ELEMENTS, _MEMBER, _VALUE, _PARAMETER = map(struct.Struct, ("=III", "=III", "=III", "=Ii", "=II"))


class _Type(NamedTuple):
    name: int  # offset into the strings
    kind: int
    entries: int
    bit_fields: bool
    target: int  # what a pointer, typedef or qualifier refers to; of other kinds the size in bytes
    more: int  # address of what follows


class _Member(NamedTuple):
    type: int
    bits: int  # from the start of the enclosing struct
    width: int  # in bits, 0 unless it is a bit field


class Btf:
    """One BTF blob. CannotError where it cannot be read, and from the methods where the kernel does not have what is
    asked for (named in the message).
    """

    def __init__(self, path: Path | str = VMLINUX) -> None:
        self.path = Path(path)
        self._lib = libbpf()
        self._btf = self._lib.btf__parse_raw(os.fsencode(path))
        if not self._btf:
            raise CannotError(
                f"cannot read the kernel's BTF {self.path}: {os.strerror(ctypes.get_errno())}",
                "run a kernel built with CONFIG_DEBUG_INFO_BTF=y (Debian 11+, Ubuntu 20.10+ have it)",
            )

    def __del__(self) -> None:
        if getattr(self, "_btf", None):
            self._lib.btf__free(self._btf)

    def _type(self, number: int) -> _Type:
        at = self._lib.btf__type_by_id(self._btf, number)
        name, info, target = _TYPE.unpack(ctypes.string_at(at, _TYPE.size))
        return _Type(name, info >> 24 & 31, info & 0xFFFF, bool(info >> 31), target, at + _TYPE.size)

    def _more(self, one: _Type, form: struct.Struct) -> Iterator[tuple[Any, ...]]:
        return form.iter_unpack(ctypes.string_at(one.more, form.size * one.entries))

    def _text(self, offset: int) -> str:
        name: bytes = self._lib.btf__name_by_offset(self._btf, offset)
        return name.decode()

    def _named(self, name: str, *kinds: int) -> int | None:
        """Number of the first type of this name; None if there is none."""
        found = (self._lib.btf__find_by_name_kind(self._btf, name.encode(), kind) for kind in kinds)
        return next((number for number in found if number > 0), None)

    def _strip(self, number: int) -> _Type:
        """The type behind typedefs and qualifiers."""
        while (one := self._type(number)).kind in _MODIFIERS:
            number = one.target
        return one

    def _member(self, where: _Type, name: str) -> _Member | None:
        """The member ``name`` of a struct or union, also inside its anonymous members."""
        if where.kind not in (_STRUCT, _UNION):
            return None
        for at, number, offset in self._more(where, _MEMBER):
            bits, width = (offset & 0xFFFFFF, offset >> 24) if where.bit_fields else (offset, 0)
            text = self._text(at)
            if text == name:
                return _Member(number, bits, width)
            if not text and (found := self._member(self._strip(number), name)):
                return found._replace(bits=found.bits + bits)
        return None

    def _struct(self, name: str) -> _Type:
        number = self._named(name, _STRUCT, _UNION)
        if number is None:
            raise CannotError(f"this kernel has no struct {name} (in {self.path})", _TOO_OLD)
        return self._type(number)

    def _walk(self, struct_name: str, path: str) -> _Member:
        """Follow ``path`` through nested structs (not through pointers or arrays)."""
        where, found, steps = self._struct(struct_name), _Member(0, 0, 0), path.split(".")
        for number, step in enumerate(steps, 1):
            member = self._member(where, step)
            if member is None:
                problem = f"this kernel's struct {struct_name} has no member {'.'.join(steps[:number])}"
                raise CannotError(f"{problem} (in {self.path})", _TOO_OLD)
            found = member._replace(bits=found.bits + member.bits)
            where = self._strip(member.type)
        return found

    def has_member(self, struct_name: str, path: str) -> bool:
        """Whether ``path`` (see offset) exists in the struct, and the struct itself."""
        try:
            self._walk(struct_name, path)
        except CannotError:
            return False
        return True

    def size(self, struct_name: str) -> int:
        """Size of a struct or union in bytes; CannotError if there is none."""
        return self._struct(struct_name).target

    def offset(self, struct_name: str, path: str) -> int:
        """Offset in bytes of ``path``, e.g. ``offset("mem_cgroup", "memory.usage.counter")``. CannotError names what is
        missing. Nested and anonymous structs are followed, pointers and arrays are not.
        """
        member = self._walk(struct_name, path)
        if member.width or member.bits % 8:
            raise CannotError(f"struct {struct_name} member {path} is a bit field: it has no byte offset")
        return member.bits // 8

    def array_length(self, struct_name: str, path: str) -> int:
        """Number of elements of an array member (0 for a flexible one); CannotError if it is none. Of an array of
        arrays all of them: a member may be written either way (lru_zone_size in 6.18 and 7.2).
        """
        number = self._walk(struct_name, path).type
        one, elements = self._strip(number), 1
        if one.kind != _ARRAY:
            raise CannotError(f"struct {struct_name} member {path} is {self._describe(number)}, not an array")
        while one.kind == _ARRAY:
            of, _, count = _ELEMENTS.unpack(ctypes.string_at(one.more, _ELEMENTS.size))
            one, elements = self._strip(of), elements * count
        return elements

    @cached_property
    def _values(self) -> dict[str, int]:
        """Every enumerator: those of enums without a name are found in no other way. (0.3 s of a CPU, once.)"""
        found: dict[str, int] = {}
        for number in range(1, self._lib.btf__type_cnt(self._btf)):
            one = self._type(number)
            if one.kind == _ENUM:
                for at, value in self._more(one, _VALUE):
                    found.setdefault(self._text(at), value)
        return found

    def enum(self, member: str) -> int | None:
        """Value of the enumerator ``member`` in whichever enum has it (the first); None if this kernel has none. (The
        programs need none of an enum of 64 bits.)
        """
        return self._values.get(member)

    def has_tracepoint(self, name: str) -> bool:
        """Whether BPF programs can be attached to the tracepoint ``name`` (BPF_RAW_TRACEPOINT_OPEN)."""
        return self._named(f"btf_trace_{name}", _TYPEDEF) is not None

    def tracepoint_args(self, name: str) -> list[str]:
        """Arguments of tracepoint ``name`` by the names of their types: ``["task_struct*", "uid_t"]``. CannotError
        without one. A raw tracepoint hands them over untyped: compare before trusting `ctx->args[n]`.
        """
        number = self._named(f"btf_trace_{name}", _TYPEDEF)
        if number is None:
            raise CannotError(f"this kernel has no tracepoint {name} (no btf_trace_{name} in {self.path})")
        return self._arguments(self._strip(number).target)[1:]  # the first is the registering caller's `void *__data`

    def function(self, name: str) -> list[str] | None:
        """Arguments of the kernel's function ``name``, as those of a tracepoint; None if there is none."""
        number = self._named(name, _FUNC)
        return None if number is None else self._arguments(self._type(number).target)

    def _arguments(self, proto: int) -> list[str]:
        return [self._describe(number) for _, number in self._more(self._type(proto), _PARAMETER)]

    def _describe(self, number: int) -> str:
        """The name of a type, and a star for each pointer to it; qualifiers and the words struct and enum are left
        out.
        """
        stars = ""
        while (one := self._type(number)).kind == _PTR or one.kind in _QUALIFIERS:
            stars += "*" * (one.kind == _PTR)
            number = one.target
        name = self._text(one.name) if number else "void"
        return f"{name or '(anonymous)'}{stars}"
